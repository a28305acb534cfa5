"""Lies about the story of `story.py`, each with the code that the checker must find it by."""

import json

from tests.checker import story
from tests.checker.story import identity, reseal, spell

PLANTED = {}


def planted(code, *also):
    """Register a lie, with the code of the violation that must be among those found."""

    def register(plant):
        PLANTED[plant.__name__] = (plant, {code, *also})
        return plant

    return register


def edit(db, run, sequence, **changes):
    """Change an event and seal the history anew, so that only its meaning can betray the lie."""
    ((number,),) = db.execute("SELECT run_no FROM tally_run WHERE run_id = ?", (run,))
    where = (number, sequence)
    ((envelope,),) = db.execute(
        "SELECT envelope FROM tally_event WHERE run_no = ? AND sequence = ?", where
    )
    event = {**json.loads(envelope), **changes}
    event = {name: value for name, value in event.items() if value is not None}
    db.execute(
        "UPDATE tally_event SET envelope = ? WHERE run_no = ? AND sequence = ?",
        (spell(event), *where),
    )
    reseal(db, run)


def number_of(db, run, kind, nth=0):
    """The sequence of a run's nth event of a kind."""
    rows = db.execute(
        "SELECT e.sequence FROM tally_event e JOIN tally_run USING (run_no) WHERE run_id = ?"
        " AND envelope LIKE ? ORDER BY e.sequence",
        (run, f'%"kind":"{kind}"%'),
    ).fetchall()
    return rows[nth][0]


# Effects.


@planted("effect-repeated", "dispatch-repeated")
def a_mutating_effect_happens_twice(db, effects):
    effects.append(effects[-1])


@planted("effect-repeated")
def a_mutating_effect_happens_again_under_a_recorded_second_dispatch(db, effects):
    effects.append({**effects[-1], "dispatch": 2})
    db.execute("UPDATE tally_attempt SET dispatch = 2 WHERE node = 'mail' AND run_no = 3")


@planted("effect-key-changed", "key-changed")
def an_idempotent_effect_is_repeated_under_another_key(db, effects):
    abandoned = {"kind": "AttemptAbandoned", "end": "refused", "retry_at": 1, "due": None}
    edit(db, "ended", number_of(db, "ended", "DispatchEnded", 1), **abandoned, dispatch=None)
    prepared = {"kind": "AttemptPrepared", "attempt": 2, "intent": "00", "place": None}
    edit(db, "ended", number_of(db, "ended", "AttemptRedispatched", 1), **prepared, dispatch=None)
    db.execute(
        "INSERT INTO tally_attempt"
        " (run_no, node, instance, attempt, identity, terms, input, prepared_at, place)"
        " SELECT run_no, node, instance, 2, ?, terms, input, prepared_at, place FROM tally_attempt"
        " WHERE run_no = 1 AND node = 'charge'",
        (key := identity("ended", "charge", "", 2),),
    )
    effects.append({"identity": key.hex(), "dispatch": 1})


@planted("effect-without-intent")
def an_effect_happens_that_nobody_announced(db, effects):
    effects.append({"identity": "ab" * 32, "dispatch": 1})


@planted("effect-before-intent")
def an_effect_happens_before_its_intent_is_on_disk(db, effects):
    effects[0]["on_disk"] = False


@planted("effect-without-dispatch")
def a_hand_over_is_not_recorded(db, effects):
    effects.append({**effects[1], "dispatch": 3})


@planted("dispatch-repeated")
def one_dispatch_is_handed_over_twice(db, effects):
    effects.append(effects[0])


@planted("effect-key")
def the_outside_sees_the_key_of_another_attempt(db, effects):
    effects[0]["identity"] = effects[2]["identity"]


@planted("effect-denied")
def what_happened_is_recorded_as_never_begun(db, effects):
    sequence = number_of(db, "doubted", "DispatchEnded")
    edit(db, "doubted", sequence, kind="AttemptAbandoned", end="given_up", dispatch=None)


@planted("effect-missing")
def a_success_is_recorded_that_never_happened(db, effects):
    effects[:] = [effect for effect in effects if effect["node"] != "book"]


@planted("applied")
def a_transactional_effect_is_applied_twice(db, effects):
    db.execute("INSERT INTO applied SELECT * FROM applied")


@planted("applied")
def a_transactional_effect_is_lost(db, effects):
    db.execute("DELETE FROM applied")


# History.


@planted("chain-broken")
def an_event_is_changed(db, effects):
    db.execute("UPDATE tally_event SET envelope = replace(envelope, 'ann', 'bob')")


