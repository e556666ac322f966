"""The last pass over a shrunk mix: what Hypothesis cannot take away, taken away by hand.

Hypothesis shrinks the choices from which a mix was built. A layer in the
middle of a pattern, or a field that came with others, may have no choice of
its own; here each is tried for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from kvfuzz.invariants import Violation
from kvfuzz.pages import DEFAULTS, Dialect
from kvfuzz.planner_config import PLAIN_CONFIG, PlannerConfig
from kvfuzz.specs import LayerSpec, OpenSpec, Scenario, open_spec, spec_fields
from kvfuzz.strategies import constraints

#: The violation sought, if a scenario has it.
Broken = Callable[[Scenario], Violation | None]


def _plainer(spec: LayerSpec, dialect: Dialect) -> Iterator[LayerSpec]:
    """Valid specs with one field of `spec` at its default."""
    if isinstance(spec, OpenSpec):
        # Whether it is valid, the planner's own class will say.
        for name in _optional(spec, dialect):
            yield open_spec(spec.kind, {n: v for n, v in spec.fields if n != name})
        return
    for name, default in DEFAULTS[spec.kind].items():
        if default is not msgspec.NODEFAULT and getattr(spec, name) != default:
            plainer = msgspec.structs.replace(spec, **{name: default})
            if not constraints.broken(plainer, dialect):
                yield plainer


def _optional(spec: OpenSpec, dialect: Dialect) -> list[str]:
    """The given fields that need not be given."""
    forms = dialect.catalogue[spec.kind].fields
    return [name for name, _ in spec.fields if not forms[name].required]


def _smaller(scenario: Scenario, dialect: Dialect) -> Iterator[Scenario]:
    """Scenarios that are one step simpler: a spec or a layer less, or a setting at its default."""
    specs = [spec for _, spec in scenario]
    places = range(len(specs))
    # All layers of a spec first: where each must occur twice, one less is no way down.
    for spec in dict.fromkeys(specs):
        if others := [place for place in places if specs[place] != spec]:
            yield scenario.taking(others).renamed()
    for number in reversed(places):
        if len(specs) > 1:
            yield scenario.taking([place for place in places if place != number]).renamed()
    yield from _plainer_engine(scenario)
    for spec in dict.fromkeys(specs):
        for plainer in _plainer(spec, dialect):
            yield scenario.respecced([plainer if other == spec else other for other in specs])


def _plainer_engine(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with one setting of the engine at its default."""
    if scenario.ranks:
        yield msgspec.structs.replace(scenario, ranks=())
    if scenario.drafts:
        yield msgspec.structs.replace(scenario, drafts=0)
    for field in msgspec.structs.fields(PlannerConfig):
        if getattr(scenario.config, field.name) != field.default:
            config = msgspec.structs.replace(scenario.config, **{field.name: field.default})
            yield msgspec.structs.replace(scenario, config=config)


def complexity(scenario: Scenario) -> tuple[int, int, int]:
    """Orders scenarios by what a reader has to take in: layers, distinct specs, text."""
    specs = {spec for _, spec in scenario}
    text = sum(len(msgspec.json.encode(spec)) for spec in specs)
    engine = msgspec.json.encode((scenario.config, scenario.drafts, scenario.ranks))
    return len(scenario), len(specs), text + len(engine)


def is_plain(scenario: Scenario, dialect: Dialect) -> bool:
    """Whether every field and setting that has a default is at it."""
    if scenario.config != PLAIN_CONFIG or scenario.drafts or scenario.ranks:
        return False
    return not any(
        _optional(spec, dialect)
        if isinstance(spec, OpenSpec)
        else spec_fields(spec).keys() - _required(spec.kind)
        for _, spec in scenario
    )


def _required(kind: str) -> set[str]:
    return {name for name, default in DEFAULTS[kind].items() if default is msgspec.NODEFAULT}


def simplified(scenario: Scenario, broken: Broken, dialect: Dialect) -> Scenario:
    """The scenario after every such step that keeps it broken; it may be the same."""
    steps = _smaller(scenario, dialect)
    while (candidate := next(steps, None)) is not None:
        if broken(candidate) is not None:
            scenario = candidate
            steps = _smaller(scenario, dialect)
    return scenario
