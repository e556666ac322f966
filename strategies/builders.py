"""Specs and mixes as functions of a source of choices.

Page size first: a mix has one base page size, and each of its spec classes
splits that page, a multiple of it or a near miss of it. Then a few classes
and a pattern of layers, not layer by layer. Drawn independently, pages would
be equal in less than one mix of a hundred, and Hypothesis could not lower one
of two equal pages while shrinking.

Every shape reads its choices in the same order, five a class, so that while
shrinking a class can be cut out and a mix can change into a simpler shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from kvfuzz.pages import FULL_DIALECT, Dialect
from kvfuzz.specs import LayerSpec, MLAAttentionSpec, Scenario, SlidingWindowMLASpec
from kvfuzz.strategies.choices import Choose, SeededChoices
from kvfuzz.strategies.classes import (
    TWO_EXTRAS,
    SpecClass,
    Tables,
    build_spec,
    extras_of,
    loose_spec,
    tables_of,
)
from kvfuzz.strategies.factors import DTYPES, PAGE_SIZES, SPLITS, WINDOWS
from kvfuzz.strategies.layers import MOST_LAYERS, Layers, lay_out

Shape: TypeAlias = Literal["any", "uniform", "mixed", "near-miss", "deepseek-v4"]

#: Every shape, "any" first.
SHAPES: Final[tuple[Shape, ...]] = get_args(Shape)

_V4: Final = "deepseek-v4"
#: Fields drawn for themselves, and not from a page: what several fields must
#: meet for, page or not, is seldom met otherwise. Promises nothing.
_LOOSE: Final = "loose"
#: Once in so many times and one, a cache that no class asked for is left out:
#: about half of the mixes have all seven.
_V4_KEPT: Final = 5

#: Drawings of classes that the fast source has in hand at once.
POOL: Final = 64
#: One drawing in so many is a loose one, as is about one mix of any shape.
_EVERY_LOOSE: Final = 3

#: Shapes that "any" is made of, by their shares; simplest first. "free" has
#: no promise: one layer, one kind, no full MLA layer, anything.
_ANY: Final = (
    *("uniform",) * 15,
    *("mixed",) * 9,
    *("near-miss",) * 6,
    *("free",) * 6,
    *(_V4,) * 2,
    *(_LOOSE,) * 18,
)

_LOOSE_ONES: Final = (_ANY.index(_LOOSE), len(_ANY) - 1)
_OTHERS: Final = (0, _ANY.index(_LOOSE) - 1)

#: The most spec classes of a mix.
_MOST_CLASSES: Final = 6

#: First choice of a class: below _STOP no further class, then full MLA, then
#: a window each, then the window of the last class that has one: models have
#: one window in many layers. A class that must be there reads "no further" as full MLA.
_STOP: Final = 5
#: The same of a loose mix, whose classes are many: they have little in common by design.
_STOP_LOOSE: Final = 2
_FIRST_WINDOW: Final = 20
_FIRST_AGAIN: Final = _FIRST_WINDOW + len(WINDOWS)
_LAST_KIND: Final = _FIRST_AGAIN + 11

#: States a block that the full MLA classes and the windows have in common;
#: None for none. Blocks are seldom equal by chance, and planners need them so.
_TIES: Final[tuple[tuple[int | None, int | None], ...]] = (
    (16, 16),
    (64, 64),
    (256, 256),
    (16, None),
    (64, None),
    (128, None),
    *((None, None),) * 5,
)

#: Second choice of a class: how its page relates to the base. Up to
#: _RELATIONS; the lower half says "equal" in most shapes.
_RELATIONS: Final = 24
_RATIOS: Final = (1,) * 8 + (2,) * 3 + (3,) * 2 + (4,) * 2 + (8, 5, 7) + (2, 3, 4, 8, 16, 12)
_FIRST_MISS: Final = 12
_FIRST_PADDED: Final = 18


class _Relation(msgspec.Struct):
    """How a class's page relates to the base page.

    Attributes:
        data: Bytes that its data fill, before any change of fields.
        page: Bytes that its page must have, or None for any.
        miss: Which of the misses makes it differ, or None.
    """

    data: int
    page: int | None
    miss: int | None = None


def _relation(shape: str, answer: int, base: int, misses: int, *, pads: bool) -> _Relation:
    """What an answer below `_RELATIONS` says in a shape; 0 is always "equal"."""
    if shape == _LOOSE:
        return _Relation(base, None)
    if shape == "uniform":
        if answer < _FIRST_PADDED or not pads:
            return _Relation(base, base)
        return _Relation(max(1, base // 2 if answer % 2 else base - base // 4), base)
    first_miss = _FIRST_PADDED if shape == "free" else _FIRST_MISS
    if shape == "near-miss" or (shape == "free" and answer >= first_miss):
        if answer < first_miss:
            return _Relation(base, base)
        return _Relation(base, None, (answer - first_miss) * misses // (_RELATIONS - first_miss))
    if shape == "mixed" and answer >= _FIRST_PADDED and pads:
        page = base * (1 + answer % 2)
        return _Relation(max(1, page - page // 4), page)
    page = base * _RATIOS[answer]
    return _Relation(page, None if shape == "free" else page)


def _window(
    answer: int, kinds: tuple[str, ...], other_than: SpecClass | None, last: int | None
) -> int | None:
    """The window that the first choice of a class says, or None for full MLA.

    Args:
        answer: The choice.
        kinds: Kinds that the dialect has.
        other_than: A class whose kind it must not have, or None.
        last: The window of the last class that has one, or None.
    """
    if answer >= _FIRST_AGAIN:
        answer = _FIRST_WINDOW + (0 if last is None else WINDOWS.index(last))
    if len(kinds) == 1:
        return None if kinds[0] == "mla_attention" else WINDOWS[answer % len(WINDOWS)]
    window = None if answer < _FIRST_WINDOW else WINDOWS[answer - _FIRST_WINDOW]
    if other_than is not None and (window is None) == (other_than.window is None):
        return WINDOWS[answer % len(WINDOWS)] if window is None else None
    return window


def _classes(choose: Choose, tables: Tables, shape: str, most: int) -> list[LayerSpec]:
    """The spec classes of a mix of any shape but "deepseek-v4"."""
    dialect = tables.dialect
    loose = shape == _LOOSE
    free = shape == "free" or loose
    stop = _STOP_LOOSE if loose else _STOP
    base = PAGE_SIZES[choose(0, len(PAGE_SIZES) - 1)]
    tie = choose(0, len(_TIES) - 1)
    # A loose class has a block of its own, but for the simplest of mixes.
    mla_block, window_block = _TIES[len(_TIES) - 1 if loose and tie else tie]
    specs: list[LayerSpec] = []
    differ = shape not in ("mixed", "near-miss")
    cls: SpecClass | None = None
    last: int | None = None
    while True:
        # Asked also when there can be no further class: a mix that a class
        # was cut out of has to read its choices in the same places.
        first = choose(0, _LAST_KIND)
        if len(specs) == most or (first < stop and len(specs) >= (1 if free else 2)):
            break
        # Both kinds are promised, so the second class has not the first one's.
        other_than = cls if len(specs) == 1 and not free else None
        window = _window(first, tables.kinds, other_than, last)
        last = window or last
        kind = "mla_attention" if window is None else "sliding_window_mla"
        misses = tables.misses[kind]
        # The first class has the base page itself, but for padding.
        answer = choose(0, _RELATIONS - 1)
        if not specs and shape != "uniform" and not loose:
            answer = 0
        dtype = DTYPES[choose(0, len(DTYPES) - 1)]
        split = choose(0, SPLITS - 1)
        extras = extras_of(choose, tables.extras[kind])
        block = mla_block if window is None else window_block
        if loose and not extras:
            specs.append(loose_spec(window, dtype, answer, split, block, dialect))
            continue
        relation = _relation(shape, answer, base, len(misses), pads=tables.pads)
        cls = SpecClass(window, relation.data, dtype, split, block)
        if relation.miss is not None:
            differ = True
            specs.append(cls.changed([misses[relation.miss]], dialect, None))
            continue
        differ = differ or (relation.page or relation.data) != base
        if extras or relation.data != (relation.page or relation.data):
            specs.append(cls.changed(extras, dialect, relation.page))
        else:
            specs.append(cls.plain())
    if not differ and cls is not None:
        if shape == "mixed":
            cls.page = 2 * base
            specs[-1] = cls.plain()
        else:
            specs[-1] = cls.changed([misses[0]], dialect, None)
    return specs


def _v4_classes(choose: Choose, tables: Tables, most: int) -> list[LayerSpec]:
    """Some or all of DeepSeek V4's caches.

    Choices are read in the places where `_classes` reads them, also those that
    say nothing here: so a mix of V4's shrinks into a plain one where it can.
    """
    answer = choose(0, len(PAGE_SIZES) - 1)
    every = tables.v4[answer * len(tables.v4) // len(PAGE_SIZES)]
    choose(0, len(_TIES) - 1)
    specs: list[LayerSpec] = []
    for place in range(_MOST_CLASSES + 1):
        first = choose(0, _LAST_KIND)
        if place == _MOST_CLASSES or (first < _STOP and specs):
            break
        cls = MLAAttentionSpec if first < _FIRST_WINDOW else SlidingWindowMLASpec
        own = [spec for spec in every if type(spec) is cls]
        specs.append(own[choose(0, _RELATIONS - 1) * len(own) // _RELATIONS])
        choose(0, len(DTYPES) - 1)
        choose(0, SPLITS - 1)
        choose(0, TWO_EXTRAS)
    # Asked one by one and of all, so that each can be left out while shrinking.
    specs += [spec for spec in every if choose(0, _V4_KEPT)]
    return list(dict.fromkeys(specs))[:most]


def _disturb(choose: Choose, layers: Layers, dialect: Dialect) -> None:
    """Leave a mix of DeepSeek V4's as it is, make its last layer odd, or a draft model's."""
    name, spec = layers[-1]
    match choose(0, 7):
        case 5:
            layers[-1] = name, msgspec.structs.replace(spec, alignment=None)
        case 6:
            layers[-1] = name, msgspec.structs.replace(spec, block_size=2 * spec.block_size)
        case 7:
            kind = "mla_attention" if choose(0, 1) == 0 else "sliding_window_mla"
            layers[-1] = name, build_spec(choose, kind, dialect=dialect)
        case _:
            pass


class Drawing(msgspec.Struct, frozen=True):
    """The first half of a mix: its spec classes, not laid out yet.

    Attributes:
        specs: A spec a class.
        disturb: Changes the layers once they are laid out, or None.
        dialect: What can express them.
        max_layers: The most layers that they may be laid out as.
    """

    specs: list[LayerSpec]
    disturb: Callable[[Choose, Layers, Dialect], None] | None
    dialect: Dialect
    max_layers: int

    def lay_out(self, choose: Choose) -> Scenario:
        """A mix of these classes: the second half, whose choices follow those of the first."""
        layers = lay_out(choose, self.specs, self.max_layers)
        if self.disturb is not None:
            self.disturb(choose, layers, self.dialect)
        return Scenario(tuple(layers))


def draw_classes(
    choose: Choose,
    *,
    dialect: Dialect = FULL_DIALECT,
    shape: Shape = "any",
    max_layers: int = MOST_LAYERS,
    among: tuple[int, int] = (0, len(_ANY) - 1),
) -> Drawing:
    """The spec classes of one mix; arguments and errors as for `build_mix`.

    `among` is the part of _ANY, first and last, that "any" is drawn from.
    """
    tables = tables_of(dialect)
    lacking = _why_not(tables, shape, max_layers)
    if lacking:
        raise ValueError(lacking)
    promise: str = shape
    if shape == "any":
        promise = _ANY[choose(*among)]
        if max_layers == 1 or len(tables.kinds) == 1 or (promise == _V4 and not tables.v4):
            promise = "free"
    if promise == _V4:
        return Drawing(_v4_classes(choose, tables, max_layers), _disturb, dialect, max_layers)
    specs = _classes(choose, tables, promise, min(_MOST_CLASSES, max_layers))
    return Drawing(specs, None, dialect, max_layers)


def build_mix(
    choose: Choose,
    *,
    dialect: Dialect = FULL_DIALECT,
    shape: Shape = "any",
    max_layers: int = MOST_LAYERS,
) -> Scenario:
    """One mix of valid specs, with layers named "layers.0", "layers.1", ...

    Args:
        choose: The source.
        dialect: What must be able to express each spec.
        shape: "uniform" has one page size and both kinds; "mixed" has both
            kinds and at least two page sizes; "near-miss" has both kinds and
            page sizes that are equal but for one class or a few; "deepseek-v4"
            has that model's caches, whole or disturbed; "any" has all of these
            and mixes that promise nothing.
        max_layers: The largest number of layers, up to 64.

    Raises:
        ValueError: No such mix exists.
    """
    drawing = draw_classes(choose, dialect=dialect, shape=shape, max_layers=max_layers)
    return drawing.lay_out(choose)


def stream(
    choices: SeededChoices,
    *,
    dialect: Dialect = FULL_DIALECT,
    shape: Shape = "any",
    max_layers: int = MOST_LAYERS,
    layouts: int = 1,
    record: bool = False,
) -> Iterator[tuple[list[int], Scenario]]:
    """Mixes without end from the fast source.

    Drawing classes and translating them for a planner takes as long as a call
    of it; another layout of the same classes takes next to nothing. Layouts
    of one drawing are `POOL` mixes apart, and no two of them are equal.

    Args:
        choices: The source.
        dialect: As for `build_mix`, and so the next two.
        shape: See there.
        max_layers: See there.
        layouts: Mixes that are made of one drawing of classes, at most.
        record: Whether to note choices.

    Yields:
        The choices from which `build_mix` makes the mix, if they are to be
        noted, and the mix.
    """
    pool: list[tuple[Drawing, list[int], list[Scenario]] | None] = [None] * POOL
    for turn in count():
        place = turn % POOL
        loose = place % _EVERY_LOOSE == _EVERY_LOOSE - 1
        kept = pool[place]
        if kept is None or turn // POOL % layouts == 0:
            if record:
                choices.record()
            drawing = draw_classes(
                choices.choose,
                dialect=dialect,
                shape=shape,
                max_layers=max_layers,
                among=_LOOSE_ONES if loose else _OTHERS,
            )
            kept = pool[place] = (drawing, choices.recorded, [])
        drawing, drawn, made = kept
        if record:
            choices.record()
        mix = drawing.lay_out(choices.choose)
        if mix not in made:
            made.append(mix)
            yield drawn + choices.recorded, mix


def _why_not(tables: Tables, shape: str, max_layers: int) -> str | None:
    if shape not in SHAPES:
        return f"no shape {shape!r}; the shapes are {', '.join(SHAPES)}"
    if not 1 <= max_layers <= MOST_LAYERS:
        return f"max_layers must be from 1 to {MOST_LAYERS}, not {max_layers}"
    if not tables.kinds:
        return "the dialect has no spec class at all"
    if shape == _V4:
        return None if tables.v4 else "the dialect has no fields for DeepSeek V4's caches"
    if shape != "any" and max_layers < 2:
        return f"a {shape} mix has at least 2 layers"
    if shape != "any" and len(tables.kinds) < 2:
        return f"a {shape} mix has both kinds, and the dialect lacks one"
    return None


def why_no_mix(dialect: Dialect, shape: str, max_layers: int) -> str | None:
    """Why `build_mix` would raise for these arguments, or None if it would not."""
    return _why_not(tables_of(dialect), shape, max_layers)
