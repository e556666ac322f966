"""A finding's mix as bars, one a layer, in the groups that the planner made.

What the HTML report draws; what is drawn is decided here, how in the template.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from kvfuzz.findings import Finding
from kvfuzz.outcomes import Group
from kvfuzz.reporting.mix import look_of
from kvfuzz.reporting.words import plural
from kvfuzz.specs import LayerSpec, spec_fields

#: Bars of a picture; a mix that has not been shrunk may have thousands of layers.
MAX_BARS = 48
#: The longest bar, in percent of the line; its letter stands behind it.
_FULL = 90.0
_SHORTEST = 0.6
#: Fields that a bar's note always states.
_STATED = ("block_size", "num_kv_heads", "head_size", "dtype", "sliding_window")


class Bar(msgspec.Struct, frozen=True):
    """One layer.

    Attributes:
        name: Its name.
        kind: Spec kind, "" for a layer that is not in the mix.
        label: The kind's short name.
        letter: The kind's letter, "?" for such a layer.
        page: Page size in bytes.
        length: The bar's length in percent.
        note: The spec in words.
        marks: What is special about the layer.
    """

    name: str
    kind: str
    label: str
    letter: str
    page: int
    length: float
    note: str
    marks: tuple[str, ...]


class BarGroup(msgspec.Struct, frozen=True):
    """Layers drawn together; `lost` if they are in the mix and in no group."""

    title: str
    bars: tuple[Bar, ...]
    lost: bool = False


class Picture(msgspec.Struct, frozen=True):
    """A mix drawn; `left_out` bars are not."""

    groups: tuple[BarGroup, ...]
    largest: int
    left_out: int


def _words(field: str) -> str:
    return field.replace("_", " ")


def _note(spec: LayerSpec) -> str:
    said = [f"{_words(f)} {getattr(spec, f)}" for f in _STATED if getattr(spec, f) is not None]
    said += [f"{_words(f)} {v}" for f, v in spec_fields(spec).items() if f not in _STATED]
    return ", ".join(said)


def _title(number: int, pages: Sequence[int]) -> str:
    sizes = sorted(set(pages))
    title = f"Group {number}: {plural(len(pages), 'layer')}"
    if not sizes:
        return title
    shown = ", ".join(f"{size:,}" for size in sizes[:4]) + (", ..." if len(sizes) > 4 else "")
    return f"{title}, {'pages' if len(sizes) > 1 else 'page'} of {shown} bytes"


def picture(finding: Finding) -> Picture:
    """The finding's mix, drawn."""
    specs = finding.scenario.specs()
    pages = dict(zip(specs, finding.pages, strict=True))
    held = Counter(name for group in finding.groups for name in group.layers)
    planned = [page for group in finding.groups for page in group.pages]
    largest = max([*pages.values(), *planned, 1])
    room = MAX_BARS
    # Not all of them: where every layer is concerned, saying so says nothing.
    concerned = set(finding.layers) if len(set(finding.layers)) < len(specs) else set()

    def bar(name: str, page: int) -> Bar:
        spec = specs.get(name)
        marks = []
        if spec is None:
            marks.append("not in the mix")
        elif page != pages[name]:
            marks.append(f"{pages[name]:,} bytes in the mix")
        if held[name] > 1:
            marks.append(f"grouped {held[name]} times")
        if name in concerned:
            marks.append("concerned")
        return Bar(
            name=name,
            kind=spec.kind if spec else "",
            label=look_of(spec.kind)[0] if spec else "unknown kind",
            letter=look_of(spec.kind)[1] if spec else "?",
            page=page,
            length=round(max(_SHORTEST, _FULL * page / largest), 2),
            note=_note(spec) if spec else "",
            marks=tuple(marks),
        )

    def take(group: Group, title: str, *, lost: bool = False) -> BarGroup:
        nonlocal room
        members = list(zip(group.layers, group.pages, strict=True))[:room]
        room -= len(members)
        return BarGroup(title, tuple(bar(name, page) for name, page in members), lost)

    rest = {name: page for name, page in pages.items() if not held[name]}
    outside = Group(layers=tuple(rest), pages=tuple(rest.values()))
    groups = []
    if finding.groups and rest:
        title = f"Lost: {plural(len(rest), 'layer')} of the mix in no group"
        groups.append(take(outside, title, lost=True))
    elif rest:
        groups.append(take(outside, f"No groups were made: {plural(len(rest), 'layer')}"))
    for number, group in enumerate(finding.groups, 1):
        if room:
            groups.append(take(group, _title(number, group.pages)))
    bars = len(rest) + len(planned)
    return Picture(tuple(groups), largest, bars - sum(len(group.bars) for group in groups))