@planted("chain-broken")
def two_events_are_swapped(db, effects):
    (one, two) = (number_of(db, "ended", kind) for kind in ("RunHandedOff", "DispatchEnded"))
    for old, new in ((one, -1), (two, one), (-1, two)):
        db.execute(
            "UPDATE tally_event SET sequence = ? WHERE run_no = 1 AND sequence = ?", (new, old)
        )


@planted("sequence-gap", "position-gap")
def an_event_is_missing(db, effects):
    db.execute("DELETE FROM tally_event WHERE run_no = 1 AND sequence = 5")


@planted("sequence-head")
def the_last_event_is_missing(db, effects):
    db.execute("DELETE FROM tally_event WHERE position = (SELECT max(position) FROM tally_event)")


@planted("chain-head")
def the_head_is_not_that_of_the_last_event(db, effects):
    db.execute("UPDATE tally_run SET head = zeroblob(32) WHERE run_id = 'flying'")


@planted("position-gap")
def a_position_is_left_out(db, effects):
    db.execute(
        "UPDATE tally_event SET position = position + 1"
        " WHERE position = (SELECT max(position) FROM tally_event)"
    )


@planted("position-order")
def positions_do_not_rise_with_the_sequence(db, effects):
    for old, new in ((3, 0), (4, 3), (0, 4)):
        db.execute("UPDATE tally_event SET position = ? WHERE position = ?", (new, old))


@planted("transition-split")
def one_transition_is_written_in_two_places(db, effects):
    db.execute("UPDATE tally_event SET transition_id = 7 WHERE run_no = 1 AND sequence IN (1, 9)")
    reseal(db, "ended")


@planted("payload-digest")
def a_payload_is_changed(db, effects):
    db.execute("UPDATE tally_payload SET body = '{\"ok\":false}' WHERE body = '{\"ok\":true}'")


@planted("payload-missing")
def a_cited_payload_is_not_there(db, effects):
    db.execute("DELETE FROM tally_payload WHERE run_no = 2 AND sequence = 3")


@planted("payload-uncited")
def a_payload_is_there_that_no_event_cites(db, effects):
    db.execute("INSERT INTO tally_payload SELECT run_no, 2, salt, body, blob, size"
               " FROM tally_payload WHERE run_no = 2 AND sequence = 1")  # fmt: skip


@planted("time-fell")
def the_time_of_a_run_falls(db, effects):
    edit(db, "ended", number_of(db, "ended", "AttemptRedispatched"), at=1)


@planted("envelope-not-canonical")
def an_envelope_is_not_canonical(db, effects):
    event = '{"kind":"RunAdmitted","at":1}'
    db.execute("UPDATE tally_event SET envelope = ? WHERE position = 1", (event,))
    reseal(db, "ended")


@planted("envelope-unreadable")
def an_envelope_names_a_key_twice(db, effects):
    event = '{"at":1,"at":2,"kind":"RunAdmitted"}'
    db.execute("UPDATE tally_event SET envelope = ? WHERE position = 1", (event,))
    reseal(db, "ended")


# Attempts.


@planted("attempt-gap")
def an_attempt_number_is_left_out(db, effects):
    edit(db, "ended", number_of(db, "ended", "AttemptPrepared", 4), attempt=3)


@planted("attempt-missing")
def an_attempt_has_an_event_and_no_row(db, effects):
    db.execute("DELETE FROM tally_attempt WHERE node = 'charge' AND run_no = 2")


@planted("attempt-unsaid")
def an_attempt_has_a_row_and_no_event(db, effects):
    edit(db, "flying", number_of(db, "flying", "AttemptPrepared"), kind="LateFactKept")


@planted("outcome-without-receipt")
def an_outcome_has_no_receipt(db, effects):
    db.execute("UPDATE tally_attempt SET receipt = NULL WHERE node = 'book'")


@planted("outcome-without-receipt")
def nobody_accepted_what_is_settled(db, effects):
    edit(db, "ended", number_of(db, "ended", "AttemptPrepared", 2), accepted=None)


@planted("outcome-time")
def an_outcome_has_no_time(db, effects):
    db.execute("UPDATE tally_attempt SET outcome_at = NULL WHERE node = 'book'")


@planted("outcome-time")
def a_time_has_no_outcome(db, effects):
    db.execute("UPDATE tally_attempt SET outcome_at = 5 WHERE run_no = 2")


@planted("closed-twice")
def an_attempt_has_an_outcome_and_an_abandonment(db, effects):
    db.execute("UPDATE tally_attempt SET abandoned_at = 5 WHERE node = 'book'")


@planted("identity")
def a_stored_identity_is_another(db, effects):
    db.execute("UPDATE tally_attempt SET identity = zeroblob(32) WHERE run_no = 2")


