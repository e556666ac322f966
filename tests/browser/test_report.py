"""The HTML report in Debian's Chromium: silent console, filters, widths, contrast, keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report_samples import HOSTILE, lost

pytestmark = pytest.mark.browser

NAMES = ["full", "passing", "verified"]
LOST = f"new-{lost().id}"
ALL = [
    LOST,
    "new-order-free-cfd32fa3",
    "known-uniform-is-none-82c27ad5",
    "known-single-page-size-0810dc85",
]

_VISIBLE = "e => e.checkVisibility()"

#: Texts whose contrast with what lies behind them is under 4.5, with the ratio.
_LOW_CONTRAST = """
const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => {
    c /= 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const ratio = (a, b) => {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const behind = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const color = channels(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
    if (color[3] > 0) throw new Error("a translucent background: " + at.outerHTML);
  }
  throw new Error("no background");
};
const low = [];
let seen = 0;
const judge = (node, front, back, least) => {
  seen += 1;
  const found = ratio(channels(front), back);
  if (found < least) low.push([node.outerHTML.slice(0, 120), found]);
};
for (const node of document.body.querySelectorAll("*")) {
  if (!node.getClientRects().length || node.matches("script, style, option")) continue;
  const style = getComputedStyle(node);
  if (node.matches("svg text")) {
    const segment = node.matches(".on-segment") && node.parentElement.querySelector("rect");
    const back = segment ? channels(getComputedStyle(segment).fill) : behind(node.parentElement);
    judge(node, style.fill, back, 4.5);
  } else if (node.matches(".bar-M, .bar-W, .bar-lost, .line, .empty rect, rect.mark")) {
    judge(node, style.stroke, behind(node.closest("svg")), 3);
  } else if (node.matches(".share rect, circle.mark")) {
    judge(node, style.fill, behind(node.closest("svg")), 3);
  } else if (node.matches("select, input, button")) {
    judge(node, style.color, channels(style.backgroundColor), 4.5);
    judge(node, style.borderTopColor, behind(node.parentElement), 3);
  } else if ([...node.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) {
    judge(node, style.color, behind(node), 4.5);
  }
}
return [seen, low];
"""


def _open(driver: Any, path: Path, *, width: int = 1400, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get(path.as_uri())


def _shown(driver: Any) -> list[str]:
    found: list[str] = driver.execute_script(
        f"return [...document.querySelectorAll('article')].filter({_VISIBLE}).map(e => e.id)"
    )
    return found


def _choose(driver: Any, field: str, value: str) -> None:
    from selenium.webdriver.support.ui import Select

    Select(driver.find_element("id", field)).select_by_value(value)


def _open_details(driver: Any) -> None:
    driver.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_silently_and_loads_nothing(
    driver: Any, pages: dict[str, Path], name: str, scheme: str
):
    _open(driver, pages[name], scheme=scheme)
    _open_details(driver)
    assert driver.get_log("browser") == []
    assert driver.execute_script("return performance.getEntriesByType('resource')") == []
    # An alert would have stopped the script above; the hostile texts are on the page as text.
    assert driver.execute_script("return document.scripts.length") == 1
    assert driver.execute_script("return document.images.length") == 0


def test_the_policy_stops_scripts_of_others(driver: Any, pages: dict[str, Path]):
    """Even markup that got past the escaping would not run."""
    _open(driver, pages["full"])
    driver.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = true';"
        "document.body.append(s);"
        "document.body.insertAdjacentHTML('beforeend', '<i style=\"color: red\" id=styled>x</i>')"
    )
    assert driver.execute_script("return window.ran === undefined") is True
    color = "return getComputedStyle(document.getElementById('styled')).color"
    assert driver.execute_script(color) != "rgb(255, 0, 0)"
    assert len(driver.get_log("browser")) == 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_wider_than_the_page(driver: Any, pages: dict[str, Path], name: str, width: int):
    _open(driver, pages[name], width=width)
    _open_details(driver)
    assert driver.execute_script("return innerWidth") == width
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    assert driver.execute_script("return document.body.scrollWidth") <= width
    wide = driver.execute_script(
        "return [...document.body.querySelectorAll('*')]"
        ".filter(e => !e.closest('.scroll table, pre, svg, .skip') && "
        "e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 90))"
    )
    assert wide == []


def test_a_narrow_matrix_scrolls_in_its_own_box(driver: Any, pages: dict[str, Path]):
    _open(driver, pages["full"], width=400)
    inner, outer = driver.execute_script(
        "const box = document.querySelector('.scroll'); return [box.scrollWidth, box.clientWidth]"
    )
    assert inner > outer
    assert outer <= 400


def test_filters(driver: Any, pages: dict[str, Path]):
    _open(driver, pages["full"])
    said = driver.find_element("id", "shown")
    assert _shown(driver) == ALL
    assert said.text == "4 of 4 findings shown."
    _choose(driver, "by-status", "new")
    assert _shown(driver) == ALL[:2]
    assert said.text == "2 of 4 findings shown."
    _choose(driver, "by-rule", "partition")
    assert _shown(driver) == [LOST]
    columns = driver.execute_script(
        f"return [...document.querySelectorAll('.matrix thead th')].filter({_VISIBLE})"
        ".map(e => e.textContent)"
    )
    assert columns == ["Target", "partition"]
    driver.find_element("id", "clear").click()
    assert _shown(driver) == ALL
    assert said.text == "4 of 4 findings shown."
    _choose(driver, "by-target", "1")
    assert _shown(driver) == [ALL[3]]
    rows = driver.execute_script(
        f"return [...document.querySelectorAll('.matrix tbody th')].filter({_VISIBLE})"
        ".map(e => e.firstChild.textContent.trim())"
    )
    assert rows == ["vllm==0.28.0"]
    _choose(driver, "by-target", "")
    text = driver.find_element("id", "by-text")
    text.send_keys("CONCERNED  layers.2")
    assert _shown(driver) == [LOST]
    text.send_keys(" nowhere")
    assert _shown(driver) == []
    assert driver.find_element("id", "nothing").is_displayed()
    text.send_keys("\n")  # sends no form
    assert driver.current_url == pages["full"].as_uri()
    assert driver.get_log("browser") == []


def test_filtering_by_target_shows_its_shapes_in_place_of_all(driver: Any, pages: dict[str, Path]):
    _open(driver, pages["full"])
    tables = (
        f"return [...document.querySelectorAll('.heat')].filter({_VISIBLE})"
        ".map(e => e.closest('[data-whole], [data-target]').dataset.target || 'all')"
    )
    assert driver.execute_script(tables) == ["all"]
    _choose(driver, "by-target", "1")
    assert driver.execute_script(tables) == ["1"]
    driver.find_element("id", "clear").click()
    assert driver.execute_script(tables) == ["all", "1"]  # it stays open
    assert driver.get_log("browser") == []


@pytest.mark.parametrize("name", ["full", "passing"])
@pytest.mark.parametrize("width", [400, 1400])
def test_names_under_charts_do_not_touch(
    driver: Any, pages: dict[str, Path], name: str, width: int
):
    _open(driver, pages[name], width=width)
    gaps = driver.execute_script(
        "return [...document.querySelectorAll('svg.names')].map(svg =>"
        " [...svg.querySelectorAll('text')].map(t => t.getBoundingClientRect()))"
        ".flatMap(boxes => boxes.slice(1).map((b, i) => b.left - boxes[i].right))"
    )
    assert len(gaps) >= 4
    assert min(gaps) >= 4


@pytest.mark.parametrize("width", [400, 1400])
def test_numbers_are_on_one_line(driver: Any, pages: dict[str, Path], width: int):
    _open(driver, pages["full"], width=width)
    _open_details(driver)
    broken = driver.execute_script("""
        const cells = ".heat td, .bars .number, .numbers td:not(:last-child)";
        return [...document.querySelectorAll(cells)].filter((cell) => {
          const range = document.createRange();
          range.selectNodeContents(cell);
          return range.getBoundingClientRect().height > 30;
        }).map((cell) => cell.outerHTML);
    """)
    assert broken == []


def test_a_cell_leads_to_its_finding_whatever_is_filtered(driver: Any, pages: dict[str, Path]):
    _open(driver, pages["full"])
    driver.find_element("id", "by-text").send_keys("nowhere")
    driver.find_element("css selector", "td.cell.new a").click()
    focused = "return document.activeElement.id"
    assert driver.execute_script(focused) == LOST
    assert _shown(driver) == ALL
    top = driver.execute_script("return document.activeElement.getBoundingClientRect().top")
    assert 0 <= top < 900


def test_a_page_opened_at_a_finding_goes_there(driver: Any, pages: dict[str, Path]):
    _open(driver, pages["full"])
    driver.get("about:blank")
    driver.get(f"{pages['full'].as_uri()}#{ALL[3]}")
    assert driver.execute_script("return document.activeElement.id") == ALL[3]


def test_tab_reaches_everything_in_order_and_shows_where_it_is(driver: Any, pages: dict[str, Path]):
    from selenium.webdriver import ActionChains, Keys

    _open(driver, pages["full"])
    reached, unmarked = [], []
    while True:
        ActionChains(driver).send_keys(Keys.TAB).perform()
        if driver.execute_script("return document.activeElement === document.body"):
            break  # past the last
        name, outline = driver.execute_script(
            "const e = document.activeElement; const s = getComputedStyle(e);"
            "return [e.id || e.getAttribute('href') || e.getAttribute('aria-label') ||"
            " e.textContent.trim(), `${s.outlineStyle} ${parseFloat(s.outlineWidth)}`]"
        )
        reached.append(name)
        if outline != "solid 3":
            unmarked.append((name, outline))
    assert unmarked == []
    assert reached[:16] == [
        "#main", "#matrix", "#findings", "#outcomes", "#shapes", "#time", "#past",
        "by-status", "by-target", "by-rule", "by-text", "clear",
        "Matrix of surface pack", "#known-uniform-is-none-82c27ad5",
        "#known-single-page-size-0810dc85", "#known-single-page-size-0810dc85",
    ]  # fmt: skip
    assert "What the invariants claim" in reached
    assert "Copy" in reached
    assert "Replay command" in reached
    assert "Case as JSON" in reached
    assert "vllm==0.28.0: 200 mixes" in reached
    assert reached[-2:] == ["The numbers", "Past runs"]


def test_the_filters_work_by_keyboard(driver: Any, pages: dict[str, Path]):
    from selenium.webdriver import ActionChains, Keys

    _open(driver, pages["full"])
    driver.find_element("id", "by-status").send_keys("k")  # the first that begins so
    assert _shown(driver) == [ALL[2]]
    keys = [Keys.TAB] * 4
    ActionChains(driver).send_keys(*keys, Keys.SPACE).perform()
    assert _shown(driver) == ALL


def test_copying_says_that_it_was_done(driver: Any, pages: dict[str, Path]):
    from selenium.webdriver.support.ui import WebDriverWait

    _open(driver, pages["full"])
    button = driver.find_element("css selector", f"#{LOST} button.copy")
    button.click()
    WebDriverWait(driver, 30).until(lambda _: button.text != "Copy")
    assert button.text in ("Copied", "Selected")
    if button.text == "Selected":
        chosen = driver.execute_script("return getSelection().toString()")
        assert chosen == (f"kvfuzz replay 'my reports/cases/{lost().id}.json' --target '{HOSTILE}'")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("filtered", [False, True])
def test_contrast_is_enough(
    driver: Any, pages: dict[str, Path], name: str, scheme: str, filtered: bool
):
    _open(driver, pages[name], scheme=scheme)
    _open_details(driver)
    if filtered and name == "full":
        _choose(driver, "by-status", "new")
    seen, low = driver.execute_script(_LOW_CONTRAST)
    assert low == []
    assert seen > 50


def test_print_leaves_out_what_only_a_screen_can_do(driver: Any, pages: dict[str, Path]):
    _open(driver, pages["full"])
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        gone = driver.execute_script(
            f"return [...document.querySelectorAll('nav, #filters, .skip, .copy')]"
            f".filter({_VISIBLE}).length"
        )
        assert gone == 0
        assert _shown(driver) == ALL
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
