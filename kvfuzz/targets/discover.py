"""Finding out what spec classes a planner has, and what each can be told.

Nothing here knows a class or a field by name, but for the two bases that are
no layer's spec, so that what a release adds is found on the day it appears.
"""

from __future__ import annotations

import dataclasses
import re
from enum import Enum
from types import ModuleType
from typing import Any, Final

import msgspec
import torch

from kvfuzz.catalogue import FieldForm
from kvfuzz.specs import DTYPE_BYTES, OpenSpec, Value, open_spec

#: Classes that others derive from, and no layer has.
_BASES: Final = ("KVCacheSpec", "AttentionSpec")
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

_DTYPES: Final = {name: getattr(torch, name) for name in DTYPE_BYTES}


def kind_of(class_name: str) -> str:
    """`SlidingWindowMLASpec` is `sliding_window_mla`."""
    return _WORD_BEGINS.sub("_", class_name.removesuffix("Spec")).lower()


def _form(field: dataclasses.Field[Any], module: ModuleType) -> FieldForm:
    """What a field holds, by its annotation."""
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    text = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
    parts = {part.strip() for part in text.split("|")}
    if text.startswith("tuple[torch.dtype"):
        return FieldForm(type="dtypes", required=required)
    if text.startswith("tuple[tuple[int"):
        return FieldForm(type="shapes", required=required)
    if "torch.dtype" in parts:
        return FieldForm(type="dtype", required=required)
    if "bool" in parts:
        return FieldForm(type="bool", required=required, default=_plain(field.default))
    if "int" in parts:
        return FieldForm(type="int", required=required, default=_plain(field.default))
    if "str" in parts:
        return FieldForm(type="text", required=required, default=_plain(field.default))
    named = getattr(module, text, None)
    if isinstance(named, type) and issubclass(named, Enum):
        names = tuple(member.name.lower() for member in named)
        default = field.default.name.lower() if isinstance(field.default, Enum) else None
        return FieldForm(
            type="name", required=required, default=default, names=names, enum=named.__name__
        )
    return FieldForm(type="unknown", required=required)


def _plain(default: Any) -> bool | int | str | None:
    return default if isinstance(default, bool | int | str) else None


class OpenClass:
    """One of a planner's spec classes: what it can be told, how to make and look at its objects.

    Attributes:
        cls: The class.
        forms: Field -> what it can be set to.
    """

    def __init__(self, cls: type, module: ModuleType) -> None:
        self.cls = cls
        fields = [field for field in dataclasses.fields(cls) if field.init]
        self.forms = {
            field.name: msgspec.structs.replace(_form(field, module), mark=not field.compare)
            for field in fields
        }
        # What the class's own equality leaves out is no part of what a spec is.
        self._held = {
            field.name: field.default
            for field in fields
            if not self.forms[field.name].mark and self.forms[field.name].type != "unknown"
        }
        enums = {name: form for name, form in self.forms.items() if form.type == "name"}
        self._members = {
            name: {member.name.lower(): member for member in getattr(module, form.enum)}
            for name, form in enums.items()
        }

    def make(self, spec: OpenSpec) -> Any:
        """The object that `spec` states; what the class itself raises is passed on.

        Raises:
            ValueError: A value is none that the field can have.
        """
        return self.cls(**{name: self._native(name, value) for name, value in spec.fields})

    def _native(self, name: str, value: Value) -> Any:
        form = self.forms[name]
        match form.type:
            case "int" if value is None or type(value) is int:
                return value
            case "dtype" if value in _DTYPES:
                return _DTYPES[str(value)]
            case "dtypes" if isinstance(value, tuple) and all(v in _DTYPES for v in value):
                return tuple(_DTYPES[str(v)] for v in value)
            case "name" if value in self._members[name]:
                return self._members[name][str(value)]
            case "bool" if type(value) is bool:
                return value
            case "text" if value is None or isinstance(value, str):
                return value
            case "shapes" if isinstance(value, tuple):
                return value
        raise ValueError(f"{name} cannot be {value!r}")

    def look(self, native: Any) -> OpenSpec:
        """What an object of the class holds, but for what is at its default.

        Fields that the class does not compare, such as marks of a layer that
        upstream reads from the layer's own spec, are left out.
        """
        held: dict[str, Value] = {}
        for name, default in self._held.items():
            value = getattr(native, name)
            if self.forms[name].required or value != default:
                held[name] = _neutral(value)
        return open_spec(kind_of(type(native).__name__), held)


def _neutral(value: Any) -> Value:
    """The value as a spec of ours states it; of an odd type, its name."""
    if value is None or isinstance(value, str) or type(value) in (bool, int):
        return value  # type: ignore[no-any-return]
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, tuple | list):
        return tuple(_neutral(part) for part in value)  # type: ignore[misc]
    return f"{type(value).__name__} {value}"


def open_classes(module: ModuleType) -> dict[str, OpenClass]:
    """Kind -> class, of every spec class in `vllm.v1.kv_cache_interface` that a layer can have.

    A class that holds other layers' specs is none.
    """
    base = getattr(module, "KVCacheSpec", None)
    found = {}
    for name, cls in vars(module).items():
        if not isinstance(cls, type) or not dataclasses.is_dataclass(cls) or name in _BASES:
            continue
        if base is None or not issubclass(cls, base) or cls.__name__ != name:
            continue
        entry = OpenClass(cls, module)
        if not any(form.required and form.type == "unknown" for form in entry.forms.values()):
            found[kind_of(name)] = entry
    return found
