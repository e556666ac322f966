"""Whether a reproduction fails, as it should, on the planner loaded in this process.

Only text that `kvfuzz.reproduction` has just written is executed, never text
from a file.
"""

from __future__ import annotations

import traceback
from typing import Any

from kvfuzz.engine.isolate import isolated
from kvfuzz.outcomes import Crash

_FILE = "<reproduction>"
_PLANNER = "vllm.v1.core."
# Where the spec classes are: to be built there is not to be merged or asked for a page.
_CLASSES = "vllm.v1.kv_cache_interface"
_ASKED = ("merge", "page_size_bytes")


def fails(text: str) -> bool:
    """Whether the test in `text` fails on the `vllm` modules of this process, in a fork.

    It fails if one of its own assertions does, if the planner raises, or if
    the process hangs, dies or eats memory in it; not if it fails before it
    comes to that (an import, a spec that cannot be built).
    """
    answer = isolated(lambda: _attempt(text))
    return isinstance(answer, Crash) or answer == b"fails"


def _attempt(text: str) -> bytes:
    names: dict[str, Any] = {"__name__": "reproduction"}
    try:
        exec(compile(text, _FILE, "exec"), names)
        test = next(value for name, value in names.items() if name.startswith("test_"))
    except Exception:
        return b"no test"
    try:
        test()
    except BaseException as error:
        return b"fails" if _meant(error) else b"fails otherwise"
    return b"holds"


def _meant(error: BaseException) -> bool:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    asserted = isinstance(error, AssertionError) and frames[-1].f_code.co_filename == _FILE
    places = [(str(f.f_globals.get("__name__", "")), f.f_code.co_name) for f in frames]
    return asserted or any(
        module.startswith(_PLANNER) or (module == _CLASSES and function in _ASKED)
        for module, function in places
    )
