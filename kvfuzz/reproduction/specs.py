"""Open specs as Python source, and mixes of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from kvfuzz.catalogue import Catalogue, FieldForm, KindForm
from kvfuzz.reproduction.text import enclosed, quoted
from kvfuzz.specs import OpenSpec

#: A layer name that ends in a number, and can stand in an f-string as it is.
_NUMBERED: Final = re.compile(r"([A-Za-z_.]*?)(0|[1-9][0-9]*)")
#: Layers that are worth a comprehension.
_MANY: Final = 3


def call(
    spec: OpenSpec,
    kind: KindForm,
    before: int,
    indent: int = 4,
    *,
    often: bool = False,
    **marks: bool,
) -> str:
    """The call of the spec's class: what is given, and these marks.

    Args:
        spec: The spec.
        kind: Its class.
        before: Columns of its line that stand before it, and after it.
        indent: Columns by which its statement is indented.
        often: Whether it is to be called later, and once for each layer.
        marks: Further fields to set.
    """
    fields = {**dict(spec.fields), **marks}
    given = [f"{name}={_value(fields[name], kind.fields[name])}" for name in sorted(fields)]
    if often:
        return enclosed("partial(", [kind.name, *given], ")", before, indent)
    return enclosed(f"{kind.name}(", given, ")", before, indent)


def class_names(specs: Iterable[OpenSpec], catalogue: Catalogue) -> set[str]:
    """Names of the classes that the specs and their fields are of."""
    names = set()
    for spec in specs:
        kind = catalogue[spec.kind]
        names.add(kind.name)
        names |= {form.enum for name, _ in spec.fields if (form := kind.fields[name]).enum}
    return names


def _value(value: Any, form: FieldForm) -> str:
    """The value as Python source: never other than a literal or a known name."""
    if form.type == "dtype":
        return f"torch.{value}" if str(value).isidentifier() else repr(value)
    if form.type == "dtypes":
        parts = ", ".join(f"torch.{part}" for part in value)
        return f"({parts},)" if len(value) == 1 else f"({parts})"
    if form.type == "name":
        return f"{form.enum}[{quoted(str(value).upper())}]"
    return quoted(value) if isinstance(value, str) else repr(value)


def _numbered(name: str) -> tuple[str, int] | None:
    """What comes before the number that a layer's name ends in, and that; None for others."""
    found = _NUMBERED.fullmatch(name)
    return (found[1], int(found[2])) if found else None


def _runs(layers: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """The layers in order, those of one variable whose names count on together."""
    runs: list[list[tuple[str, str]]] = []
    for name, variable in layers:
        if runs:
            before, same = runs[-1][-1]
            last, this = _numbered(before), _numbered(name)
            if same == variable and last and this and this == (last[0], last[1] + 1):
                runs[-1].append((name, variable))
                continue
        runs.append([(name, variable)])
    parts = ([run] if len(run) >= _MANY else [[layer] for layer in run] for run in runs)
    return [*chain.from_iterable(parts)]


def _counted(run: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The f-string of a run's names, and what its `i` runs over."""
    first, last = _numbered(run[0][0]), _numbered(run[-1][0])
    assert first is not None
    assert last is not None
    bounds = f"{first[1]}, {last[1] + 1}" if first[1] else f"{last[1] + 1}"
    return f'f"{first[0]}{{i}}"', f"range({bounds})"


def mapping(layers: Sequence[tuple[str, str]], before: int, indent: int = 4) -> str:
    """A dict of layers: the name of each, and the variable that holds its spec."""
    runs = _runs(layers)
    parts = []
    for run in runs:
        (name, variable), *more = run
        if more:
            text, numbers = _counted(run)
            made = f"{{{text}: {variable} for i in {numbers}}}"
            if len(runs) == 1:
                return made
            parts.append(f"**{made}")
        else:
            parts.append(f"{quoted(name)}: {variable}")
    return enclosed("{", parts, "}", before, indent)


def names_list(names: Iterable[str], before: int) -> str:
    """A list of layer names."""
    runs = _runs([(name, "") for name in names])
    parts = []
    for run in runs:
        if len(run) > 1:
            text, numbers = _counted(run)
            made = f"{text} for i in {numbers}"
            if len(runs) == 1:
                return f"[{made}]"
            parts.append(f"*({made})")
        else:
            parts.append(quoted(run[0][0]))
    return enclosed("[", parts, "]", before)


def variables(
    mix: Iterable[tuple[str, OpenSpec]], drafts: frozenset[str], catalogue: Catalogue
) -> Mapping[tuple[OpenSpec, bool], str]:
    """A variable's name for each distinct spec, and for those that draft layers have marked."""
    named: dict[tuple[OpenSpec, bool], str] = {}
    for name, spec in mix:
        marked = name in drafts and "is_draft" in catalogue[spec.kind].fields
        if (spec, marked) in named:
            continue
        base = f"{'draft_' if marked else ''}{spec.kind}_spec"
        taken = sum(other.rstrip("_0123456789") == base for other in named.values())
        named[spec, marked] = f"{base}_{taken + 1}" if taken else base
    return named
