// Filters and copy buttons of the HTML report. Without it, the page shows everything.
"use strict";
(() => {
  const all = (selector) => Array.from(document.querySelectorAll(selector));
  const at = (id) => document.getElementById(id);
  const form = at("filters");
  const findings = all("article.finding");

  function apply() {
    const status = at("by-status").value;
    const target = at("by-target").value;
    const rule = at("by-rule").value;
    const words = at("by-text").value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const finding of findings) {
      const data = finding.dataset;
      const text = words.length ? finding.textContent.toLowerCase() : "";
      const passes =
        (!status || data.status === status) &&
        (!target || data.targets.split(" ").includes(target)) &&
        (!rule || data.rule === rule) &&
        words.every((word) => text.includes(word));
      finding.hidden = !passes;
      shown += passes;
    }
    for (const row of all("[data-target]")) {
      row.hidden = Boolean(target) && row.dataset.target !== target;
      if (target && !row.hidden && row.matches("details")) {
        row.open = true; // in place of the tables of all targets
      }
    }
    for (const whole of all("[data-whole]")) {
      whole.hidden = Boolean(target);
    }
    for (const cell of all(".matrix [data-rule]")) {
      cell.hidden = Boolean(rule) && cell.dataset.rule !== rule;
    }
    for (const cell of all(".cell[data-status]")) {
      cell.classList.toggle("faded", Boolean(status) && cell.dataset.status !== status);
    }
    at("shown").textContent = findings.length
      ? `${shown} of ${findings.length} findings shown.`
      : "No findings to show.";
    if (at("nothing")) {
      at("nothing").hidden = shown > 0;
    }
  }

  // A link to a finding leads there, whatever is filtered.
  function follow(hash) {
    const goal = at(hash.slice(1));
    if (goal && goal.hidden) {
      form.reset();
      apply();
    }
    if (goal && goal.matches("article, tr")) {
      goal.scrollIntoView();
      goal.focus({ preventScroll: true });
    }
  }

  async function copy(button) {
    const pre = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(pre.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(pre);
      button.textContent = "Selected";
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 2000);
  }

  for (const button of all("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("change", apply); // some tools choose an option without an input event
  form.addEventListener("submit", (event) => event.preventDefault());
  at("clear").addEventListener("click", () => {
    form.reset(); // its event comes before the fields change, so apply cannot listen to it
    apply();
  });
  for (const link of all(".cell a")) {
    link.addEventListener("click", () => follow(link.hash));
  }
  apply();
  follow(location.hash);
})();
