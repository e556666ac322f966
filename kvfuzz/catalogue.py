"""What a target's spec classes can be told: their kinds, and the fields of each.

A catalogue is found out from the classes themselves, so that a class or field
of tomorrow's release is tried on the day it appears.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvfuzz.specs import OpenSpec

#: What kind of value a field holds. Of "unknown" nothing is known to set it to.
ValueType: TypeAlias = Literal[
    "int", "bool", "text", "name", "dtype", "dtypes", "shapes", "unknown"
]


class FieldForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a field can be set to.

    Attributes:
        type: What it holds.
        required: Whether it has no default.
        default: Its default, if that is a plain value.
        names: The names that a "name" can be.
        enum: The class that has them.
        mark: Whether the class leaves it out of its own equality: then it
            says something of a layer that is no part of what its cache is.
    """

    type: ValueType
    required: bool = False
    default: bool | int | str | None = None
    names: tuple[str, ...] = ()
    enum: str = ""
    mark: bool = False


class KindForm(msgspec.Struct, frozen=True):
    """A spec class: its name, and field -> what it can be set to."""

    name: str
    fields: dict[str, FieldForm]


#: Kind -> its class.
Catalogue: TypeAlias = dict[str, KindForm]


def lacks(catalogue: Catalogue, spec: OpenSpec) -> str | None:
    """Why a target of that catalogue cannot be told `spec`, or None if it can."""
    form = catalogue.get(spec.kind)
    if form is None:
        return f"no spec class for the kind {spec.kind}"
    for name, _ in spec.fields:
        if name not in form.fields:
            return f"no field {name} in the spec class of {spec.kind}"
    return None


def unknown_fields(catalogue: Catalogue) -> tuple[str, ...]:
    """The fields that are never set, since what they hold is not known: "kind.field"."""
    return tuple(
        f"{kind}.{name}"
        for kind, forms in catalogue.items()
        for name, form in forms.fields.items()
        if form.type == "unknown"
    )


def common_catalogue(one: Catalogue, other: Catalogue) -> Catalogue:
    """What targets of both catalogues can be told; defaults and names are those of the first.

    A kind of which one target wants a field that the other lacks is left out.
    """
    found = {}
    for kind in one.keys() & other.keys():
        mine, theirs = one[kind].fields, other[kind].fields
        fields = {
            name: _common_form(form, theirs[name])
            for name, form in mine.items()
            if name in theirs and form.type == theirs[name].type
        }
        required = {n for forms in (mine, theirs) for n, form in forms.items() if form.required}
        if required <= fields.keys():
            found[kind] = KindForm(one[kind].name, fields)
    return {kind: found[kind] for kind in one if kind in found}


def _common_form(one: FieldForm, other: FieldForm) -> FieldForm:
    return msgspec.structs.replace(
        one,
        required=one.required or other.required,
        names=tuple(name for name in one.names if name in other.names),
        mark=one.mark or other.mark,
    )
