"""What a spec class tells of one spec: its page, what is in it, and whether it can be copied.

A spec is a record that is handed from process to process and copied on the
way, so it is asked, too, whether what its fields hold is what they say.
"""

from __future__ import annotations

import copy
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kvfuzz.outcomes import Account, Group, Misfit, Plan, Terms
from kvfuzz.specs import OpenSpec
from kvfuzz.targets.base import sayable

#: Where a class tells the bytes of a page before padding, the fullest account first.
_DATA: Final = ("unpadded_page_size_bytes", "real_page_size_bytes")
#: What the sizes of a page's view are multiplied from.
_VIEW: Final = ("num_heads", "num_states", "state_content_size_bytes")
# The most text that is kept of a value.
_MOST_TEXT: Final = 100


class _Elsewhere:
    """Stands for a name that is imported for type checkers only; no value is one."""


#: Class -> name, annotation and its text of each field. A planner has a handful of them.
_ANNOTATIONS: Final[dict[type, tuple[tuple[str, Any, str], ...]]] = {}


def _annotations(cls: type) -> tuple[tuple[str, Any, str], ...]:
    """Name, annotation and its text of each field; none if they cannot be made out."""
    if cls not in _ANNOTATIONS:
        _ANNOTATIONS[cls] = _made_out(cls)
    return _ANNOTATIONS[cls]


def _made_out(cls: type) -> tuple[tuple[str, Any, str], ...]:
    missing: dict[str, Any] = {}
    while True:
        try:
            hints = typing.get_type_hints(cls, localns=missing)
            break
        except NameError as error:
            if not error.name or error.name in missing:
                return ()
            missing[error.name] = _Elsewhere
        except Exception:  # an expression that is none of a type
            return ()
    return tuple(
        (field.name, hints.get(field.name, Any), _said(field.type))
        for field in dataclasses.fields(cls)
    )


def _said(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return sayable(text)[:_MOST_TEXT]


def fits(value: Any, hint: Any) -> bool:
    """Whether `value` is one that the annotation allows, as far as that can be told.

    Tuples must have the length and the parts that are stated; of other
    containers only the container is looked at.
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if parts[-1:] == (...,):
            return all(fits(part, parts[0]) for part in value)
        return len(value) == len(parts) and all(map(fits, value, parts))
    if origin is typing.Literal:
        return value in parts
    if origin is typing.Annotated:
        return fits(value, parts[0])
    kind = origin or hint
    if kind is None:
        return value is None
    if kind is float:
        kind = (int, float)
    try:
        return not isinstance(kind, type | tuple) or isinstance(value, kind)
    except TypeError:  # a class that objects cannot be held against
        return True


def misfits(native: Any) -> tuple[Misfit, ...]:
    """The fields of a dataclass's object that do not fit their annotations."""
    return tuple(
        Misfit(name, says, sayable(str(getattr(native, name)))[:_MOST_TEXT])
        for name, hint, says in _annotations(type(native))
        if not fits(getattr(native, name), hint)
    )


_COPIES: Final[dict[str, Callable[[Any], Any]]] = {
    "dataclasses.replace": dataclasses.replace,
    "copy.deepcopy": copy.deepcopy,
}


class _Told(NamedTuple):
    """What a native spec tells of itself."""

    page: Any
    account: Account


class OwnPages:
    """Asks native specs for their pages.

    Args:
        look: What a native spec holds.
        page: Bytes of its page, which must be a whole number.
    """

    def __init__(self, look: Callable[[Any], OpenSpec], page: Callable[[Any], int]) -> None:
        self._look = look
        self._page = page

    def call(self, specs: Mapping[str, Any]) -> dict[str, _Told]:
        """Layer name -> what its spec tells; what its page raises is passed on untouched."""
        return {
            name: _Told(spec.page_size_bytes, self._account(spec)) for name, spec in specs.items()
        }

    def normalise(self, answer: Mapping[str, _Told], specs: Mapping[str, Any]) -> Plan:
        """The plan of a group for each layer.

        Raises:
            TypeError: A page size is none.
        """
        groups = []
        for name, told in answer.items():
            if type(told.page) is not int:
                raise TypeError(f"a page size must be an int, got {type(told.page).__name__}")
            look = self._look(specs[name])
            terms = Terms(given=(look,), planned=(look,), account=told.account)
            groups.append(Group((name,), (told.page,), terms))
        return Plan(tuple(groups))

    def _account(self, spec: Any) -> Account:
        return Account(
            data=next((n for name in _DATA if (n := _number(spec, name)) is not None), None),
            tensor=_tensor(spec),
            doubled=self._doubled(spec),
            misfits=misfits(spec),
            unlike=tuple(
                name
                for name, copied in _COPIES.items()
                if (twin := copied(spec)) != spec or self._page(twin) != spec.page_size_bytes
            ),
        )

    def _doubled(self, spec: Any) -> int | None:
        resized = getattr(spec, "copy_with_new_block_size", None)
        if resized is None:
            return None
        try:
            return self._page(resized(2 * spec.block_size))
        except Exception:  # judged as a copy that has no page
            return 0


def _number(spec: Any, name: str) -> int | None:
    """What the class tells under a name, if it does and it is a whole number."""
    try:
        value = getattr(spec, name, None)
    except NotImplementedError:  # stated by a base class, for others
        return None
    return value if type(value) is int else None


def _tensor(spec: Any) -> int | None:
    sizes = [_number(spec, name) for name in _VIEW]
    size = 1
    for number in sizes:
        if number is None:
            return None
        size *= number
    return size
