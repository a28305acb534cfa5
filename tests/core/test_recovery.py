"""What may be done again, and under which name: the whole table against the rules in words.

The rules are written without looking at how the table computes: each is one sentence of the
design, checked over every situation there is.
"""

import pytest

from tallystick.core.recovery import Verdict, between, judge, situations
from tests.core import recovery_table
from tests.project import ROOT

V = Verdict
NEW_KEY = {V.RETRY, V.ABANDON_RETRY, V.ABANDON_NOW}
SAME_KEY = {V.AGAIN, V.AGAIN_NOW}
AGAIN = NEW_KEY | SAME_KEY
DOUBTS = {verdict for verdict in Verdict if verdict.name.startswith("DOUBT")}
ABANDONS = {verdict for verdict in Verdict if verdict.name.startswith("ABANDON")}
SETTLES = {verdict for verdict in Verdict if verdict.name.startswith("SETTLE")} | {V.RETRY}
HARMLESS = {"read_only", "transactional"}
NEVER_BEGAN = {"refused", "given_up", "precluded"}
UNKNOWN = {"unknown", "unknown_uncounted"}
ALL = [(case, judge(case)) for case in situations()]


def holds(rule) -> None:
    """Check `rule(case, verdict)` everywhere; None means the rule has nothing to say there."""
    said = [(case, verdict, rule(case, verdict)) for case, verdict in ALL]
    assert [(case, verdict) for case, verdict, ok in said if ok is False] == []
    assert any(ok for _, _, ok in said), "a rule that never applies proves nothing"


def test_every_situation_has_a_verdict_and_every_verdict_a_situation():
    assert len(ALL) == 4 * 9 * 3 * 2**6 == len({case for case, _ in ALL})
    assert {verdict for _, verdict in ALL} == set(Verdict)


def test_a_success_settles_always():
    holds(lambda c, v: v is V.SETTLE if c.end == "succeeded" else None)


@pytest.mark.invariant("C8", "R10")
def test_mutating_work_is_never_dispatched_again():
    holds(lambda c, v: v not in SAME_KEY if c.effect == "mutating" else None)


@pytest.mark.invariant("R10", "C8")
def test_mutating_work_gets_a_new_key_only_if_it_never_began():
    holds(
        lambda c, v: (
            c.end in NEVER_BEGAN and c.earlier != "unknown"
            if c.effect == "mutating" and v in NEW_KEY
            else None
        )
    )


@pytest.mark.invariant("C8", "R11")
def test_mutating_work_of_unknown_fate_is_in_doubt_unless_its_step_assumes():
    holds(
        lambda c, v: (
            v in DOUBTS or (v is V.SETTLE_ASSUMED and c.assume and not c.stop)
            if c.effect == "mutating" and (c.end in UNKNOWN or c.end == "interrupted")
            else None
        )
    )


@pytest.mark.invariant("R10")
def test_idempotent_work_never_gets_a_new_key_by_itself():
    holds(lambda c, v: v not in NEW_KEY if c.effect == "idempotent" else None)


@pytest.mark.invariant("R10", "R12")
def test_idempotent_work_is_abandoned_only_when_nothing_more_may_follow():
    """Cancel, deadline or a bound, and only if no dispatch of it ever began."""
    holds(
        lambda c, v: (
            c.end in NEVER_BEGAN
            and c.earlier == "nothing"
            and not c.permitted
            and (c.stop or not (c.named and c.left))
            if c.effect == "idempotent" and v in ABANDONS
            else None
        )
    )


@pytest.mark.invariant("R12", "R11")
def test_after_an_unknown_dispatch_only_a_success_settles_idempotent_work():
    holds(
        lambda c, v: (
            v in SAME_KEY | DOUBTS
            if c.effect == "idempotent" and c.earlier == "unknown" and c.end != "succeeded"
            else None
        )
    )


@pytest.mark.invariant("R12")
def test_after_an_unknown_dispatch_nothing_claims_that_nothing_happened():
    holds(lambda c, v: v not in ABANDONS if c.earlier == "unknown" else None)


@pytest.mark.invariant("R12", "R1")
def test_an_attempt_is_abandoned_only_if_no_dispatch_of_it_began():
    holds(lambda c, v: c.end in NEVER_BEGAN and c.earlier == "nothing" if v in ABANDONS else None)


@pytest.mark.invariant("R12", "R10")
def test_a_new_key_needs_proof_or_harmlessness():
    holds(
        lambda c, v: (
            c.effect in HARMLESS or (c.end in NEVER_BEGAN and c.earlier == "nothing")
            if v in NEW_KEY
            else None
        )
    )


