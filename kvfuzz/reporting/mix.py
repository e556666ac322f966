"""A mix for the terminal: as a table of specs, and as a picture of its pages and groups.

Lines of text, not rich tables: they stay readable at 60 columns, where a
table would fold every cell.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from kvfuzz.errors import UsageError
from kvfuzz.files import printable
from kvfuzz.outcomes import Group
from kvfuzz.pages import FULL_DIALECT, mix_page_sizes
from kvfuzz.reference import group_and_unify_kv_cache_specs
from kvfuzz.specs import LayerSpec, OpenSpec, Scenario, spec_fields

#: Spec kind -> its short name, and its letter and colour in pictures.
KIND_LOOKS = {
    "mla_attention": ("MLA", "M", "black on cyan"),
    "sliding_window_mla": ("MLA window", "W", "black on yellow"),
}

#: How a kind looks that is none of these.
_OTHER_LOOKS = ("O", "black on white")

#: Fields with a column of their own; others are shown where they are set.
_COLUMNS = ("block_size", "num_kv_heads", "head_size", "dtype", "sliding_window")
#: Layers of a table; a mix that has not been shrunk may have hundreds.
_MAX_ROWS = 40
_MAX_NAME = 32
_MIN_BAR = 8


def look_of(kind: str) -> tuple[str, str, str]:
    """The short name of a kind, and its letter and colour in pictures."""
    return KIND_LOOKS.get(kind) or (printable(kind.replace("_", " ")), *_OTHER_LOOKS)


def fit(text: str, width: int) -> str:
    """`text` in at most `width` cells, its middle left out if it is longer."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    half = (width - 1) // 2
    return f"{set_cell_size(text, width - 1 - half)}…{text[-half:]}"


def align(rows: Sequence[Sequence[str]], right: frozenset[int], gap: str = "  ") -> list[str]:
    """The rows as lines with cells of one width a column; columns in `right` end flush."""
    widths = [max(cell_len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blank = " " * (width - cell_len(cell))
            cells.append(blank + cell if column in right else cell + blank)
        lines.append(gap.join(cells).rstrip())
    return lines


def mix_table(
    scenario: Scenario, pages: Sequence[int], groups: Sequence[Group] | None = None
) -> list[str]:
    """One line a layer: its spec, its page size in bytes, and the groups that hold it.

    Args:
        scenario: The mix.
        pages: Page size of each layer, in order.
        groups: The groups that a planner made; None leaves the column out.
    """
    grouped = groups is not None
    head = ["layer", "kind", "block", "heads", "dim", "dtype", "window", "page"]
    rows = [[*head, "group"] if grouped else head]
    also: list[str] = []
    for (name, spec), page in list(zip(scenario, pages, strict=True))[:_MAX_ROWS]:
        stated = (getattr(spec, field) for field in _COLUMNS)
        row = [
            fit(name, _MAX_NAME),
            look_of(spec.kind)[0],
            *("-" if value is None else f"{value}" for value in stated),
            f"{page:,}" if page else "?",
        ]
        if groups is not None:
            holders = [str(n) for n, group in enumerate(groups, 1) if name in group.layers]
            row.append("+".join(holders) or "none")
        rows.append(row)
        also.append(_other_fields(spec))
    lines = align(rows, frozenset((2, 3, 4, 6, 7, 8)))
    shown = [lines[0]]
    for line, extra in zip(lines[1:], also, strict=True):
        shown.append(line)
        if extra:
            shown.append(f"    with {extra}")
    if len(scenario) > _MAX_ROWS:
        shown.append(f"... and {len(scenario) - _MAX_ROWS} more layers")
    return shown


def _other_fields(spec: LayerSpec) -> str:
    """What the spec sets beside the fields that have a column."""
    return ", ".join(
        f"{name}={printable(str(value))}"
        for name, value in spec_fields(spec).items()
        if name not in _COLUMNS
    )


def page_sizes(scenario: Scenario) -> dict[str, int]:
    """Layer name -> page size in bytes by the reference's rules; 0 if they do not say.

    Raises:
        UsageError: A page is padded to less than it holds.
    """
    if any(isinstance(spec, OpenSpec) for _, spec in scenario):
        return {name: 0 for name, _ in scenario}
    try:
        return mix_page_sizes(scenario, FULL_DIALECT.rules)
    except ValueError as error:
        raise UsageError(f"The mix has no page sizes: {error}.") from None


def picture(scenario: Scenario, width: int) -> list[Text]:
    """The mix as bars: one a layer, as long as its page, grouped as the reference groups it.

    Args:
        scenario: The mix.
        width: Columns to fill; at least 50.
    """
    pages = page_sizes(scenario)
    specs = scenario.specs()
    groups = group_and_unify_kv_cache_specs(specs)
    rows = {
        name: (
            fit(name, max(8, min(_MAX_NAME, width // 4))),
            f"{pages[name]:,}",
            f"{spec.block_size}",
            "-" if spec.sliding_window is None else f"{spec.sliding_window}",
        )
        for name, spec in specs.items()
    }
    heads = ("layer", "page", "block", "window")
    columns = zip(heads, *rows.values(), strict=True)
    widths = [max(cell_len(cell) for cell in column) for column in columns]
    bar = max(_MIN_BAR, width - sum(widths) - 2 * len(widths) - 2)
    largest = max(max(pages.values()), 1)

    def line(cells: Sequence[str], middle: Text) -> Text:
        first = "  " + cells[0] + " " * (widths[0] - cell_len(cells[0]) + 2)
        last = "".join(f"  {cell:>{w}}" for cell, w in zip(cells[1:], widths[1:], strict=True))
        return Text.assemble(first, middle, last)

    lines = [line(heads, Text(" " * bar))]
    for number, group in enumerate(groups or [list(specs)], 1):
        kinds = ", ".join(dict.fromkeys(look_of(specs[name].kind)[0] for name in group))
        count = f"{len(group)} layer{'s' if len(group) > 1 else ''}"
        what = f"group {number}" if groups is not None else "not packed"
        lines.append(Text(f"{what}: {kinds}, {count}", style="bold"))
        for name in group:
            _, letter, style = look_of(specs[name].kind)
            length = max(1, round(bar * pages[name] / largest))
            lines.append(
                line(rows[name], Text.assemble((letter * length, style), " " * (bar - length)))
            )
    legend = Text("")
    for label, letter, style in KIND_LOOKS.values():
        legend.append(letter, style=style).append(f" {label}   ")
    legend.append(f"a full bar is {largest:,} bytes")
    return [*lines, Text(""), legend]
