"""What an engine is configured with, as far as its planner reads it.

A release has more or fewer of these settings; what a target lacks is not
expressible there. Nothing here knows how a release spells them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

#: Far above any model's context, so that arithmetic stays small.
Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**31)]

MambaCacheMode = Literal["none", "align", "all"]
SpeculativeMethod = Literal["eagle", "mtp"]


class PlannerConfig(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    repr_omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
    cache_hash=True,
):
    """Settings that a planner plans by. The defaults are those of a plain engine.

    Attributes:
        hybrid_manager: Whether layers of several kinds keep their own
            allocation; False is vLLM's --disable-hybrid-kv-cache-manager.
        layout: Name of the physical layout, such as "BLHNC"; None is the
            target's first, or that of a release that has no choice.
        max_model_len: Tokens of the longest request.
        auto_fit: Whether the planner may shorten that to what fits.
        max_num_batched_tokens: Tokens of one step.
        concurrent_batches: Steps that are in flight at once: 2 where an
            engine schedules one while another runs.
        decode_context_parallel_size: Ranks that share a sequence's tokens.
        num_gpu_blocks_override: Blocks that are allocated whatever fits, or None.
        mamba_cache_mode: Which states of a sequence are kept.
        speculative_method: Kind of draft model, or None.
        num_speculative_tokens: Tokens that it drafts a step.
        spare_blocks: Blocks of memory beyond those that one longest request
            and the null block take; None is far more than enough.
        spare_bytes: Bytes beyond that.
    """

    hybrid_manager: bool = True
    layout: Annotated[str, msgspec.Meta(max_length=16, pattern=r"\A[A-Z]*\Z")] | None = None
    max_model_len: Tokens = 4096
    auto_fit: bool = False
    max_num_batched_tokens: Tokens = 2048
    concurrent_batches: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    decode_context_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    num_gpu_blocks_override: Annotated[int, msgspec.Meta(ge=0, le=2**31)] | None = None
    mamba_cache_mode: MambaCacheMode = "none"
    speculative_method: SpeculativeMethod | None = None
    num_speculative_tokens: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    spare_blocks: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31)] | None = None
    spare_bytes: Annotated[int, msgspec.Meta(ge=-(2**40), le=2**40)] = 0

    def in_plenty(self) -> PlannerConfig:
        """The same with far more memory than is needed, and no number of blocks set."""
        return msgspec.structs.replace(
            self, num_gpu_blocks_override=None, spare_blocks=None, spare_bytes=0
        )

    def memory(self, needed: int, block: int) -> int:
        """Bytes of a rank that has what is spare beside `needed` blocks of `block` bytes each."""
        assert self.spare_blocks is not None
        blocks = needed + 1 + self.spare_blocks  # one is the null block
        return max(0, blocks * block + self.spare_bytes)


PLAIN_CONFIG = PlannerConfig()
