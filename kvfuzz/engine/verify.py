"""Whether a reproduction fails, as it should, on the planner loaded in this process.

Only text that `kvfuzz.reproduction` has just written is executed, never text
from a file.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

from kvfuzz.engine.isolate import isolated
from kvfuzz.findings import Finding
from kvfuzz.outcomes import Crash
from kvfuzz.reproduction.engine_checks import UNUSABLE

#: Symptoms of a planner that did not come back.
_ENDED = ("time-out", "died", "memory")

#: Surfaces that call the spec classes, which need nothing else that may be lacking.
_OF_CLASSES = ("merge", "page")

_FILE = "<reproduction>"
_PLANNER = "vllm.v1.core."
# Where the spec classes are: to be built there is not to be merged or asked for a page.
_CLASSES = "vllm.v1.kv_cache_interface"
_ASKED = ("merge", "page_size_bytes")
# What a plan is read by.
_READ = ("page_size_bytes", "max_memory_usage_bytes")


def fails(text: str, finding: Finding) -> bool:
    """Whether the test in `text` fails as `finding` says on the `vllm` modules of this process.

    It is run in a fork. It fails if one of its own assertions does, if a spec
    class raises or the planner raises what it was seen to raise, or, of a
    finding that is that, if the process hangs, dies or eats memory in it; not
    if it fails before it comes to that (an import, a spec that cannot be
    built) or by the way (a setting that its config lacks).
    """
    answer = isolated(lambda: _attempt(text, finding))
    if isinstance(answer, Crash):
        return finding.symptom in _ENDED
    return answer == b"fails"


def _attempt(text: str, finding: Finding) -> bytes:
    names: dict[str, Any] = {"__name__": "reproduction"}
    try:
        exec(compile(text, _FILE, "exec"), names)
        test = next(value for name, value in names.items() if name.startswith("test_"))
    except Exception:
        return b"no test"
    try:
        test()
    except BaseException as error:
        return b"fails" if _meant(error, finding) else b"fails otherwise"
    return b"holds"


def _meant(error: BaseException, finding: Finding) -> bool:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, AssertionError) and frames[-1].f_code.co_filename == _FILE:
        return True
    places = [(str(f.f_globals.get("__name__", "")), f.f_code.co_name) for f in frames]
    if finding.got.startswith(UNUSABLE):
        return any(module == _CLASSES and function in _READ for module, function in places)
    seen = re.search(rf"\b{re.escape(type(error).__name__)}\b", finding.got)
    if finding.surface not in _OF_CLASSES and not seen:
        return False
    return any(
        module.startswith(_PLANNER) or (module == _CLASSES and function in _ASKED)
        for module, function in places
    )
