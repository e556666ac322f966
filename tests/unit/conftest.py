"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest

from tests.unit.campaigns import ROOT


@pytest.fixture
def _planners_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tests.unit.planners` can be imported in the workers too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
