"""The search loop: which mixes it judges, and that their places name them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from kvfuzz.engine.messages import FuzzJob, Heartbeat, Message, Shrunk, Violated
from kvfuzz.engine.places import CHUNK, Place
from kvfuzz.engine.scout import Scout
from kvfuzz.engine.session import Session
from kvfuzz.engine.stream import FRESH
from kvfuzz.reference import group_and_unify_kv_cache_specs as reference
from kvfuzz.strategies.builders import stream
from kvfuzz.strategies.choices import SeededChoices
from kvfuzz.targets.base import NeutralPlanner, NeutralTarget
from kvfuzz.targets.load import prepare
from tests.sabotage.planners import Groups, Mix, loses_the_widest_window


def _search(planner: NeutralPlanner, claims: Path, start: Place, mixes: int) -> list[Message]:
    """What a search of the mixes of a seed from `start` on, up to number `mixes`, sends."""
    session = Session(NeutralTarget("it", planner, "0"), "pack")
    sent: list[Message] = []
    job = FuzzJob(
        target=prepare("reference"),
        surface="pack",
        seed=3,
        start=start,
        stride=1,
        deadline=None,
        mixes=mixes,
        witnesses={},
        done=[],
        claims=str(claims),
    )
    file, heartbeat = Heartbeat.create()
    with file, heartbeat:
        assert Scout(session, 3, heartbeat, sent.append).search(job)
    return sent


def _classes(chunk: int, claims: Path) -> list[frozenset[object]]:
    """The spec classes of each mix of a chunk, as the planner was first asked about it."""
    asked: dict[tuple[str, ...], frozenset[object]] = {}

    def planner(specs: Mix) -> Groups:
        asked[tuple(map(str, specs.items()))] = frozenset(specs.values())
        return reference(specs)

    _search(planner, claims, Place(chunk, 0), (chunk + 1) * CHUNK)
    return list(asked.values())


def test_the_first_mixes_have_nothing_in_common(tmp_path: Path):
    classes = _classes(0, tmp_path)
    assert len(classes) >= CHUNK
    # A few small mixes happen to be of the same specs.
    assert len(set(classes)) > 0.95 * CHUNK


def test_later_a_drawing_is_laid_out_several_times(tmp_path: Path):
    # About four to a drawing; a layer that disturbs a mix of V4's makes another.
    assert CHUNK / 4 <= len(set(_classes(FRESH, tmp_path))) < CHUNK / 3


def test_a_place_in_a_later_chunk_names_its_mix(tmp_path: Path):
    sent = _search(loses_the_widest_window(), tmp_path, Place(FRESH, 0), (FRESH + 1) * CHUNK)
    (met,) = (m for m in sent if isinstance(m, Violated))
    (shrunk,) = (m for m in sent if isinstance(m, Shrunk))
    assert met.place is not None
    assert met.place.chunk == FRESH
    # Built anew from its place it failed again, and could be shrunk.
    assert shrunk.finding is not None
    assert shrunk.finding.shrunk
    assert len(shrunk.finding.scenario) == 3 < len(met.finding.scenario)


def test_violations_hold_no_frames():
    session = Session(NeutralTarget("it", loses_the_widest_window(), "0"), "pack")
    mixes = (mix for _, mix in islice(stream(SeededChoices(1)), 200))
    found = [violation for mix in mixes for violation in session.judge(mix)]
    assert found
    # A frame would hold the list that holds the violation: a cycle for each.
    assert all(violation.__traceback__ is None for violation in found)
