"""`kvfuzz list`, `explain` and `show`: what there is, in words and pictures. Loads no target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvfuzz.errors import UsageError
from kvfuzz.files import printable
from kvfuzz.invariants import Invariant, all_invariants
from kvfuzz.reporting.terminal import QuietConsole, console

_FORMS = (
    ("reference", "kvfuzz's own planner: what a packer should do"),
    ("vllm", "the vLLM that is installed here"),
    ("vllm==0.28.0", "that release's source, fetched from the package index and cached"),
    ("vllm@PATH", "a checkout of vLLM; it need not be built"),
    ("module:factory", "anyone's planner: factory() returns a function of a mix"),
)


def list_targets() -> None:
    """The forms of a target, and the releases that need no network."""
    from kvfuzz.targets.releases import cached_releases

    out = console()
    out.pairs(_FORMS)
    cached = ", ".join(cached_releases()) or "none yet"
    out.say()
    out.pairs([("cached releases:", cached)])


def list_surfaces() -> None:
    """The surfaces."""
    from kvfuzz.surfaces import SURFACES

    console().pairs([(name, surface.says) for name, surface in SURFACES.items()])


def list_invariants() -> None:
    """Every invariant, with its claim."""
    console().pairs([(rule.id, rule.claim) for rule in all_invariants()])


def list_ledger() -> None:
    """Every ledger entry: title, reason and releases."""
    from kvfuzz.ledger import ledger

    out = console()
    if not ledger():
        out.say("The ledger is empty.")
    for known in ledger():
        out.say(known.entry.id, style="bold")
        for line in (known.entry.title, f"{known.entry.reason}: {known.range}"):
            out.say(f"  {printable(line)}")


LISTS: dict[str, Callable[[], None]] = {
    "targets": list_targets,
    "surfaces": list_surfaces,
    "invariants": list_invariants,
    "ledger": list_ledger,
}


def explain(name: str) -> None:
    """Explain an invariant, or a ledger entry by its id or the beginning of it.

    Raises:
        UsageError: There is neither of that name.
    """
    rules = {rule.id: rule for rule in all_invariants()}
    if name in rules:
        _explain_invariant(console(), rules[name])
        return
    from kvfuzz.commands.names import near
    from kvfuzz.ledger import ledger

    entries = {known.entry.id: known for known in ledger()}
    ids = [name] if name in entries else [i for i in entries if i.startswith(name)]
    if len(ids) > 1:
        raise UsageError(f"{name!r} begins several ids: {', '.join(ids)}.")
    if not ids:
        raise UsageError(
            f"Neither an invariant nor a ledger entry is called {name!r}."
            f"{near(name, [*rules, *entries])} `kvfuzz list invariants` and "
            "`kvfuzz list ledger` show them all."
        )
    _explain_entry(console(), ids[0])


def _explain_invariant(out: QuietConsole, rule: Invariant) -> None:
    out.say(rule.id, style="bold")
    pairs = [("claim", rule.claim), ("source", rule.source), ("applies to", rule.applies_to)]
    pairs += [("surfaces", ", ".join(rule.surfaces)), ("costs", rule.severity)]
    out.pairs(pairs)


def _explain_entry(out: QuietConsole, name: str) -> None:
    from packaging.version import Version

    from kvfuzz.ledger import REASONS, Observation, ledger
    from kvfuzz.reporting.mix import align, mix_table, page_sizes

    known = next(known for known in ledger() if known.entry.id == name)
    entry = known.entry
    out.say(entry.id, style="bold")
    pairs = [("title", entry.title), ("why known", f"{entry.reason}: {REASONS[entry.reason]}")]
    pairs += [("because", entry.explanation), ("reference", entry.reference)]
    pairs.append(("violates", known.range))
    out.pairs([(label, printable(text)) for label, text in pairs if text])
    if entry.observed or entry.real_config:
        out.say()
        columns: dict[str, dict[str, Observation]] = {"observed": entry.observed}
        if entry.real_config:
            columns["real config"] = entry.real_config
        rows = [("release", *columns)]
        rows += [
            (version, *(seen.get(version, "-") for seen in columns.values()))
            for version in sorted({**entry.observed, **entry.real_config}, key=Version)
        ]
        for line in align(rows, frozenset()):
            out.say(f"  {printable(line)}")
    out.say()
    out.say("witness:")
    for line in mix_table(known.witness, list(page_sizes(known.witness).values())):
        out.say(f"  {line}")


def show(name: str, out_folder: Path) -> None:
    """Draw a case: its pages and groups.

    Raises:
        UsageError: There is no such case, or it is damaged.
    """
    from rich.text import Text

    from kvfuzz.commands.names import find_item
    from kvfuzz.reporting.mix import mix_table, page_sizes, picture

    item = find_item(name, out_folder)
    out = console()
    case = item.case
    drawn = case.surface == "pack"
    if drawn:
        lines = picture(item.scenario, out.width)
    else:
        pages = list(page_sizes(item.scenario).values())
        lines = [Text(line) for line in mix_table(item.scenario, pages)]
    out.say(printable(item.name), style="bold")
    layers = f"{len(item.scenario)} layer{'' if len(item.scenario) == 1 else 's'}"
    how = ", grouped by the reference planner" if drawn else ""
    out.say(f"{layers}, surface {case.surface}{how}")
    if case.target:
        version = "" if case.target.endswith(case.version) else f" {case.version}"
        out.say(f"found on {printable(case.target + version)}")
    # Claim, got and expected; the groups that follow are not those drawn below.
    said = [line.strip().partition(": ") for line in case.message.splitlines()[:3]]
    out.pairs([(label, printable(text.strip())) for label, _, text in said], indent=2)
    out.say()
    for text in lines:
        out.say(text)
