"""A planner's functions as `python -O` runs them, in a process that does not.

`-O` compiles `assert` away. The functions of a planner that is loaded are given the code that
their source compiles to without assertions, for as long as a call takes: classes, specs and
modules stay what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

#: What `functools.cache` makes.
_CACHED: Final = type(cache(len))


class _Swap(NamedTuple):
    """A function, its code, and its code without assertions."""

    function: FunctionType
    plain: CodeType
    optimized: CodeType


class WithoutAssertions:
    """The functions and methods of some modules, and of what their bound methods are bound to.

    Args:
        modules: The modules. Functions whose source is not at hand stay as they are.
    """

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._modules = tuple(modules)

    @cached_property
    def _swaps(self) -> list[_Swap]:
        """Those that have assertions, and can do without what only these name."""
        found = {}
        codes: dict[str, dict[tuple[str, int], CodeType]] = {}
        for function in _functions(self._modules):
            plain = function.__code__
            if plain.co_filename not in codes:
                codes[plain.co_filename] = _optimized(plain.co_filename)
            other = codes[plain.co_filename].get((plain.co_qualname, plain.co_firstlineno))
            if other is not None and other != plain and other.co_freevars == plain.co_freevars:
                found[id(function)] = _Swap(function, plain, other)
        return list(found.values())

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Within it the functions do without their assertions."""
        try:
            for function, _, optimized in self._swaps:
                function.__code__ = optimized
            yield
        finally:
            for function, plain, _ in self._swaps:
                function.__code__ = plain


def modules_of(*modules: ModuleType | None, named: Iterable[str]) -> tuple[ModuleType, ...]:
    """These modules and those that are loaded under the names, each once."""
    loaded = (sys.modules.get(name) for name in named)
    return tuple({id(m): m for m in (*modules, *loaded) if m is not None}.values())


def _functions(modules: Iterable[ModuleType]) -> Iterator[FunctionType]:
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, MethodType):
                for cls in type(value.__self__).__mro__:
                    yield from _unwrapped(vars(cls).values())
            elif isinstance(value, type):
                yield from _unwrapped(vars(value).values())
            else:
                yield from _unwrapped((value,))


def _unwrapped(values: Iterable[Any]) -> Iterator[FunctionType]:
    """The functions that values are, or are made of by a decorator."""
    for value in values:
        inner = None
        if isinstance(value, FunctionType):
            yield value
            inner = vars(value).get("__wrapped__")
        elif isinstance(value, property):
            inner = value.fget
        elif isinstance(value, cached_property):
            inner = value.func
        elif isinstance(value, staticmethod | classmethod | _CACHED):
            inner = value.__wrapped__
        if inner is not None:
            yield from _unwrapped((inner,))


def _optimized(file: str) -> dict[tuple[str, int], CodeType]:
    """Qualified name and first line -> code without assertions, of all functions of a file."""
    try:
        module = compile(Path(file).read_bytes(), file, "exec", optimize=1, dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return {}
    found = {}
    left = [module]
    while left:
        code = left.pop()
        found[code.co_qualname, code.co_firstlineno] = code
        left += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found
