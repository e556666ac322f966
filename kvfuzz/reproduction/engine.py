"""Reproductions of the surfaces `groups` and `config`: a config, layers' specs, one assertion."""

from __future__ import annotations

import re
from collections import defaultdict

from kvfuzz.findings import Finding
from kvfuzz.pages import Dialect
from kvfuzz.reproduction.config_checks import CONFIG_CHECKS
from kvfuzz.reproduction.engine_checks import Asked, memory_of
from kvfuzz.reproduction.engine_helpers import helpers, planner
from kvfuzz.reproduction.group_checks import GROUP_CHECKS
from kvfuzz.reproduction.specs import call, class_names, mapping, variables
from kvfuzz.reproduction.text import LINE, beginning, enclosed, opening
from kvfuzz.specs import OpenSpec

#: Surface -> invariant -> what makes its test's statements.
CHECKS = {"groups": GROUP_CHECKS, "config": CONFIG_CHECKS}

_INTERFACE = "vllm.v1.kv_cache_interface"
#: Of the standard library, those that a test may use.
_STANDARD = ("contextlib", "copy", "itertools", "math", "re")


def engine_reproduction(finding: Finding, dialect: Dialect) -> str | None:
    """The text of a pytest file that shows the finding; None if its invariant has no form.

    `optimized-agrees` has none: what it is about is how an interpreter was started.

    Args:
        finding: A finding of one of these surfaces.
        dialect: What its target can be told, which has the specs of the mix.
    """
    check = CHECKS[finding.surface].get(finding.invariant)
    foreign = finding.layers and not finding.scenario.specs().keys() >= {*finding.layers}
    if check is None or (foreign and finding.invariant != "partition"):
        return None
    if finding.surface == "groups":
        specs, planned = "kv_cache_specs", "get_kv_cache_groups(engine_config(), kv_cache_specs)"
    else:
        specs = "ranks"
        planned = f"{planner(dialect)}(engine_config(), ranks, {memory_of(finding)})"
    statements = check(Asked(finding, dialect, planned, specs))
    if statements is None:
        return None
    layers, classes = _layers(finding, dialect)
    test = beginning(finding) + layers + statements.removeprefix("\n")
    body = f"{helpers(test, finding.scenario.config, dialect)}{test}"
    return f"{opening(finding)}{_imports(body, classes, dialect)}\n\n{body}"


def _layers(finding: Finding, dialect: Dialect) -> tuple[str, set[str]]:
    """Statements that make the layers' specs, and the classes that they name."""
    scenario = finding.scenario
    mix = [(name, spec) for name, spec in scenario if isinstance(spec, OpenSpec)]
    assert len(mix) == len(scenario)
    catalogue = dialect.catalogue
    drafts = frozenset(scenario.draft_names())
    named = variables(mix, drafts, catalogue)
    keys = [(spec, (spec, name in drafts) in named and name in drafts) for name, spec in mix]
    text = ""
    made_by = {}
    for key, variable in named.items():
        spec, marked = key
        marks = {"is_draft": True} if marked else {}
        # In an engine each layer has a spec of its own.
        often = keys.count(key) > 1
        name = "new_" + re.sub(r"_spec(?=_\d+$|$)", "", variable) if often else variable
        made = call(spec, catalogue[spec.kind], 7 + len(name), often=often, **marks)
        text += f"    {name} = {made}\n"
        made_by[key] = f"{name}()" if often else name
    layers = [(name, made_by[key]) for (name, _), key in zip(mix, keys, strict=True)]
    if finding.surface == "groups":
        text += f"    kv_cache_specs = {mapping(layers, 21)}\n"
    else:
        ranks: list[list[tuple[str, str]]] = [[] for _ in range(max(scenario.ranks, default=0) + 1)]
        for layer, rank in zip(layers, scenario.ranks or (0,) * len(layers), strict=True):
            ranks[rank].append(layer)
        made = mapping(ranks[0], 13)
        if len(ranks) > 1 or "\n" in made:
            made = "".join(f"\n        {mapping(rank, 9, 8)}," for rank in ranks) + "\n    "
        text += f"    ranks = [{made}]\n"
    return text, class_names([spec for _, spec in mix], catalogue)


def _imports(body: str, classes: set[str], dialect: Dialect) -> str:
    """The imports of what stands in the body."""
    standard = [f"import {m}\n" for m in _STANDARD if re.search(rf"(?<![\w.]){m}\.\w", body)]
    if "partial(" in body:
        standard.append("from functools import partial\n")
    if "SimpleNamespace(" in body:
        standard.append("from types import SimpleNamespace\n")
    names = defaultdict(set, {_INTERFACE: set(classes)})
    for function, module in dialect.functions.items():
        if f"{function}(" in body:
            names[module].add(function)
    for name, used in (("KVCacheLayout", "["), ("get_kv_cache_spec_kind", "(")):
        if f"{name}{used}" in body:
            names[_INTERFACE].add(name)
    own = "".join(_import(module, sorted(names[module], key=_place)) for module in sorted(names))
    torch = "import torch\n\n" if "torch." in body else ""
    if standard:
        standard.append("\n")
    return f"{''.join(standard)}{torch}{own}"


def _place(name: str) -> tuple[bool, str]:
    """Classes before functions, as import sorters have it."""
    return name[0].islower(), name


def _import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) > LINE:
        line = enclosed(f"from {module} import (", names, ")", 0, 0)
    return f"{line}\n"
