"""What two targets can both be told."""

from __future__ import annotations

from kvfuzz.catalogue import FieldForm, KindForm, common_catalogue
from kvfuzz.pages import FULL_DIALECT, Dialect, PageRules, beyond, common_dialect

_SIZE = FieldForm(type="int", required=True)
_MODE = FieldForm(type="name", names=("none", "half", "full"), enum="Mode", default="none")


def test_kinds_and_fields_that_both_have():
    one = {"full": KindForm("Full", {"size": _SIZE, "old": _SIZE}), "gone": KindForm("Gone", {})}
    other = {"full": KindForm("Full", {"new": FieldForm(type="int"), "size": _SIZE})}
    # The other does not know `old`, which the one will not do without.
    assert common_catalogue(one, other) == {}
    one["full"].fields["old"] = FieldForm(type="int")
    assert common_catalogue(one, other) == {"full": KindForm("Full", {"size": _SIZE})}


def test_a_field_is_required_if_either_wants_it():
    one = {"full": KindForm("Full", {"size": FieldForm(type="int", default=3)})}
    other = {"full": KindForm("Full", {"size": _SIZE})}
    form = common_catalogue(one, other)["full"].fields["size"]
    assert form == FieldForm(type="int", required=True, default=3)


def test_names_that_both_have():
    later = FieldForm(type="name", names=("none", "full", "tiny"), enum="Mode", mark=True)
    one, other = {"full": KindForm("F", {"m": _MODE})}, {"full": KindForm("F", {"m": later})}
    form = common_catalogue(one, other)["full"].fields["m"]
    assert (form.names, form.mark, form.default) == (("none", "full"), True, "none")


def test_a_field_of_another_type_is_another_field():
    other = FieldForm(type="text")
    one, two = {"full": KindForm("F", {"m": _MODE})}, {"full": KindForm("F", {"m": other})}
    assert common_catalogue(one, two)["full"].fields == {}


def _dialect(**fields: object) -> Dialect:
    return Dialect(rules=PageRules(), **fields)  # type: ignore[arg-type]


def test_dialects():
    one = _dialect(
        fields={"mla_attention": frozenset({"a", "b"}), "sliding_window_mla": frozenset({"a"})},
        quant_modes=frozenset({"none", "nvfp4"}),
        layouts=("LBHNC", "BLHNC"),
    )
    other = _dialect(
        fields={"mla_attention": frozenset({"b", "c"})},
        quant_modes=frozenset({"none"}),
        catalogue={"mamba": KindForm("Mamba", {"size": _SIZE})},
        layouts=("BLHNC",),
    )
    common = common_dialect(one, other)
    assert common.fields == {"mla_attention": frozenset({"b"})}
    assert common.quant_modes == {"none"}
    assert common.layouts == ("BLHNC",)
    assert common.catalogue == {}
    assert beyond(one, common) == ("mla_attention.a", "sliding_window_mla", "layout LBHNC")
    assert beyond(other, common) == ("mla_attention.c", "mamba")


def test_a_dialect_has_itself_in_common():
    assert common_dialect(FULL_DIALECT, FULL_DIALECT) == FULL_DIALECT
    assert beyond(FULL_DIALECT, FULL_DIALECT) == ()
