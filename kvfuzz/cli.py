"""The command line: words, options and help. What the commands do is in `kvfuzz.commands`.

Nothing heavy is imported here: `kvfuzz --help` must not load an engine.
"""

from __future__ import annotations

import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from kvfuzz import __version__
from kvfuzz.errors import Exit, KvfuzzError
from kvfuzz.files import printable
from kvfuzz.options import (
    Budget,
    Dask,
    Database,
    Examples,
    Html,
    Jobs,
    Json,
    Junit,
    Markdown,
    NoLedger,
    Out,
    Profile,
    Seed,
    StateOut,
    Targets,
)

app = typer.Typer(
    name="kvfuzz",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


class Listable(StrEnum):
    """What `kvfuzz list` can list."""

    targets = "targets"
    surfaces = "surfaces"
    invariants = "invariants"
    ledger = "ledger"


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer's callback
    if value:
        typer.echo(f"kvfuzz {__version__}")
        raise typer.Exit


@app.callback()
def kvfuzz(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show it and exit."),
    ] = False,
) -> None:
    """Find mixes of layers that a KV-cache planner gets wrong, and keep them as cases.

    \b
    Examples:
      kvfuzz run --target reference --budget 10s
      kvfuzz run --target vllm==0.25.1 --budget 20s
      kvfuzz verify --layers 5 --target reference
      kvfuzz diff vllm==0.32.0 vllm==0.33.0
      kvfuzz replay reports/cases/CASE.json --target vllm==0.26.0
      kvfuzz list invariants

    \b
    Exit codes:
      0  nothing new            3  a target could not be loaded, or kvfuzz failed
      1  a new finding          4  the ledger disagrees with what a release did
      2  usage or a bad file    130, 143  stopped by Ctrl-C, by SIGTERM
    """  # noqa: D301 - \b keeps the lines that follow it as they are


@app.command()
def run(
    *,
    targets: Targets = None,
    surfaces: Annotated[
        list[str] | None,
        typer.Option(
            "--surface", metavar="S", help="Surface to test; may be repeated.  [default: pack]"
        ),
    ] = None,
    budget: Budget = None,
    examples: Examples = None,
    seed: Seed = None,
    profile: Profile = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the last campaign of DIR, where it was stopped; with --budget, for "
            "so long.",
        ),
    ] = False,
    max_findings: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Stop after N new findings.")
    ] = None,
    jobs: Jobs = None,
    dask: Dask = None,
    database: Database = None,
    json: Json = None,
    markdown: Markdown = None,
    html: Html = None,
    junit: Junit = None,
    out: StateOut = Path("reports"),
    no_ledger: NoLedger = False,
) -> None:
    """Search for mixes that break an invariant.

    Each finding is shrunk to a minimal mix and written to DIR/cases at once. What the
    ledger knows of a target is counted and named, but is no new finding. A search that finds
    something new has more of the time than one that does not. How far the campaign has come is
    kept in DIR/state.sqlite.

    \b
    Examples:
      kvfuzz run
      kvfuzz run --target vllm==0.25.1 --budget 20s --json report.json
      kvfuzz run --target vllm==0.25.1 --target vllm==0.26.0 --examples 50000 --seed 7
      kvfuzz run --target vllm==0.28.0 --html report.html --junit junit.xml
      kvfuzz run --target vllm@../vllm --budget 8h --jobs 4 --out nightly
      kvfuzz run --resume --out nightly
      kvfuzz run --target vllm==0.28.0 --profile nightly --database redis://db:6379
      kvfuzz run --target vllm==0.28.0 --budget 8h --dask tcp://scheduler:8786
      kvfuzz run --target mypackage.planner:make --no-ledger
    """  # noqa: D301 - \b keeps the lines that follow it as they are
    from kvfuzz.commands.run import run as command

    raise typer.Exit(
        command(
            targets=targets or (),
            surfaces=surfaces or (),
            budget=budget,
            examples=examples,
            seed=seed,
            profile=profile,
            resume=resume,
            max_findings=max_findings,
            jobs=jobs,
            dask=dask,
            database=database,
            files={"--json": json, "--markdown": markdown, "--html": html, "--junit": junit},
            out=out,
            use_ledger=not no_ledger,
        )
    )


@app.command()
def verify(
    *,
    layers: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=8, show_default=False, help="The most layers of a mix."
        ),
    ],
    targets: Targets = None,
    jobs: Jobs = None,
    json: Json = None,
    markdown: Markdown = None,
    html: Html = None,
    junit: Junit = None,
    out: StateOut = Path("reports"),
    no_ledger: NoLedger = False,
) -> None:
    """Put every mix of up to N layers to a target, up to what a packer can see of it.

    That is which layers are full MLA and which have a window, and which page sizes (up to 4),
    block sizes and windows (up to 3 each) are equal, in every order of the layers. Two mixes
    stand for each such pattern; from 5 layers on, for a pattern and its reverse. 5 layers are
    402,124 patterns, 6 are 16,714,134.

    How far it has come is kept in DIR/state.sqlite. The same command goes on from there, unless
    it had come to its end or the version of the target or of kvfuzz is another: then it starts
    anew. Delete the file after a change of a planner that leaves its version as it was.

    \b
    Examples:
      kvfuzz verify --layers 5 --target reference
      kvfuzz verify --layers 5 --target vllm==0.28.0 --jobs 2 --html verified.html
      kvfuzz verify --layers 4 --target mypackage.planner:make --no-ledger
    """  # noqa: D301 - \b keeps the lines that follow it as they are
    from kvfuzz.commands.verify import verify as command

    raise typer.Exit(
        command(
            layers=layers,
            targets=targets or (),
            jobs=jobs,
            files={"--json": json, "--markdown": markdown, "--html": html, "--junit": junit},
            out=out,
            use_ledger=not no_ledger,
        )
    )


