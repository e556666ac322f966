"""The HTML report, parsed."""

from __future__ import annotations

from datetime import UTC, datetime

from bs4 import BeautifulSoup, Tag

from kvfuzz.engine.events import Report
from kvfuzz.reporting.html import to_html
from kvfuzz.reporting.timeline import Timeline
from tests.report_samples import a_timeline, paths_of

WHEN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def html_of(report: Report, timeline: Timeline | None = None) -> bytes:
    """The file."""
    return to_html(report, timeline or a_timeline(report), paths_of(report), WHEN)


def page_of(report: Report, timeline: Timeline | None = None) -> BeautifulSoup:
    """The page in it."""
    return BeautifulSoup(html_of(report, timeline), "html.parser")


def text_of(node: Tag | None) -> str:
    """The text of a node, with single blanks."""
    assert node is not None
    return " ".join(node.get_text(" ").split())


def section_of(page: BeautifulSoup, name: str) -> Tag:
    """A section of the page, by the id of its heading."""
    node = page.find("section", attrs={"aria-labelledby": name})
    assert isinstance(node, Tag)
    return node
