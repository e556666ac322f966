"""The report as Markdown: what it says of a verification. Of searches: `tests/cli`."""

from __future__ import annotations

from kvfuzz.reporting.markdown import to_markdown
from tests.report_samples import HOSTILE, a_passing_report, a_verified_report


def test_a_search_names_its_seed_and_covers_nothing():
    text = to_markdown(a_passing_report())
    assert "\nNothing found. kvfuzz 0.0.1, seed 7.\n" in text
    assert "patterns" not in text


def test_a_verification_says_what_it_covered():
    lines = to_markdown(a_verified_report()).splitlines()
    assert lines[2] == "Incomplete: mine:dies could not be tested in full. kvfuzz 0.0.1."
    assert [line for line in lines if line.startswith("- ")] == [
        "- `reference`: 397 patterns, 3 layers, all hold",
        f"- `{HOSTILE}`: 397 patterns, 3 layers, violated: partition",
        "- `mine:dies`: 200 of 794 mixes of 397 patterns, 3 layers, all hold so far",
        "- `mine:dies`: mine:dies was not verified in full on pack: 20 workers died.",
    ]
