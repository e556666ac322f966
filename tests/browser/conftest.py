"""Chromium, headless and cut off from the network, with the sample reports as files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kvfuzz.engine.events import Report
from kvfuzz.reporting.html import to_html
from tests.report_samples import (
    a_passing_report,
    a_report,
    a_timeline,
    a_verified_report,
    past,
    paths_of,
)

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    """A browser for all tests of this process."""
    browser = shutil.which("chromium")
    program = shutil.which("chromedriver")
    if browser is None or program is None:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    pytest.importorskip("selenium", reason='needs selenium: pip install -e ".[browser]"')
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        # A named driver: selenium looks for none, and asks no server.
        service = webdriver.ChromeService(program)
        running = webdriver.Chrome(options=options, service=service)
        try:
            yield running
        finally:
            running.quit()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sample reports, written."""
    folder = tmp_path_factory.mktemp("pages")

    def write(name: str, report: Report) -> Path:
        path = folder / f"{name}.html"
        when = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
        path.write_bytes(to_html(report, a_timeline(report), paths_of(report), when))
        return path

    full, passing = a_report(), a_passing_report()
    full.history, passing.history = past(3), past(400)
    return {
        "full": write("full", full),
        "passing": write("passing", passing),
        "verified": write("verified", a_verified_report()),
    }
