"""The values that specs are made of, and how a page size splits into them.

A page size is chosen first and then split into element size, KV heads, head
size and states a block, so that layers that look different have pages of one
size as often as a test needs. Every table is in order of simplicity: a
builder's low answers give what people like to read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kvfuzz.specs import DTYPE_BYTES, DType

#: Every dtype, simplest first.
DTYPES: Final[tuple[DType, ...]] = (
    "float32",
    "bfloat16",
    "float16",
    "uint8",
    "int8",
    "float8_e4m3fn",
    "float8_e5m2",
)

#: States a block: the usual ones, then small, then such as no kernel likes.
BLOCKS: Final = (16, 32, 64, 128, 256, 8, 4, 2, 1, 48, 24, 12, 3, 5, 7)

#: KV heads on a rank. MLA has one; planners do not know that.
HEADS: Final = (1, 2, 4, 8, 3, 16, 5, 32, 128)

#: Elements of a latent vector that models have: a plain one, DeepSeek's
#: (512 + 64 rotary, 512), its indexers' (128, with scales 132), and others.
HEAD_SIZES: Final = (64, 576, 512, 128, 132, 1024, 192, 256, 320, 96, 80, 656, 584, 1, 2, 3, 2048)

#: Windows in tokens. A planner compares them with each other and with blocks.
WINDOWS: Final = (128, 128, 128, 64, 256, 1024, 512, 8, 127, 129, 1, 4096)

#: Bytes of a page: a plain one, those of models, powers of two, small ones
#: and products of odd factors.
PAGE_SIZES: Final = (
    4096,
    36864,  # 16 x 576 float32
    16384,
    65536,
    37440,  # 64 records of DeepSeek V4, aligned to 576
    8192,
    73728,
    18432,
    41984,  # 64 records of DeepSeek V3
    8448,  # 64 x 132: a DeepSeek V4 indexer
    147456,
    32768,
    2304,
    1024,
    9216,
    512,
    64,
    48,
    20160,  # 2^6 x 3^2 x 5 x 7
    1155,  # 3 x 5 x 7 x 11
    12,
    1,
    1048576,
    16777216,
)

#: The longest table of splits: the highest answer that picks one, plus one.
SPLITS: Final = 48

#: Beyond this a head is no longer credible; see `splits` for what has no other.
_LARGEST_HEAD: Final = 16384
#: What specs.Count allows.
_LARGEST: Final = 2**24

#: (states a block, KV heads, head size)
Split = tuple[int, int, int]


@lru_cache(maxsize=16384)
def splits(page: int, element: int, block: int | None) -> tuple[Split, ...]:
    """Ways to fill `page` bytes with elements of `element` bytes, simplest first.

    Args:
        page: Bytes of the page.
        element: Bytes of an element.
        block: States a block that is wanted, or None for any.

    Returns:
        At most `SPLITS` splits, exact ones all. Empty if there is none.
    """
    elements, rest = divmod(page, element)
    if rest:
        return ()
    found = []
    for i, states in enumerate(BLOCKS if block is None else (block,)):
        for j, heads in enumerate(HEADS):
            head, rest = divmod(elements, states * heads)
            if head and not rest and head <= _LARGEST_HEAD:
                # More heads are stranger than another block size.
                found.append((i + 3 * j, states, heads, head))
    if not found and block is None and elements <= _LARGEST:
        return ((1, 1, elements),)
    found.sort(key=lambda row: row[0])
    return tuple((states, heads, head) for _, states, heads, head in found[:SPLITS])


def split_for(page: int, dtype: DType, block: int | None, answer: int) -> tuple[Split, DType]:
    """The split of `page` that an answer below `SPLITS` picks, and its dtype.

    The block size gives way if it does not fit, then the dtype. The answer is
    scaled to the table, so that the number of choices never depends on the
    page, and 0 is always the simplest split.

    Raises:
        ValueError: No split of the page exists.
    """
    element = DTYPE_BYTES[dtype]
    table = splits(page, element, block)
    if not table:
        table = splits(page, element, None)
        if not table:
            # Not uint8, the special case of many a planner: what fails for
            # uint8 alone must not shrink into an odd page instead.
            dtype = "int8"
            table = splits(page, 1, block) or splits(page, 1, None)
            if not table:
                raise ValueError(f"no spec has a page of {page} bytes")
    return table[answer * len(table) // SPLITS], dtype
