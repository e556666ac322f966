"""Real servers on loopback, each a process group of its own: a Dask cluster, and Redis."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import psutil

from tests.cli.helpers import environment

_START_SECONDS = 60


def wait_until(true: Callable[[], object], what: str, seconds: float = _START_SECONDS) -> None:
    """Wait until something is so; fail with what it was if it does not come."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.02)


class Server:
    """A process in a group of its own, with what it says in a file.

    Args:
        words: Its command.
        log: The file.
        folder: Its working folder.
        variables: Of its environment, beside those of commands.
    """

    def __init__(self, *words: str, log: Path, folder: Path, **variables: str) -> None:
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**environment(), **variables},
                start_new_session=True,
            )

    def log(self) -> str:
        """What it has said."""
        return self._log.read_text(errors="replace")

    def wait_for(self, true: Callable[[], object]) -> None:
        """Wait until it is ready, as far as `true` can tell."""
        wait_until(lambda: true() or self.process.poll() is not None, self.log())
        assert self.process.poll() is None, self.log()

    def kill(self) -> None:
        """End it and its group at once, as a crash of its machine would."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Cluster:
    """A scheduler and workers of one thread.

    The workers have no nanny: one that is killed stays dead, so that its task
    has to be done by another, and each process is one that we started.

    Args:
        folder: What they keep; also the working folder of the workers and so of planners.
        workers: How many.
        variables: Of the workers' environment.
    """

    def __init__(self, folder: Path, workers: int = 2, **variables: str) -> None:
        self.folder = folder
        self.workers: list[Server] = []
        self._variables = variables
        self._stack = ExitStack()
        told = folder / "scheduler.json"
        with self._stack:
            self.scheduler = self._start(
                "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                "--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(told),
            )  # fmt: skip
            self.scheduler.wait_for(lambda: told.exists() and told.read_text().endswith("}"))
            self.address = str(json.loads(told.read_text())["address"])
            self.workers = [self._worker(number) for number in range(workers)]
            for worker in self.workers:
                worker.wait_for(lambda worker=worker: "Registered to" in worker.log())
            self._stack = self._stack.pop_all()

    def _start(self, kind: str, *words: str, name: str = "", **variables: str) -> Server:
        command = (sys.executable, "-m", f"distributed.cli.dask_{kind}", *words)
        log = self.folder / f"{name or kind}.log"
        return self._stack.enter_context(Server(*command, log=log, folder=self.folder, **variables))

    def _worker(self, number: int) -> Server:
        return self._start(
            "worker", self.address, "--no-nanny", "--nthreads", "1", "--no-dashboard",
            "--dashboard-address", "127.0.0.1:0", "--local-directory", str(self.folder),
            name=f"worker-{number}", **self._variables,
        )  # fmt: skip

    def alive(self) -> list[bool]:
        """Whether each worker is."""
        return [worker.process.poll() is None for worker in self.workers]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def jobs_of(worker: Server) -> list[psutil.Process]:
    """The kvfuzz processes that a Dask worker has started."""
    return [
        child
        for child in psutil.Process(worker.process.pid).children()
        if "kvfuzz.engine.worker" in child.cmdline()
    ]


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
