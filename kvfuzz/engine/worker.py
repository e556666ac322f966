"""A worker process: one target, one job, messages on its standard output.

Started by `engine.supervisor` as `python -m kvfuzz.engine.worker`. What the
planner prints goes nowhere; what it does to this process is the supervisor's
to see.
"""

from __future__ import annotations

import os
import signal
import threading
from queue import SimpleQueue
from typing import BinaryIO

import msgspec

from kvfuzz.engine.answering import answer
from kvfuzz.engine.calls import Watch
from kvfuzz.engine.enumerator import Enumerator
from kvfuzz.engine.messages import (
    AnswerJob,
    Fault,
    Finished,
    FuzzJob,
    Heartbeat,
    Job,
    Loaded,
    Message,
    Replayed,
    ReplayJob,
    ShrinkJob,
    VerifyJob,
)
from kvfuzz.engine.places import Place
from kvfuzz.engine.scout import Scout
from kvfuzz.engine.session import Session
from kvfuzz.errors import HarnessFault, KvfuzzError
from kvfuzz.strategies.spaces import space_of
from kvfuzz.targets.base import Target, config_of
from kvfuzz.targets.load import load


def _claim_output() -> BinaryIO:
    """Keep standard output for messages; what is printed goes nowhere from here on."""
    messages = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return messages


def _listen() -> tuple[bytes, SimpleQueue[bytes]]:
    """The first line of standard input, and where further ones will come.

    Ends this process and what it forks as soon as the run that started it is
    gone: it keeps the other end open for as long as it is there. A planner's
    loop neither sees that nor writes to a closed pipe.
    """
    lines = os.fdopen(os.dup(0), "rb")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    first = lines.readline()
    further: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> None:
        for line in lines:
            further.put(line)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
    return first, further


def work(job: Job, target: Target, out: BinaryIO, requests: SimpleQueue[bytes]) -> None:
    """Do one job with a loaded target."""

    def send(message: Message) -> None:
        out.write(msgspec.json.encode(message) + b"\n")
        out.flush()

    if isinstance(job, AnswerJob):
        answer(job, target, requests, send)
    never_set = space_of(job.surface, target.dialect).never_set
    config = config_of(target, job.surface)
    send(Loaded(target.version, target.surfaces, never_set, config))
    exhausted = True
    if job.surface in target.surfaces:
        searching = isinstance(job, FuzzJob)
        watch = Watch(job.limits)
        session = Session(
            target,
            job.surface,
            watch=watch if searching else None,
            isolate=not searching,
            limits=job.limits,
        )
        with Heartbeat(job.heartbeat) as heartbeat:
            if isinstance(job, VerifyJob) or (isinstance(job, ShrinkJob) and job.enumerated):
                scout: Scout = Enumerator(session, heartbeat, send)
            else:
                scout = Scout(session, getattr(job, "seed", 0), heartbeat, send)
            match job:
                case FuzzJob():
                    watch.start()
                    exhausted = scout.search(job)
                    watch.stop()
                case ShrinkJob():
                    scout.shrink_crash(job)
                case ReplayJob():
                    for number, scenario in enumerate(job.scenarios):
                        heartbeat.beat(Place(0, number))
                        findings = scout.judge(scenario)
                        outcome = session.ask(scenario)[0].outcome
                        send(Replayed(outcome, findings))
    send(Finished(exhausted))


def main() -> None:
    """Read the job from standard input and do it."""
    # The terminal sends Ctrl-C to every process of the run; its parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line, requests = _listen()
    job = msgspec.json.decode(line, type=Job)
    out = _claim_output()
    try:
        # Which surfaces an AnswerJob is about is told later: all are made ready.
        surface = "config" if isinstance(job, AnswerJob) else job.surface
        work(job, load(job.target, surface), out, requests)
    except KvfuzzError as error:
        out.write(msgspec.json.encode(Fault(str(error))) + b"\n")
    except (HarnessFault, Exception) as error:
        text = f"kvfuzz failed while it drove {job.target.uri}: {type(error).__name__}: {error}"
        out.write(msgspec.json.encode(Fault(text)) + b"\n")
    out.flush()
    # Not through the interpreter's shutdown: a planner may have left threads.
    os._exit(0)


if __name__ == "__main__":
    main()
