"""Options and skips for the whole suite."""

from __future__ import annotations

import pytest

#: For `test_plugin`: pytest runs inside tests.
pytest_plugins = ["pytester"]


#: Marker, which is its option too -> what the tests that carry it do.
GATES = {
    "live": "fetches real vLLM releases",
    "browser": "drives Chromium",
    "cluster": "starts a Dask cluster and a Redis server",
    "installed": "needs a vLLM that is really installed",
    "slow": "waits for processes that hang and die",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    for gate, what in GATES.items():
        parser.addoption(f"--{gate}", action="store_true", help=f"also run what {what}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for gate, what in GATES.items():
        if not config.getoption(f"--{gate}"):
            skip = pytest.mark.skip(reason=f"needs --{gate}: {what}")
            for item in items:
                if item.get_closest_marker(gate):
                    item.add_marker(skip)
