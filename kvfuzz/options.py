"""Options that several commands share, and those that have much to say."""

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
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Wall-clock time in all: 60s, 10m or 8h.  [default: 60s]",
    ),
]
Examples = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Mixes a target on each surface, in place of a budget."),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="P",
        help="dev: a minute at random. ci: 20,000 mixes, the same each time. nightly: an hour, "
        "begins with the kept cases, fails if next to nothing could be tried. replay: the "
        "kept cases only.  [default: dev]",
    ),
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Search on the workers of this Dask scheduler: tcp://HOST:8786."
    ),
]
Database = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="Begin with the cases that others found, and keep new ones there: "
        "redis://HOST:PORT or a folder.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        max=2**63 - 1,
        help="Names the stream of mixes; the same seed gives the same mixes.  "
        "[default: a random one, which is shown]",
    ),
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
    typer.Option("--markdown", metavar="FILE", help="Write it there as Markdown."),
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
