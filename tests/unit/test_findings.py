"""What makes two violations one bug."""

from __future__ import annotations

from kvfuzz.findings import finding_id, fingerprint, mask
from kvfuzz.invariants.conduct import crash_violation
from kvfuzz.invariants.grouping import PartitionViolation
from kvfuzz.outcomes import Crash


def _crash(message: str, layers: tuple[str, ...] = (), function: str = "plan") -> str:
    crash = Crash(symptom="exception", exception="KeyError", function=function, message=message)
    return fingerprint("pack", crash_violation(crash, layers))


def test_numbers_and_names_do_not_matter():
    assert _crash("page 64 of layers.0", ("layers.0",)) == _crash("page 9.5 of attn", ("attn",))
    assert _crash("no 'a'") == _crash("no 'b'")


def test_function_message_and_exception_do():
    prints = {_crash("a"), _crash("b"), _crash("a", function="group")}
    assert len(prints) == 3


def test_symptoms_of_one_invariant_are_kept_apart():
    lost = PartitionViolation(symptom="lost", got="", expected="")
    twice = PartitionViolation(symptom="repeated", got="", expected="")
    assert fingerprint("pack", lost) != fingerprint("pack", twice)


def test_fingerprints_stay_the_same_between_versions():
    """Ledger entries and other people's scripts hold them: a change loses every known finding."""
    lost = PartitionViolation(symptom="lost", got="this", expected="that")
    digest = fingerprint("pack", lost)
    assert digest == "1971e674c88727f7e59086c30b938e60b281656bde766d97cfd2382dc85c1870"
    assert finding_id("partition", digest) == f"partition-{digest[:8]}"


def test_a_short_layer_name_does_not_garble_words():
    assert mask("a page of layer a", ("a",)) == "<layer> page of layer <layer>"
    assert mask("assert all", ("a",)) == "assert all"
