"""What two targets answer otherwise, for the terminal, as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kvfuzz import __version__
from kvfuzz.engine.comparison import Comparison, Found, SurfaceComparison
from kvfuzz.engine.differences import ASPECTS
from kvfuzz.engine.replies import Gathered, Part, Reply
from kvfuzz.files import printable
from kvfuzz.reporting.mix import look_of, mix_table
from kvfuzz.reporting.terminal import QuietConsole
from kvfuzz.reporting.words import plural
from kvfuzz.specs import Scenario, scenario_to_json, spec_fields

#: Differences in full; the others have a line.
MAX_FULL = 20
#: Groups of an answer that are shown; one to a scenario that was not shrunk may have dozens.
_MAX_GROUPS = 12


def _ordered(surface: SurfaceComparison) -> list[Found]:
    """By aspect, the most frequent first."""
    aspects = list(ASPECTS)
    return sorted(
        surface.found,
        key=lambda found: (aspects.index(found.difference.aspect), -found.scenarios),
    )


def headline(found: Found) -> str:
    """What differs, in a line."""
    difference = found.difference
    kinds = ", ".join(look_of(kind)[0] for kind in difference.kinds if kind)
    return f"{difference.aspect}: {printable(difference.how)}" + (f" ({kinds})" if kinds else "")


def verdict(report: Comparison) -> str:
    """The last word."""
    scenarios = plural(sum(surface.scenarios for surface in report.surfaces), "scenario")
    if not report.found:
        return f"No difference that matters in {scenarios}. Seed {report.seed}."
    differing = sum(surface.differing for surface in report.surfaces)
    return (
        f"{plural(len(report.found), 'difference')}, shown by {differing:,} of {scenarios}. "
        f"Seed {report.seed}."
    )


def _notes(report: Comparison) -> Iterator[str]:
    """What only one of the targets has, a sentence each, and whose config is no engine's."""
    if len(set(report.configs)) > 1 and all(report.configs):
        said = (
            f"{uri} by a {kind}" for uri, kind in zip(report.targets, report.configs, strict=True)
        )
        yield f"one plans by an engine's own config: {', '.join(said)} config"
    both = zip(report.targets, report.surfaces_of_one, report.only, strict=True)
    for uri, surfaces, only in both:
        if surfaces:
            yield f"only {uri} has the {_listed('surface', surfaces)}"
        if only:
            yield f"only {uri} has, and so neither was asked about: {', '.join(_gathered(only))}"