@planted("intent-differs")
def a_column_differs_from_the_intent(db, effects):
    db.execute("UPDATE tally_attempt SET place = 'elsewhere' WHERE run_no = 2")


@planted("intent-differs")
def the_input_of_an_intent_is_changed(db, effects):
    db.execute("UPDATE tally_attempt SET input = zeroblob(32) WHERE run_no = 2")


@planted("intent-differs")
def the_time_of_an_intent_is_changed(db, effects):
    db.execute("UPDATE tally_attempt SET prepared_at = prepared_at - 1 WHERE run_no = 2")


@planted("intent-shown")
def the_view_shows_another_intent(db, effects):
    db.execute("DROP VIEW tally_attempt_row")
    db.execute("CREATE VIEW tally_attempt_row AS SELECT *, '{}' AS intent FROM tally_attempt")


@planted("attempt-row")
def a_row_says_more_than_the_events(db, effects):
    db.execute("UPDATE tally_attempt SET outcome = 'succeeded', outcome_at = 5,"
               " outcome_sequence = 5 WHERE run_no = 2")  # fmt: skip


@planted("attempt-row")
def a_doubt_is_forgotten_in_the_row(db, effects):
    db.execute("UPDATE tally_attempt SET doubt = NULL WHERE run_no = 3")


@planted("attempt-row")
def a_row_forgets_that_an_earlier_dispatch_may_have_happened(db, effects):
    db.execute("UPDATE tally_attempt SET earlier_unknown = 0")


@planted("mutating-repeated")
def a_mutating_attempt_is_handed_over_again(db, effects):
    sequence = number_of(db, "doubted", "AttemptDoubted")
    again = {"kind": "AttemptRedispatched", "dispatch": 2, "place": "there", "reason": None}
    edit(db, "doubted", sequence, **again)


@planted("mutating-repeated")
def a_failed_mutating_attempt_gets_a_successor_by_itself(db, effects):
    settled = {"kind": "AttemptSettled", "status": "failed", "dispatch": 1, "payload": None}
    edit(db, "ended", number_of(db, "ended", "AttemptAbandoned"), **settled, effect="possible")
    edit(db, "ended", number_of(db, "ended", "DoubtResolved"), kind="LateFactKept")


@planted("successor")
def an_attempt_in_doubt_gets_a_successor(db, effects):
    edit(db, "ended", number_of(db, "ended", "AttemptAbandoned"), kind="LateFactKept")


@planted("retry-early")
def a_retry_comes_before_it_is_due(db, effects):
    edit(db, "ended", number_of(db, "ended", "AttemptAbandoned"), retry_at=9_999)


@planted("redispatch-early")
def a_redispatch_comes_before_it_is_due(db, effects):
    edit(db, "ended", number_of(db, "ended", "DispatchEnded", 1), due=9_999)


@planted("redispatch")
def an_operation_in_flight_is_handed_over_again(db, effects):
    edit(db, "ended", number_of(db, "ended", "DispatchEnded", 1), kind="LateFactKept")


@planted("dispatch-gap")
def a_dispatch_number_is_left_out(db, effects):
    edit(db, "ended", number_of(db, "ended", "AttemptRedispatched"), dispatch=3)


@planted("abandoned-begun")
def what_may_have_begun_is_abandoned_by_itself(db, effects):
    edit(db, "ended", number_of(db, "ended", "DoubtResolved"), kind="LateFactKept")


@planted("doubt")
def harmless_work_goes_in_doubt(db, effects):
    sequence = number_of(db, "ended", "DispatchEnded")
    edit(db, "ended", sequence, kind="AttemptDoubted", reason="lazy", end=None, due=None)


@planted("none-unproved")
def a_failure_says_none_beside_a_dispatch_of_unknown_fate(db, effects):
    sequence = number_of(db, "ended", "AttemptSettled")
    edit(db, "ended", sequence, status="failed", effect="none", failure="error")


@planted("bound")
def an_operation_fails_more_often_than_its_terms_allow(db, effects):
    body = story.terms("idempotent").replace('"max_attempts":2', '"max_attempts":0')
    db.execute("UPDATE tally_terms SET body = ? WHERE body = ?", (body, story.terms("idempotent")))


@planted("activation-row")
def a_failure_is_not_counted(db, effects):
    sequence = number_of(db, "doubted", "DispatchEnded")
    edit(db, "doubted", sequence, end="failed")


# Runs.


@planted("run-row")
def the_consumed_counter_is_off(db, effects):
    db.execute("UPDATE tally_run SET consumed = consumed + 1 WHERE run_id = 'ended'")


