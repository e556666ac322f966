"""A worker's side of comparing targets: one planner that answers what it is asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from queue import SimpleQueue
from typing import NoReturn

import msgspec

from kvfuzz.engine.calls import Watch
from kvfuzz.engine.messages import (
    AnswerJob,
    Ask,
    Chunk,
    Heartbeat,
    Loaded,
    Message,
    Open,
    Replies,
    Request,
    Told,
)
from kvfuzz.engine.places import Place
from kvfuzz.engine.replies import Replier, Reply
from kvfuzz.engine.session import Session
from kvfuzz.engine.stream import built
from kvfuzz.specs import Scenario
from kvfuzz.strategies.spaces import space_of
from kvfuzz.targets.base import Target, config_of

_REQUESTS = msgspec.json.Decoder(Request)


class _Surface:
    """One surface, open for questions."""

    def __init__(self, opened: Open, job: AnswerJob, target: Target, watch: Watch) -> None:
        self._session = Session(target, opened.surface, watch=watch, limits=job.limits)
        self._forking = Session(target, opened.surface, isolate=True, limits=job.limits)
        self._replier = Replier(
            opened.dialect.catalogue, target.dialect.catalogue, opened.dialect.facts
        )
        self._space = space_of(opened.surface, opened.dialect)

    def _reply(self, session: Session, scenario: Scenario) -> Reply | None:
        return self._replier.reply(scenario, session.ask(scenario)[0].outcome)

    def replies(self, request: Chunk, heartbeat: Heartbeat) -> Replies:
        """The replies to a chunk, as far as time allows."""
        made = []
        mixes = list(islice(built(self._space, request.seed, request.chunk), request.size))
        for number, (_, scenario) in enumerate(mixes):
            if request.deadline is not None and time.monotonic() > request.deadline:
                break
            reply = None
            if number not in request.skip:
                heartbeat.beat(Place(request.chunk, number))
                reply = self._reply(self._session, scenario)
            made.append(msgspec.Raw(msgspec.json.encode(reply)))
        return Replies(made)

    def told(self, request: Ask, heartbeat: Heartbeat) -> Told:
        """The reply to one scenario."""
        heartbeat.beat(Place(0, 0))
        session = self._session
        if request.seconds is not None:
            session = self._forking
            session.call_seconds = request.seconds
        reply = self._reply(session, request.scenario)
        return Told(reply, tuple(session.pages(request.scenario).values()))


def answer(
    job: AnswerJob, target: Target, requests: SimpleQueue[bytes], send: Callable[[Message], None]
) -> NoReturn:
    """Answer requests for as long as there is someone to ask."""
    config = next(filter(None, (config_of(target, s) for s in target.surfaces)), "")
    send(Loaded(target.version, target.surfaces, config=config, dialect=target.dialect))
    watch = Watch(job.limits)
    watch.start()
    surface: _Surface | None = None
    with Heartbeat(job.heartbeat) as heartbeat:
        while True:
            request = _REQUESTS.decode(requests.get())
            if isinstance(request, Open):
                surface = _Surface(request, job, target, watch)
                continue
            assert surface is not None, "a surface is opened first"
            if isinstance(request, Chunk):
                send(surface.replies(request, heartbeat))
            else:
                send(surface.told(request, heartbeat))
