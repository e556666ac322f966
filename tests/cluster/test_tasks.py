"""Tasks without a cluster: what runs on a worker, and what becomes of a task that is lost."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import Any, NoReturn

import msgspec
import pytest

from kvfuzz import __version__
from kvfuzz.engine.cluster import Remains, RemoteTask, run_task
from kvfuzz.engine.messages import Fault, Finished, Job, Loaded, ReplayJob, decode
from kvfuzz.errors import TargetError
from kvfuzz.targets.load import Prepared

JOB: Job = ReplayJob(target=Prepared("reference", "/no/such/folder"), surface="pack", scenarios=[])


def test_a_worker_of_another_version():
    assert __version__ != "0.0.1"
    remains: Remains = decode(run_task("0.0.1", b"{}", None, None), Remains)
    assert remains.messages == [
        Fault(f"it has kvfuzz {__version__}, and this is 0.0.1; install one.")
    ]
    assert (remains.crash, remains.place) == (None, None)


def test_a_task_is_prepared_where_it_is_done():
    """Whatever the path was on the machine that asks."""
    remains: Remains = decode(run_task(__version__, msgspec.json.encode(JOB), None, None), Remains)
    assert remains.messages == [Loaded(__version__, ("pack",)), Finished()]
    assert remains.loaded is True


class _Crew:
    """Hands out the given ends of tasks, in order; see `cluster.DaskCrew`."""

    given_up = False
    connected = True

    def __init__(self, *ends: Exception | Remains) -> None:
        self._ends = list(ends)
        self.seconds: list[float | None] = []
        self.looked = 0

    def submit(self, job: Job, seconds: float | None, left: float | None) -> Future[bytes]:
        self.seconds.append(seconds)
        future: Future[bytes] = Future()
        if self._ends:
            end = self._ends.pop(0)
            if isinstance(end, Exception):
                future.set_exception(end)
            else:
                future.set_result(msgspec.json.encode(end))
        return future

    def look(self) -> None:
        self.looked += 1

    def give_up(self, sentence: str) -> NoReturn:
        self.given_up = True
        raise TargetError(sentence)


def _task(crew: Any, seconds: float | None = None) -> RemoteTask:
    return RemoteTask(JOB, seconds, 60.0, crew)


def test_a_task_that_is_lost_is_given_out_again_for_the_time_that_is_left():
    crew = _Crew(CancelledError(), Remains([Loaded("1", ("pack",)), Finished()]))
    task = _task(crew, 20.0)
    assert (list(task.messages()), task.done) == ([], False)
    assert (list(task.messages()), task.done) == ([Loaded("1", ("pack",)), Finished()], True)
    first, second = crew.seconds
    assert first is not None
    assert second is not None
    assert 0 < second < first == 20.0


def test_a_task_that_is_lost_again_and_again_ends_the_campaign():
    crew = _Crew(*[ValueError("no\x1b[0m room")] * 9)
    task = _task(crew)
    for _ in range(3):
        assert list(task.messages()) == []
    with pytest.raises(TargetError) as raised:
        list(task.messages())
    assert str(raised.value) == (
        "The Dask cluster lost a task 4 times, at last with ValueError: no\\x1b[0m room; see to "
        "its workers."
    )
    # Then others are still asked for what they have to say; it is not given out again.
    assert (list(task.messages()), task.done) == ([], False)
    assert crew.seconds == [None] * 4


def test_while_a_task_is_being_done_the_cluster_is_looked_after():
    crew = _Crew()
    task = _task(crew)
    assert list(task.messages()) == []
    assert crew.looked == 1
    task.end()
    assert task.done is True
    assert list(task.messages()) == []


def test_what_went_wrong_on_a_worker_says_so():
    crew = _Crew(Remains([Fault("No module named 'x'.")]))
    assert list(_task(crew).messages()) == [Fault("On a Dask worker: No module named 'x'.")]