def _listed(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _gathered(names: Sequence[str]) -> Iterator[str]:
    """Kinds and layouts as they are; of fields, each with the kinds that have it."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, dot, field = name.partition(".")
        if dot:
            kinds.setdefault(field, []).append(kind)
        else:
            yield name if name.startswith("layout ") else f"kind {name}"
    for field, having in kinds.items():
        yield f"{field} of {', '.join(having) if len(having) < 4 else f'{len(having)} kinds'}"


def _counts(surface: SurfaceComparison, report: Comparison) -> Iterator[str]:
    yield (
        f"{plural(surface.scenarios, 'scenario')} in {surface.seconds:.1f} s, "
        f"{surface.differing:,} answered otherwise"
    )
    for uri, lacking in zip(report.targets, surface.left_out, strict=True):
        if lacking:
            yield f"{lacking:,} left out, which {uri} cannot be told"
    if surface.fickle:
        yield f"{surface.fickle:,} differed once, and not when both were asked again"
    if surface.stopped:
        yield f"stopped early: {surface.stopped}"


def _shown(found: Found, report: Comparison) -> Iterator[str]:
    """The mix and both answers."""
    kind = "minimal mix" if found.shrunk else "mix, not shrunk"
    yield f"{kind}, {plural(len(found.scenario), 'layer')}:"
    mine, theirs = found.pages
    for line in mix_table(found.scenario, mine or theirs):
        yield f"  {line}"
    engine = {
        name: value for name, value in scenario_to_json(found.scenario).items() if name != "mix"
    }
    settings = engine.pop("config", {}) | engine
    if settings:
        yield f"  engine: {', '.join(f'{name}={value}' for name, value in settings.items())}"
    for uri, reply in zip(report.targets, found.replies, strict=True):
        first, *others = answer_lines(reply, found.scenario)
        yield f"{printable(uri)} {first}"
        yield from (f"  {line}" for line in others)


def answer_lines(reply: Reply, scenario: Scenario) -> list[str]:
    """What a target answers: a phrase, then its groups and memory, a line each."""
    if not reply.planned:
        verb = "refuses" if reply.outcome == "refusal" else "crashes"
        return [f"{verb}: {printable(reply.message)}"]
    if reply.outcome == "none":
        return ["does not pack the mix"]
    lines = [f"plans {plural(sum(group.times for group in reply.groups), 'group')}:"]
    lines += [_group(group, scenario) for group in reply.groups[:_MAX_GROUPS]]
    if (more := len(reply.groups) - _MAX_GROUPS) > 0:
        lines.append(f"and {more:,} more")
    for number, rank in enumerate(reply.ranks):
        where = f"rank {number}: " if len(reply.ranks) > 1 else ""
        lines.append(
            f"{where}{rank.blocks:,} blocks of {rank.block:,} bytes; "
            f"one longest request takes {rank.needed:,}"
        )
    if reply.max_model_len:
        lines.append(f"longest request: {reply.max_model_len:,} tokens")
    lines += [f"says: {fact}" for fact in reply.facts]
    return lines


def _group(group: Gathered, scenario: Scenario) -> str:
    times = f"{group.times} x " if group.times > 1 else ""
    parts = "; ".join(_part(part, scenario) for part in group.parts) or "no layer"
    return f"{times}{parts}{' (draft)' if group.drafts else ''}"


def _part(part: Part, scenario: Scenario) -> str:
    name = look_of(part.given)[0] if part.given else "layers that nobody asked about"
    text = f"{part.count} {name}"
    if part.kind and part.kind != part.given:
        text += f" as {look_of(part.kind)[0]}"
    if part.kind and part.layer >= 0:
        given, planned = spec_fields(scenario.mix[part.layer][1]), dict(part.fields)
        # Through JSON, where a tuple is a list.
        changed = {
            name: value
            for name, value in msgspec.to_builtins(planned).items()
            if given.get(name) != value
        }
        lost = [name for name in given if name not in planned] if part.kind == part.given else []
        said = [f"{name}={value}" for name, value in changed.items()]
        said += [f"no {name}" for name in lost]
        text += f" with {', '.join(said)}" if said else ""
    return printable(f"{text}, page {part.page:,}")


def print_comparison(out: QuietConsole, report: Comparison) -> None:
    """Print all that a comparison came to."""
    for note in _notes(report):
        out.say(printable(note), style="dim")
    for surface in report.surfaces:
        title = printable(" and ".join(report.targets))
        out.say(f"{title}, surface {surface.surface}", style="bold")
        for line in _counts(surface, report):
            out.say(printable(line))
        out.say()
        full, others = _split(surface)
        for found in full:
            count = plural(found.scenarios, "scenario")
            out.say(f"{headline(found)}: {count}", style="bold red")
            for line in _shown(found, report):
                out.say(f"  {line}")
            out.say()
        for found in others:
            out.say(_line(found))
        if others:
            out.say()
    out.say(verdict(report), style="bold red" if report.found else "bold green")


def _split(surface: SurfaceComparison) -> tuple[list[Found], list[Found]]:
    """What is shown in full, and what in a line: what was not shrunk is long, and may be rare."""
    found = _ordered(surface)
    full = [one for one in found if one.shrunk][:MAX_FULL] or found[:1]
    return full, [one for one in found if one not in full]


def _line(found: Found) -> str:
    """A difference in a line."""
    layers = plural(len(found.scenario), "layer") + ("" if found.shrunk else ", not shrunk")
    return f"{headline(found)}: {plural(found.scenarios, 'scenario')} ({layers})"


def comparison_to_markdown(report: Comparison) -> str:
    """The comparison as Markdown text."""
    one, other = (f"`{uri}`" for uri in report.targets)
    lines = [f"# {one} and {other}", ""]
    lines += [f"{'Interrupted. ' if report.interrupted else ''}{verdict(report)}", ""]
    notes = [f"- {note}" for note in _notes(report)]
    lines += [*notes, ""] if notes else []
    for surface in report.surfaces:
        lines += [f"## Surface `{surface.surface}`", ""]
        lines += [*(f"- {line}" for line in _counts(surface, report)), ""]
        full, others = _split(surface)
        for found in full:
            about = ASPECTS[found.difference.aspect]
            lines += [f"### {headline(found)}", ""]
            lines += [f"{plural(found.scenarios, 'scenario')}; {about}.", ""]
            lines += ["```", *_shown(found, report), "```", ""]
        lines += [*(f"- {_line(found)}" for found in others), ""]
    return "\n".join(lines).rstrip() + "\n"


def comparison_to_json(report: Comparison) -> bytes:
    """The comparison as a JSON file, in the form that scripts rely on."""
    both = zip(
        report.targets,
        report.versions,
        report.configs,
        report.surfaces_of_one,
        report.only,
        strict=True,
    )
    data = {
        "kvfuzz": __version__,
        "seed": report.seed,
        "interrupted": report.interrupted,
        "targets": [
            {
                "uri": uri,
                "version": version,
                "config": config or None,
                "only_surfaces": surfaces,
                "only": only,
            }
            for uri, version, config, surfaces, only in both
        ],
        "surfaces": [
            {
                "surface": surface.surface,
                "scenarios": surface.scenarios,
                "differing": surface.differing,
                "left_out": surface.left_out,
                "fickle": surface.fickle,
                "seconds": round(surface.seconds, 3),
                "stopped": surface.stopped,
            }
            for surface in report.surfaces
        ],
        "differences": [
            _found_to_json(surface.surface, found)
            for surface in report.surfaces
            for found in _ordered(surface)
        ],
    }
    return msgspec.json.format(msgspec.json.encode(data)) + b"\n"


def _found_to_json(surface: str, found: Found) -> dict[str, Any]:
    return {
        "surface": surface,
        **msgspec.structs.asdict(found.difference),
        "scenarios": found.scenarios,
        "shrunk": found.shrunk,
        "scenario": scenario_to_json(found.scenario),
        "pages": found.pages,
        "answers": [_reply_to_json(reply) for reply in found.replies],
    }


def _reply_to_json(reply: Reply) -> dict[str, Any]:
    return {
        "outcome": reply.outcome,
        "message": reply.message,
        "groups": [
            {
                "times": group.times,
                "drafts": group.drafts,
                "layers": [
                    {**msgspec.structs.asdict(part), "fields": dict(part.fields)}
                    for part in group.parts
                ],
            }
            for group in reply.groups
        ],
        "ranks": [msgspec.structs.asdict(rank) for rank in reply.ranks],
        "max_model_len": reply.max_model_len,
        "facts": list(reply.facts),
    }