@app.command()
def diff(
    *,
    one: Annotated[
        str, typer.Argument(metavar="T1", show_default=False, help="A target, as of run.")
    ],
    other: Annotated[str, typer.Argument(metavar="T2", show_default=False, help="Another.")],
    surfaces: Annotated[
        list[str] | None,
        typer.Option(
            "--surface",
            metavar="S",
            help="Surface to compare; may be repeated.  [default: all that both have]",
        ),
    ] = None,
    budget: Budget = None,
    examples: Examples = None,
    seed: Seed = None,
    json: Json = None,
    markdown: Markdown = None,
) -> None:
    """Search for scenarios that two targets answer otherwise: a note before a version bump.

    Both are asked the same scenarios, drawn from what both can be told. They differ in one of
    these, and a scenario counts by the first: refusal (one plans, the other does not), groups,
    kinds (of planned specs), geometry (their other fields), pages (bytes), drafts (marks),
    need (bytes of a longest request), capacity (blocks, longest request). Where pages are
    placed in memory is not compared. Each difference has a count and its simplest scenario.

    \b
    Examples:
      kvfuzz diff vllm==0.32.0 vllm==0.33.0
      kvfuzz diff vllm==0.25.1 vllm==0.26.0 --surface pack --budget 20s
      kvfuzz diff vllm==0.33.0 vllm@../vllm --surface groups --markdown note.md
      kvfuzz diff vllm mypackage.planner:make --examples 20000 --seed 7 --json diff.json
    """  # noqa: D301 - \b keeps the lines that follow it as they are
    from kvfuzz.commands.diff import diff as command

    raise typer.Exit(
        command(
            targets=(one, other),
            surfaces=surfaces or (),
            budget=budget,
            examples=examples,
            seed=seed,
            files={"--json": json, "--markdown": markdown},
        )
    )


@app.command()
def replay(
    *,
    cases: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CASE|ID",
            show_default=False,
            help="Case files, ids of "
            "ledger entries or of cases in DIR; the beginning of an id will do.  "
            "[default: every witness of the ledger]",
        ),
    ] = None,
    targets: Targets = None,
    no_ledger: NoLedger = False,
    update: Annotated[
        bool,
        typer.Option("--update", help="Write what vllm==X did into the ledger's files."),
    ] = False,
    out: Out = Path("reports"),
) -> None:
    """Replay cases: say for certain whether a target has a bug.

    A case that the ledger knows must do what the ledger says of that release, to the word:
    else exit code 4. A case that it does not know: 0 if it holds, 1 if it violates.

    \b
    Examples:
      kvfuzz replay --target vllm==0.28.0
      kvfuzz replay reports/cases/CASE.json --target vllm==0.25.1 --target vllm==0.26.0
      kvfuzz replay uniform-is-none --target vllm@../vllm --no-ledger
      kvfuzz replay --target vllm==0.28.0 --update
    """  # noqa: D301 - \b keeps the lines that follow it as they are
    from kvfuzz.commands.replay import replay_command as command

    raise typer.Exit(
        command(
            names=cases or (),
            targets=targets or (),
            use_ledger=not no_ledger,
            update=update,
            out=out,
        )
    )


@app.command("list")
def list_(what: Annotated[Listable, typer.Argument(show_default=False)]) -> None:
    """List what there is.

    \b
    Examples:
      kvfuzz list targets
      kvfuzz list invariants
      kvfuzz list ledger
    """  # noqa: D301 - \b keeps the lines that follow it as they are
    from kvfuzz.commands.browse import LISTS

    LISTS[what]()


@app.command()
def explain(
    name: Annotated[
        str, typer.Argument(metavar="INVARIANT|ID", help="Id of an invariant or a ledger entry.")
    ],
) -> None:
    """Explain an invariant, or a known finding.

    \b
    Examples:
      kvfuzz explain partition
      kvfuzz explain single-page-size
    """  # noqa: D301 - \b keeps the lines that follow it as they are
    from kvfuzz.commands.browse import explain as command

    command(name)


@app.command()
def show(
    case: Annotated[
        str, typer.Argument(metavar="CASE|ID", help="A case file, or an id as for replay.")
    ],
    out: Out = Path("reports"),
) -> None:
    """Draw a case: a bar a layer, as long as its page, in the reference planner's groups.

    \b
    Examples:
      kvfuzz show reports/cases/CASE.json
      kvfuzz show uniform-is-none
    """  # noqa: D301 - \b keeps the lines that follow it as they are
    from kvfuzz.commands.browse import show as command

    command(case, out)


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(Exit.TERMINATED)


def _say(text: str) -> None:
    print(f"kvfuzz: {printable(text)}", file=sys.stderr)  # noqa: T201 - nothing else may be loaded


def main() -> NoReturn:
    """Run the command line and end the process with a documented exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        app(prog_name="kvfuzz")
    except KvfuzzError as error:
        _say(str(error))
        code = int(error.exit_code)
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader left; nor may the interpreter's last flush complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.OK
    except Exception as error:
        if os.environ.get("KVFUZZ_DEBUG"):
            raise
        _say(
            f"internal error, {type(error).__name__}: {error}. Please report it, with the "
            "traceback that KVFUZZ_DEBUG=1 shows."
        )
        code = Exit.HARNESS
    else:
        code = Exit.OK
    sys.exit(code)


if __name__ == "__main__":
    main()