@pytest.mark.invariant("R2", "R1")
def test_what_succeeded_or_was_cancelled_or_is_in_doubt_leads_to_no_new_attempt():
    holds(lambda c, v: v not in NEW_KEY if c.end in ("succeeded", "cancelled") else None)


@pytest.mark.invariant("R5")
def test_nothing_happens_again_after_a_stop():
    holds(lambda c, v: v not in AGAIN if c.stop else None)


@pytest.mark.invariant("R9", "R3")
def test_nothing_counted_happens_again_beyond_its_bound():
    """A dispatch that a person permitted and that never began keeps its permission."""
    counted = {"failed", "refused", "precluded", "unknown"}
    holds(
        lambda c, v: (
            v not in AGAIN
            if not c.left
            and c.end in counted
            and not (c.permitted and c.effect == "idempotent" and c.end == "precluded")
            else None
        )
    )


@pytest.mark.invariant("R9")
def test_only_giving_up_and_orderly_ends_are_free():
    free = {"given_up", "interrupted", "unknown_uncounted"}
    holds(
        lambda c, v: (
            v is judge(c._replace(left=not c.left, named=not c.named)) if c.end in free else None
        )
    )


@pytest.mark.invariant("R5")
def test_a_failure_kind_that_the_policy_does_not_name_is_not_retried():
    holds(lambda c, v: v not in AGAIN if c.end == "failed" and not c.named else None)


def test_an_unknown_end_does_not_ask_what_the_policy_names():
    holds(lambda c, v: v is judge(c._replace(named=not c.named)) if c.end in UNKNOWN else None)


def test_a_closing_run_starts_no_new_attempt():
    holds(lambda c, v: v not in NEW_KEY if c.closing else None)


@pytest.mark.invariant("R4", "R5")
def test_a_permission_is_for_exactly_one_dispatch():
    """Used up by any end but a success; what never began has not used it."""
    holds(
        lambda c, v: (
            v in DOUBTS
            if c.permitted
            and c.effect == "idempotent"
            and c.end not in ("succeeded", "given_up", "precluded")
            else None
        )
    )


@pytest.mark.invariant("R11")
def test_what_may_still_happen_is_never_called_failed():
    """But for `exhausted` of harmless work and `assumed`, which say what they are."""
    over = {V.SETTLE, V.RETRY, V.SETTLE_UNAVAILABLE, V.ABANDON_FAILED}
    holds(lambda c, v: v not in over if c.end in UNKNOWN else None)
    holds(lambda c, v: c.effect in HARMLESS if v is V.SETTLE_EXHAUSTED else None)
    holds(lambda c, v: c.effect == "mutating" and c.assume if v is V.SETTLE_ASSUMED else None)


@pytest.mark.invariant("R11")
def test_cancelled_is_said_only_where_it_is_over_or_harmless():
    holds(
        lambda c, v: (
            c.stop and (c.effect in HARMLESS or c.earlier != "unknown")
            if v in (V.SETTLE_CANCELLED, V.ABANDON_CANCELLED)
            else None
        )
    )
    holds(lambda c, v: v not in DOUBTS if c.effect in HARMLESS else None)


@pytest.mark.invariant("R9")
def test_at_the_bound_with_nothing_ever_begun_the_step_has_failed_as_unavailable():
    holds(
        lambda c, v: (
            v is V.ABANDON_FAILED
            if c.end in ("refused", "precluded")
            and c.earlier == "nothing"
            and not (c.left and c.named)
            and not c.stop
            and not (c.permitted and c.effect == "idempotent")
            else None
        )
    )


@pytest.mark.invariant("R12")
def test_a_stop_between_dispatches_settles_only_what_cannot_still_happen():
    for effect in ("read_only", "transactional", "idempotent", "mutating"):
        for earlier in ("nothing", "failed", "unknown"):
            verdict = between(effect, earlier)
            keyed = effect not in HARMLESS
            assert (verdict in DOUBTS) == (keyed and earlier == "unknown")
            assert (verdict is V.ABANDON_CANCELLED) == (earlier == "nothing")
            assert verdict not in AGAIN


def test_the_table_that_the_docs_show_is_the_one_in_the_code():
    """Print it anew with `python -m tests.core.recovery_table > docs/recovery-table.md`."""
    assert (ROOT / "docs/recovery-table.md").read_text("utf-8") == recovery_table.table()


def test_the_printed_rules_give_the_verdicts_of_the_table():
    """The short form loses nothing: its conditions, read back, decide every cell alike."""
    cells: dict = {}
    for case, verdict in ALL:
        if recovery_table.occurs(case):
            cells.setdefault((case.end, case.effect), []).append((case, verdict))
    for group in cells.values():
        found = recovery_table.rules(group)
        for case, verdict in group:
            assert recovery_table.first(found, case) is verdict
