"""What reproductions of `groups` and of `config` assert for rules over any call."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from kvfuzz.findings import Finding
from kvfuzz.invariants.conduct import SETTING
from kvfuzz.pages import Dialect
from kvfuzz.reproduction.engine_helpers import planner
from kvfuzz.reproduction.specs import names_list
from kvfuzz.reproduction.text import quoted
from kvfuzz.specs import LayerSpec

#: How a plan is told of that cannot be read.
UNUSABLE: Final = "UnusableAnswer "

_REFUSALS: Final = "(ValueError, NotImplementedError)"
_SHOULD_SAY: Final = """
    try:
        {call}
    except {refusals} as refusal:
        why = str(refusal)
        setting = r"{setting}"
        names = {names}
        assert re.search(setting, why) or any(name in why for name in names)
"""


class Asked(NamedTuple):
    """A finding, and how its test calls the planner.

    Attributes:
        finding: The finding.
        dialect: What its planner can be told.
        call: The call, on a new config.
        specs: What holds the specs that are handed over.
    """

    finding: Finding
    dialect: Dialect
    call: str
    specs: str

    @property
    def layer(self) -> str:
        """The first layer concerned, as a literal."""
        return quoted(self.finding.layers[0])

    @property
    def drafts(self) -> str:
        """A statement that names the draft model's layers."""
        return f"    drafts = {names_list(self.finding.scenario.draft_names(), 13)}\n"

    def spec(self, layer: str) -> LayerSpec:
        """The spec that was given for a layer."""
        return self.finding.scenario.specs()[layer]

    def on_config(self, memory: str = "memory") -> str:
        """The call on the config and memory that variables hold."""
        return f"{planner(self.dialect)}(config, ranks, {memory})"


#: Gives the test's statements after the specs; None if a symptom has no form.
Check = Callable[[Asked], str | None]


def memory_of(finding: Finding) -> str:
    """The memory of each rank, as an expression."""
    if finding.scenario.config.spare_blocks is not None:
        return "memory_of(ranks)"
    count = max(finding.scenario.ranks, default=0) + 1
    return "[1 << 60]" if count == 1 else f"[1 << 60] * {count}"


def kept_tokens(finding: Finding) -> str:
    """Tokens that a layer must have blocks for, as its rule said; "" if it did not."""
    said = re.fullmatch(r"at least \d+, for (\d+) tokens", finding.expected)
    return said[1] if said else ""


def plain_call(asked: Asked) -> str:
    """The call and no more: that it does not return is what is wrong."""
    return f"\n    {asked.call}\n"


def _plan_or_refusal(asked: Asked) -> str:
    if not asked.finding.got.startswith(UNUSABLE):
        return plain_call(asked)
    configs = f"\n    configs = {asked.call}" if asked.specs == "ranks" else ""
    groups = "itertools.chain(*(made.kv_cache_groups for made in configs))"
    return f"""{configs}
    for group in {groups if configs else asked.call}:
        assert group.kv_cache_spec.page_size_bytes
        assert blocks_of(group.kv_cache_spec, engine_config())
"""


def _says_why(asked: Asked) -> str:
    names = "itertools.chain(*ranks)" if asked.specs == "ranks" else asked.specs
    return _SHOULD_SAY.format(
        call=asked.call, refusals=_REFUSALS, setting=SETTING.pattern, names=names
    )


def _pure(asked: Asked) -> str:
    same = "    assert list(kv_cache_specs.items()) == list(before.items())\n"
    if asked.specs == "ranks":
        same = """\
    for specs, given in zip(ranks, before):
        assert list(specs.items()) == list(given.items())
"""
    return f"""
    before = copy.deepcopy({asked.specs})
    with contextlib.suppress{_REFUSALS}:
        {asked.call}
{same}"""


def _deterministic(asked: Asked) -> str:
    return f"""
    def answer():
        try:
            return {asked.call}
        except {_REFUSALS} as refusal:
            return str(refusal)

    first = answer()
    assert all(answer() == first for _ in range(9))
"""


#: Invariant -> what makes its test's statements, on both surfaces.
BOTH: Final[dict[str, Check]] = {
    "plan-or-refusal": _plan_or_refusal,
    "refusal-says-why": _says_why,
    "pure": _pure,
    "deterministic": _deterministic,
}