@planted("run-row")
def a_doubt_is_still_counted_as_active(db, effects):
    db.execute("UPDATE tally_run SET active = 1 WHERE run_id = 'doubted'")


@planted("run-row")
def the_open_attempts_are_miscounted(db, effects):
    db.execute("UPDATE tally_run SET open_attempts = 0 WHERE run_id = 'flying'")


@planted("run-row")
def the_ready_activations_are_miscounted(db, effects):
    db.execute("UPDATE tally_run SET ready = 1 WHERE run_id = 'flying'")


@planted("run-row")
def the_baseline_limits_are_changed(db, effects):
    db.execute("UPDATE tally_run SET limits = '{\"attempts\":9}' WHERE run_id = 'flying'")


@planted("run-row")
def a_run_is_bound_to_something_else(db, effects):
    db.execute('UPDATE tally_bindings SET body = \'{"root":"/tmp"}\'')


@planted("generation")
def a_generation_is_left_out(db, effects):
    edit(db, "ended", number_of(db, "ended", "RunHandedOff"), generation=3)


@planted("start-under-barrier")
def work_is_handed_over_under_a_barrier(db, effects):
    edit(db, "ended", number_of(db, "ended", "BarrierDropped"), kind="LateFactKept")


@planted("barrier")
def a_handoff_with_work_in_flight_sets_no_barrier(db, effects):
    edit(db, "ended", number_of(db, "ended", "RunHandedOff"), barrier=None)


@planted("barrier")
def the_barrier_falls_before_everything_is_decided(db, effects):
    edit(db, "ended", number_of(db, "ended", "DispatchEnded"), kind="BarrierDropped")


@planted("start-after-stop")
def work_is_prepared_after_the_run_was_stopping(db, effects):
    edit(db, "ended", number_of(db, "ended", "BarrierDropped"), kind="RunStopping", cause="cancel")


@planted("start-past-deadline")
def work_is_prepared_at_the_deadline(db, effects):
    edit(db, "flying", 1, deadline=1_002)


@planted("without-owner")
def a_released_run_moves(db, effects):
    edit(db, "ended", number_of(db, "ended", "BarrierDropped"), kind="RunReleased", generation=2)


@planted("ended-open")
def a_run_ends_while_something_is_open(db, effects):
    edit(
        db, "doubted", number_of(db, "doubted", "AttemptDoubted"), kind="RunEnded", status="failed"
    )


@planted("terminal-open")
def an_open_run_is_shown_as_ended(db, effects):
    db.execute("UPDATE tally_run SET status = 'succeeded' WHERE run_id = 'flying'")


@planted("after-the-end")
def an_ended_run_moves(db, effects):
    edit(db, "ended", number_of(db, "ended", "ActivationEnded"), kind="RunEnded", status="failed")


@planted("status")
def a_doubt_is_not_shown(db, effects):
    db.execute("UPDATE tally_run SET status = 'running' WHERE run_id = 'doubted'")


@planted("status-reason")
def a_run_waits_for_nothing_that_it_names(db, effects):
    db.execute("UPDATE tally_run SET status = 'waiting' WHERE run_id = 'flying'")


@planted("activation-row")
def an_activation_ended_otherwise_than_its_events_say(db, effects):
    db.execute("UPDATE tally_activation SET status = 'failed' WHERE node = 'book'")


@planted("activation-unsaid")
def an_activation_has_a_row_and_no_event(db, effects):
    db.execute("INSERT INTO tally_activation (run_no, node, instance, status)"
               " VALUES (1, 'ghost', '', 'succeeded')")  # fmt: skip


@planted("activation-missing")
def an_activation_has_an_event_and_no_row(db, effects):
    db.execute("DELETE FROM tally_activation WHERE node = 'extra'")


@planted("run-lost", "file")
def an_acknowledged_run_is_gone(db, effects):
    db.execute("DELETE FROM tally_run WHERE run_id = 'doubted'")


@planted("terms-digest")
def the_terms_of_an_intent_are_changed(db, effects):
    db.execute("UPDATE tally_terms SET body = replace(body, 'mutating', 'read_only')")


@planted("definition-digest")
def a_definition_is_changed(db, effects):
    db.execute("UPDATE tally_definition SET body = replace(body, 'story', 'fable')")


@planted("epoch")
def an_engine_is_of_an_epoch_that_never_was(db, effects):
    row = ("e9", 9, "b", "h", "b", 1, 0, "/l", 1, 1, None, None)
    db.execute(f"INSERT INTO tally_engine VALUES ({', '.join('?' * len(row))})", row)
