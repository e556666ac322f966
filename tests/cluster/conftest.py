"""A real Dask cluster and a real Redis server on loopback, ended with all their processes."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.cluster.runs import GO
from tests.cluster.servers import Cluster, Server, free_port

NewCluster = Callable[..., Cluster]


@pytest.fixture(scope="session")
def _distributed() -> None:
    pytest.importorskip("distributed", reason='needs distributed: pip install -e ".[dask]"')


@pytest.fixture(scope="module")
def lasting(_distributed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers, for the tests of a module that leave them as they are."""
    with Cluster(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


@pytest.fixture
def cluster(lasting: Cluster) -> Iterator[Cluster]:
    """Those two workers, alive before and after, with nothing left of an earlier test."""
    for path in (lasting.folder / GO, *lasting.folder.glob("begun*")):
        path.unlink(missing_ok=True)
    yield lasting
    assert lasting.alive() == [True, True]


@pytest.fixture
def new_cluster(
    _distributed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewCluster]:
    """Makes clusters that a test may break."""
    with ExitStack() as stack:

        def make(workers: int = 2, **variables: str) -> Cluster:
            folder = tmp_path_factory.mktemp("dask")
            return stack.enter_context(Cluster(folder, workers, **variables))

        yield make


class Redis(Server):
    """A Redis server that keeps nothing on disk; its URL, and a client beside kvfuzz's own."""

    def __init__(self, program: str, folder: Path) -> None:
        from redis import Redis as Client

        port = free_port()
        self.url = f"redis://127.0.0.1:{port}"
        super().__init__(
            program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no",
            "--dir", str(folder),
            log=folder / "redis.log", folder=folder,
        )  # fmt: skip
        self.client = Client.from_url(self.url)

        def listens() -> bool:
            with closing(socket.socket()) as caller:
                return caller.connect_ex(("127.0.0.1", port)) == 0

        try:
            self.wait_for(listens)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        self.client.close()
        super().kill()


@pytest.fixture
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A server that a test may break."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("needs redis-server: apt-get install redis-server")
    pytest.importorskip("redis", reason='needs the package redis: pip install -e ".[redis]"')
    with Redis(program, tmp_path_factory.mktemp("redis")) as server:
        yield server
