"""Case files: one scenario each, as data that can be mailed, reviewed and replayed.

The format is JSON, version 1: `{"format": 1, "surface": "pack", "scenario":
{"mix": [{"name": ..., "kind": ..., fields...}, ...]}}` and, if kvfuzz wrote
it, what was found with it. Nothing in a case is ever executed, imported or
unpickled: what cannot be decoded into these types is an error that names the
place.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union

import msgspec

from kvfuzz import __version__
from kvfuzz.errors import UsageError
from kvfuzz.files import decode_json, printable, read_bytes, write_atomically
from kvfuzz.findings import Finding
from kvfuzz.invariants import get_invariant
from kvfuzz.planner_config import PLAIN_CONFIG, PlannerConfig
from kvfuzz.specs import (
    KINDS,
    LayerName,
    LayerSpec,
    Scenario,
    ShortText,
    Value,
    open_spec,
    scenario_to_json,
)
from kvfuzz.surfaces import SURFACES

FORMAT = 1
#: Far above any model; planners are quadratic in places.
MAX_LAYERS = 2048
MAX_RANKS = 64


class WireScenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario in a file.

    `mix` holds one object a layer: name, kind, fields. Draft layers are the
    last of it; `ranks` holds the pipeline rank of each.
    """

    mix: Annotated[list[Any], msgspec.Meta(min_length=1, max_length=MAX_LAYERS)]
    config: PlannerConfig = PLAIN_CONFIG
    drafts: Annotated[int, msgspec.Meta(ge=0)] = 0
    ranks: list[Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]] = []


@cache
def _layer_decoder() -> Any:
    """The union of one wire type a kind: the spec class with a name added."""
    wires = tuple(
        msgspec.defstruct(
            f"Named{cls.__name__}",
            [("name", LayerName)],
            bases=(cls,),
            tag=kind,
            frozen=True,
            kw_only=True,
        )
        for kind, cls in KINDS.items()
    )
    return Union[wires]  # noqa: UP007 - made at run time


class _OpenLayer(msgspec.Struct, frozen=True):
    """What a layer of an open spec says beside its fields."""

    name: LayerName
    kind: ShortText


def _layer(data: Any, surface: str) -> tuple[str, LayerSpec]:
    """A layer's name and spec; of the packer's kinds, or an open one."""
    if not SURFACES[surface].open_specs:
        named = msgspec.convert(data, _layer_decoder())
        cls = KINDS[named.kind]
        return named.name, cls(**{f: getattr(named, f) for f in cls.__struct_fields__})
    layer = msgspec.convert(data, _OpenLayer)
    fields = msgspec.convert(
        {name: value for name, value in data.items() if name not in ("name", "kind")},
        dict[ShortText, Value],
    )
    return layer.name, open_spec(layer.kind, fields)


def scenario_from_wire(wire: WireScenario, surface: str, where: str) -> Scenario:
    """The scenario that a file's `scenario` object states.

    Raises:
        UsageError: A layer is not of a known form, a name stands twice, or
            there are more draft layers or ranks than layers.
    """
    mix: dict[str, LayerSpec] = {}
    for index, data in enumerate(wire.mix):
        place = f"$.scenario.mix[{index}]"
        try:
            name, spec = _layer(data, surface)
        except msgspec.ValidationError as error:
            text = str(error)
            text = text.replace("`$", f"`{place}") if "`$" in text else f"{text} - at `{place}`"
            raise UsageError(f"{where}: {printable(text)}.") from None
        if name in mix:
            raise UsageError(f"{where}: layer name {name!r} stands twice - at `{place}.name`.")
        mix[name] = spec
    if wire.drafts > len(mix):
        raise UsageError(
            f"{where}: {wire.drafts} draft layers of {len(mix)} - at `$.scenario.drafts`."
        )
    if wire.ranks and len(wire.ranks) != len(mix):
        raise UsageError(
            f"{where}: {len(wire.ranks)} ranks for {len(mix)} layers - at `$.scenario.ranks`."
        )
    return Scenario(tuple(mix.items()), wire.config, wire.drafts, tuple(wire.ranks))


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case file as it stands.

    `surface` and `scenario` are what a replay needs; with `invariant`, it
    judges that one. The rest says what was found when the case was written.
    """

    format: int
    surface: str = "pack"
    scenario: WireScenario
    id: str = ""
    invariant: str | None = None
    fingerprint: str = ""
    target: str = ""
    version: str = ""
    message: str = ""
    kvfuzz: str = ""


CaseT = TypeVar("CaseT", bound=Case)

_FORMAT = msgspec.json.Decoder(msgspec.defstruct("Format", [("format", int)]))


def read_case(path: Path, form: type[CaseT]) -> tuple[CaseT, Scenario]:
    """The case in a file, in the given form, and its scenario.

    Raises:
        UsageError: As `read_bytes` and `decode_case`.
    """
    return decode_case(read_bytes(path), printable(str(path)), form)


def decode_case(data: bytes, shown: str, form: type[CaseT]) -> tuple[CaseT, Scenario]:
    """The case in the bytes of a file that is shown by that name, and its scenario.

    Raises:
        UsageError: As `decode_json`; or the format is a later one, or the
            surface or invariant is unknown.
    """
    version = decode_json(data, shown, _FORMAT).format  # type: ignore[attr-defined]
    if version != FORMAT:
        raise UsageError(
            f"{shown} has format {version}, and this kvfuzz reads format {FORMAT}: "
            "use the kvfuzz that wrote it, or upgrade."
        )
    case = decode_json(data, shown, msgspec.json.Decoder(form))
    if case.invariant is not None:
        get_invariant(case.invariant)
    if case.surface not in SURFACES:
        raise UsageError(f"{shown}: there is no surface {case.surface!r} - at `$.surface`.")
    return case, scenario_from_wire(case.scenario, case.surface, shown)


def case_text(finding: Finding) -> bytes:
    """The finding's case file, as it is written."""
    case = {
        "format": FORMAT,
        "id": finding.id,
        "invariant": finding.invariant,
        "fingerprint": finding.fingerprint,
        "surface": finding.surface,
        "target": finding.target,
        "version": finding.version,
        "message": finding.message,
        "scenario": scenario_to_json(finding.scenario),
        "kvfuzz": __version__,
    }
    return msgspec.json.format(msgspec.json.encode(case)) + b"\n"


def write_case(finding: Finding, folder: Path) -> Path:
    """Write the finding's case file into `folder`, whole or not at all; its path.

    Raises:
        UsageError: The folder cannot be written.
    """
    path = folder / f"{finding.id}.json"
    write_atomically(path, case_text(finding))
    return path
