"""Options and skips for the whole suite."""

from __future__ import annotations

import pytest

#: For `test_plugin`: pytest runs inside tests.
pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--live", action="store_true", help="also run the tests on real vLLM releases (network)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--live"):
        return
    skip = pytest.mark.skip(reason="needs --live: fetches real vLLM releases")
    for item in items:
        if item.get_closest_marker("live"):
            item.add_marker(skip)
