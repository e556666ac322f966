"""One spec as a function of a source of choices: a page that is split, then fields.

What a spec class of a mix is made of; `builders` makes mixes of them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kvfuzz.pages import FULL_DIALECT, Dialect
from kvfuzz.specs import KINDS, DType, LayerSpec, MLAAttentionSpec, SlidingWindowMLASpec
from kvfuzz.strategies.choices import Choose
from kvfuzz.strategies.deepseek import V4_FORMATS, has_v4, v4_specs
from kvfuzz.strategies.factors import (
    BLOCKS,
    DTYPES,
    HEAD_SIZES,
    HEADS,
    PAGE_SIZES,
    SPLITS,
    WINDOWS,
    split_for,
)
from kvfuzz.strategies.fields import EXTRAS, MISSES, Change, Fields, changes_of, finish

#: Fifth choice of a class: none, one or two fields beyond the plain ones.
_ONE_EXTRA: Final = 17
TWO_EXTRAS: Final = 19
#: Block sizes of loose classes: the usual ones.
_LOOSE_BLOCKS: Final = 5
#: Tokens a stored state of a loose class that is compressed.
_COMPRESSED: Final = 4


class Tables(msgspec.Struct, frozen=True):
    """What depends on the dialect alone.

    `dialect` is kept so that its id, the key under which this is remembered,
    stays its own.
    """

    dialect: Dialect
    extras: dict[str, tuple[Change, ...]]
    misses: dict[str, tuple[Change, ...]]
    pads: bool
    kinds: tuple[str, ...]
    v4: tuple[tuple[LayerSpec, ...], ...]


_tables: dict[int, Tables] = {}


def tables_of(dialect: Dialect) -> Tables:
    """The tables of a dialect, made once."""
    tables = _tables.get(id(dialect))
    if tables is None:
        kinds = tuple(kind for kind in KINDS if kind in dialect.fields)
        if len(_tables) > 63:  # one a target is usual; tests make many
            _tables.clear()
        tables = _tables[id(dialect)] = Tables(
            dialect,
            {kind: changes_of(EXTRAS, kind, dialect) for kind in kinds},
            {kind: changes_of(MISSES, kind, dialect) for kind in kinds},
            all("page_size_padded" in dialect.fields[kind] for kind in kinds),
            kinds,
            tuple(v4_specs(dialect, name) for name in V4_FORMATS) if has_v4(dialect) else (),
        )
    return tables


class SpecClass(msgspec.Struct):
    """A spec class as chosen, before fields beyond the plain ones.

    `window` is None for full MLA; `page` is what its data fill.
    """

    window: int | None
    page: int
    dtype: DType
    split: int
    block: int | None

    def plain(self) -> LayerSpec:
        """Its spec with every other field at its default."""
        (states, heads, head), dtype = split_for(self.page, self.dtype, self.block, self.split)
        if self.window is None:
            return MLAAttentionSpec(
                block_size=states, num_kv_heads=heads, head_size=head, dtype=dtype
            )
        return SlidingWindowMLASpec(
            block_size=states,
            num_kv_heads=heads,
            head_size=head,
            dtype=dtype,
            sliding_window=self.window,
        )

    def changed(self, changes: list[Change], dialect: Dialect, page: int | None) -> LayerSpec:
        """With `changes`, padded to `page` if it is given; without them if that cannot be."""
        spec = self.plain()
        fields: Fields = {
            "block_size": spec.block_size,
            "num_kv_heads": spec.num_kv_heads,
            "head_size": spec.head_size,
            "dtype": spec.dtype,
        }
        if self.window is not None:
            fields["sliding_window"] = self.window
        for change in changes:
            change.apply(fields, self.page)
        changed = finish(spec.kind, fields, dialect, page=page)
        if changed is not None:
            return changed
        if page is None or page == self.page:
            return spec
        return msgspec.structs.replace(spec, page_size_padded=page)


def loose_spec(
    window: int | None, dtype: DType, answer: int, split: int, block: int | None, dialect: Dialect
) -> LayerSpec:
    """A spec whose fields do not follow from a page; compressed about once in three times.

    Args:
        window: Its window in tokens, or None for full MLA.
        dtype: Its dtype.
        answer: From 0 to 23: the head size, and whether it is compressed.
        split: Below SPLITS: the block size, if that is free, and the KV heads.
        block: Its block size, or None.
        dialect: What must be able to express it.
    """
    block = block or BLOCKS[split % _LOOSE_BLOCKS]
    heads = HEADS[split // _LOOSE_BLOCKS % len(HEADS)]
    head = HEAD_SIZES[answer % 8]
    kind = "mla_attention" if window is None else "sliding_window_mla"
    compressed = answer >= 16 and "compress_ratio" in dialect.fields[kind]
    ratio = _COMPRESSED if compressed and block % _COMPRESSED == 0 else 1
    if window is None:
        return MLAAttentionSpec(
            block_size=block,
            num_kv_heads=heads,
            head_size=head,
            dtype=dtype,
            compress_ratio=ratio,
        )
    return SlidingWindowMLASpec(
        block_size=block,
        num_kv_heads=heads,
        head_size=head,
        dtype=dtype,
        compress_ratio=ratio,
        sliding_window=window,
    )


def extras_of(choose: Choose, extras: tuple[Change, ...]) -> list[Change]:
    """None, one or two of the changes `extras`: the fifth choice of a class, and what follows."""
    answer = choose(0, TWO_EXTRAS)
    if answer < _ONE_EXTRA or not extras:
        return []
    last = len(extras) - 1
    return [extras[choose(0, last)] for _ in range(2 if answer == TWO_EXTRAS else 1)]


def build_spec(
    choose: Choose,
    kind: str,
    *,
    dialect: Dialect = FULL_DIALECT,
    page_size: int | None = None,
    dtype: DType | None = None,
    block_size: int | None = None,
    plain: bool = False,
) -> LayerSpec:
    """One valid spec.

    Args:
        choose: The source.
        kind: A key of `kvfuzz.specs.KINDS`.
        dialect: What must be able to express the spec.
        page_size: Bytes that its page must have, or None for any.
        dtype: Its dtype where the page and its other fields leave it free.
        block_size: States a block, likewise.
        plain: Whether to leave every other field at its default.

    Raises:
        ValueError: The dialect lacks the kind, or no spec has such a page.
    """
    tables = tables_of(dialect)
    if kind not in tables.kinds:
        raise ValueError(f"the dialect has no spec class for the kind {kind}")
    page = page_size or PAGE_SIZES[choose(0, len(PAGE_SIZES) - 1)]
    window = None if kind == "mla_attention" else WINDOWS[choose(0, len(WINDOWS) - 1)]
    own = dtype or DTYPES[choose(0, len(DTYPES) - 1)]
    cls = SpecClass(window, page, own, choose(0, SPLITS - 1), block_size)
    extras = [] if plain else extras_of(choose, tables.extras[kind])
    return cls.changed(extras, dialect, page_size) if extras else cls.plain()
