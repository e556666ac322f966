"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="T",
        help="Planner to test: reference, vllm, vllm==X (X may be latest), vllm@PATH or "
        "module:factory. May be repeated.  [default: vllm if it is installed, else reference]",
    ),
]
NoLedger = Annotated[
    bool,
    typer.Option("--no-ledger", help="Do as if nothing were known."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=256,
        help="Worker processes.  [default: one a core, 8 at most]",
    ),
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the report there too.")
]
Markdown = Annotated[
    Path | None,
    typer.Option(
        "--markdown", metavar="FILE", help="Write it there as a table of targets and rules."
    ),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write it there as one page that opens offline."),
]
Junit = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", help="Write it there as JUnit XML, for CI."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of case files: DIR/cases.")]
StateOut = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="Folder of case files, DIR/cases, and of the state."),
]
