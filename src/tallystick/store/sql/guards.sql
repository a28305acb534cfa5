-- The guards: what even SQL typed by hand cannot do. They hold against UPDATE, DELETE, INSERT OR REPLACE
-- and UPDATE OR REPLACE alike. Two things make them look as they do:
--
--   * REPLACE deletes the row in its way without firing DELETE triggers, so every key is guarded
--     BEFORE INSERT: what exists cannot be inserted again.
--   * `UPDATE OF column` does not see a rowid named by its alias (`SET rowid = 7`), so tables with a
--     rowid compare it themselves.
--
-- A store whose guards are missing or differ from this text is not opened (`MaintenanceRequired`).

-- The store: one row, for ever the same store; epoch and schema only rise.
CREATE TRIGGER tally_store_insert BEFORE INSERT ON tally_store
WHEN EXISTS (SELECT 1 FROM tally_store)
BEGIN SELECT RAISE(ABORT, 'tally_store has its one row'); END;

CREATE TRIGGER tally_store_update BEFORE UPDATE ON tally_store
WHEN NEW.one IS NOT OLD.one OR NEW.store_id IS NOT OLD.store_id OR NEW.created_at IS NOT OLD.created_at
  OR NEW.epoch < OLD.epoch OR NEW.schema < OLD.schema
BEGIN SELECT RAISE(ABORT, 'a store keeps its id; epoch and schema only rise'); END;

CREATE TRIGGER tally_store_delete BEFORE DELETE ON tally_store
BEGIN SELECT RAISE(ABORT, 'the row of tally_store stays'); END;

-- Engines: only the end is added, once.
CREATE TRIGGER tally_engine_insert BEFORE INSERT ON tally_engine
WHEN EXISTS (SELECT 1 FROM tally_engine WHERE instance = NEW.instance)
BEGIN SELECT RAISE(ABORT, 'this engine instance is recorded'); END;

CREATE TRIGGER tally_engine_identity
BEFORE UPDATE OF instance, epoch, build, host, boot, pid, started_at, lock_path, lock_device, lock_inode
ON tally_engine
BEGIN SELECT RAISE(ABORT, 'how an engine started never changes'); END;

CREATE TRIGGER tally_engine_end BEFORE UPDATE OF ended, ended_at ON tally_engine
WHEN OLD.ended IS NOT NULL AND (NEW.ended IS NOT OLD.ended OR NEW.ended_at IS NOT OLD.ended_at)
BEGIN SELECT RAISE(ABORT, 'the end of an engine is recorded once'); END;

CREATE TRIGGER tally_engine_delete BEFORE DELETE ON tally_engine
BEGIN SELECT RAISE(ABORT, 'the record of an engine stays'); END;

-- Content-addressed rows: a digest has one content for ever. The same content again is no change.
CREATE TRIGGER tally_definition_insert BEFORE INSERT ON tally_definition
WHEN EXISTS (
  SELECT 1 FROM tally_definition
  WHERE digest = NEW.digest AND (body IS NOT NEW.body OR description IS NOT NEW.description)
)
BEGIN SELECT RAISE(ABORT, 'this definition has other content'); END;

CREATE TRIGGER tally_definition_update BEFORE UPDATE ON tally_definition
BEGIN SELECT RAISE(ABORT, 'a definition never changes'); END;

CREATE TRIGGER tally_definition_delete BEFORE DELETE ON tally_definition
BEGIN SELECT RAISE(ABORT, 'a definition stays'); END;

CREATE TRIGGER tally_bindings_insert BEFORE INSERT ON tally_bindings
WHEN EXISTS (SELECT 1 FROM tally_bindings WHERE digest = NEW.digest AND body IS NOT NEW.body)
BEGIN SELECT RAISE(ABORT, 'these bindings have other content'); END;

CREATE TRIGGER tally_bindings_update BEFORE UPDATE ON tally_bindings
BEGIN SELECT RAISE(ABORT, 'bindings never change'); END;

CREATE TRIGGER tally_bindings_delete BEFORE DELETE ON tally_bindings
BEGIN SELECT RAISE(ABORT, 'bindings stay'); END;

CREATE TRIGGER tally_terms_insert BEFORE INSERT ON tally_terms
WHEN EXISTS (SELECT 1 FROM tally_terms WHERE digest = NEW.digest AND body IS NOT NEW.body)
BEGIN SELECT RAISE(ABORT, 'these terms have other content'); END;

CREATE TRIGGER tally_terms_update BEFORE UPDATE ON tally_terms
BEGIN SELECT RAISE(ABORT, 'terms never change'); END;

CREATE TRIGGER tally_terms_delete BEFORE DELETE ON tally_terms
BEGIN SELECT RAISE(ABORT, 'terms stay'); END;

-- Runs: pinned for ever; authority only moves on; time, counts and sequence never fall; one end.
CREATE TRIGGER tally_run_insert BEFORE INSERT ON tally_run
WHEN EXISTS (SELECT 1 FROM tally_run WHERE run_no = NEW.run_no)
  OR EXISTS (SELECT 1 FROM tally_run WHERE run_id = NEW.run_id)
  OR EXISTS (SELECT 1 FROM tally_run WHERE key = NEW.key)
BEGIN SELECT RAISE(ABORT, 'this run, or its key, exists'); END;

CREATE TRIGGER tally_run_pinned
BEFORE UPDATE OF run_id, key, request, definition, workflow, semantics, bindings, limits, admitted_at, deadline
ON tally_run
BEGIN SELECT RAISE(ABORT, 'what a run was admitted with never changes'); END;

CREATE TRIGGER tally_run_authority BEFORE UPDATE OF generation, token, engine ON tally_run
WHEN NEW.generation NOT IN (OLD.generation, OLD.generation + 1)
  OR (NEW.generation > OLD.generation AND (NEW.token IS NULL OR NEW.token IS OLD.token))
  OR (NEW.generation = OLD.generation AND NEW.token IS NOT NULL AND NEW.token IS NOT OLD.token)
  OR (NEW.token IS OLD.token AND NEW.engine IS NOT OLD.engine)
BEGIN SELECT RAISE(ABORT, 'authority moves only with the next generation and a new token'); END;

CREATE TRIGGER tally_run_progress BEFORE UPDATE ON tally_run
WHEN NEW.run_no IS NOT OLD.run_no OR NEW.sequence < OLD.sequence OR NEW.last_at < OLD.last_at
  OR NEW.consumed < OLD.consumed OR (NEW.sequence = OLD.sequence AND NEW.head IS NOT OLD.head)
  OR (OLD.ended_at IS NOT NULL AND (NEW.ended_at IS NOT OLD.ended_at OR NEW.status IS NOT OLD.status))
BEGIN SELECT RAISE(ABORT, 'sequence, time, count and end of a run only move on'); END;

CREATE TRIGGER tally_run_delete BEFORE DELETE ON tally_run
BEGIN SELECT RAISE(ABORT, 'a run stays'); END;

-- Activations: an ended visit never changes.
CREATE TRIGGER tally_activation_insert BEFORE INSERT ON tally_activation
WHEN EXISTS (
  SELECT 1 FROM tally_activation WHERE run_no = NEW.run_no AND node = NEW.node AND instance = NEW.instance
)
BEGIN SELECT RAISE(ABORT, 'this activation exists'); END;

CREATE TRIGGER tally_activation_pinned BEFORE UPDATE OF run_no, node, instance, ready_sequence
ON tally_activation
BEGIN SELECT RAISE(ABORT, 'what an activation is never changes'); END;

CREATE TRIGGER tally_activation_ended BEFORE UPDATE ON tally_activation
WHEN OLD.status IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'this activation has ended'); END;

CREATE TRIGGER tally_activation_delete BEFORE DELETE ON tally_activation
BEGIN SELECT RAISE(ABORT, 'an activation stays'); END;

-- Attempts: an immutable intent; one receipt, request and end for each dispatch; one outcome.
CREATE TRIGGER tally_attempt_insert BEFORE INSERT ON tally_attempt
WHEN EXISTS (
    SELECT 1 FROM tally_attempt
    WHERE run_no = NEW.run_no AND node = NEW.node AND instance = NEW.instance AND attempt = NEW.attempt
  )
  OR NEW.dispatch <> 1 OR NEW.first_place IS NOT NULL OR NEW."end" IS NOT NULL OR NEW.outcome IS NOT NULL OR NEW.abandoned_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'this attempt exists, or does not begin at its beginning'); END;

-- A trigger of its own, because it looks at another table: nothing new under a barrier, after a
-- cancel request, or after the end.
CREATE TRIGGER tally_attempt_barrier BEFORE INSERT ON tally_attempt
WHEN EXISTS (
  SELECT 1 FROM tally_run
  WHERE run_no = NEW.run_no AND (barrier = 1 OR stopping = 'cancel' OR ended_at IS NOT NULL)
)
BEGIN SELECT RAISE(ABORT, 'this run takes no new attempt'); END;

CREATE TRIGGER tally_attempt_intent
BEFORE UPDATE OF run_no, node, instance, attempt, identity, terms, input, prepared_at
ON tally_attempt
BEGIN SELECT RAISE(ABORT, 'an intent never changes'); END;

CREATE TRIGGER tally_attempt_place BEFORE UPDATE OF place, first_place ON tally_attempt
WHEN coalesce(NEW.first_place, NEW.place) IS NOT coalesce(OLD.first_place, OLD.place)
BEGIN SELECT RAISE(ABORT, 'the place of an intent never changes'); END;

CREATE TRIGGER tally_attempt_dispatch BEFORE UPDATE OF dispatch, place ON tally_attempt
WHEN (NEW.dispatch IS NOT OLD.dispatch OR NEW.place IS NOT OLD.place) AND (
  NEW.dispatch <> OLD.dispatch + 1
  OR OLD."end" IS NULL OR OLD.outcome IS NOT NULL OR OLD.abandoned_at IS NOT NULL
  OR EXISTS (
    SELECT 1 FROM tally_run
    WHERE run_no = NEW.run_no AND (barrier = 1 OR stopping = 'cancel' OR ended_at IS NOT NULL)
  )
)
BEGIN SELECT RAISE(ABORT, 'this attempt cannot be dispatched again'); END;

CREATE TRIGGER tally_attempt_receipt BEFORE UPDATE OF receipt ON tally_attempt
WHEN OLD.receipt IS NOT NULL AND NEW.receipt IS NOT OLD.receipt AND NEW.dispatch = OLD.dispatch
BEGIN SELECT RAISE(ABORT, 'a receipt is written once for each dispatch'); END;

CREATE TRIGGER tally_attempt_timeout BEFORE UPDATE OF timeout_at ON tally_attempt
WHEN OLD.timeout_at IS NOT NULL AND NEW.timeout_at IS NOT OLD.timeout_at AND NEW.dispatch = OLD.dispatch
BEGIN SELECT RAISE(ABORT, 'a timeout is requested once for each dispatch'); END;

CREATE TRIGGER tally_attempt_end BEFORE UPDATE OF "end", due_at, earlier_unknown, earlier_failed
ON tally_attempt
WHEN NEW.dispatch = OLD.dispatch AND (
  (OLD."end" IS NOT NULL AND NEW."end" IS NULL)
  OR NEW.earlier_unknown < OLD.earlier_unknown OR NEW.earlier_failed < OLD.earlier_failed
)
BEGIN SELECT RAISE(ABORT, 'only the next dispatch empties the end'); END;

CREATE TRIGGER tally_attempt_closed
BEFORE UPDATE OF dispatch, place, receipt, timeout_at, "end", due_at, earlier_unknown, earlier_failed, doubt,
  outcome, effect, outcome_at, outcome_sequence, abandoned_at
ON tally_attempt
WHEN OLD.outcome IS NOT NULL OR OLD.abandoned_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'this attempt is closed'); END;

CREATE TRIGGER tally_attempt_delete BEFORE DELETE ON tally_attempt
BEGIN SELECT RAISE(ABORT, 'an attempt stays'); END;

-- Events: appended, numbered without gaps, never beyond what the run's own row says, never touched.
CREATE TRIGGER tally_event_insert BEFORE INSERT ON tally_event
WHEN NEW.position IS NULL
  OR NEW.position <> 1 + ifnull((SELECT max(position) FROM tally_event), 0)
  OR NEW.sequence <> 1 + ifnull((SELECT max(sequence) FROM tally_event WHERE run_no = NEW.run_no), 0)
  OR NEW.sequence > ifnull((SELECT sequence FROM tally_run WHERE run_no = NEW.run_no), 0)
BEGIN SELECT RAISE(ABORT, 'events are numbered without gaps'); END;

CREATE TRIGGER tally_event_update BEFORE UPDATE ON tally_event
BEGIN SELECT RAISE(ABORT, 'an event never changes'); END;

CREATE TRIGGER tally_event_delete BEFORE DELETE ON tally_event
BEGIN SELECT RAISE(ABORT, 'an event stays'); END;

-- Payloads: never changed; they may go when their run has ended.
CREATE TRIGGER tally_payload_insert BEFORE INSERT ON tally_payload
WHEN EXISTS (SELECT 1 FROM tally_payload WHERE run_no = NEW.run_no AND sequence = NEW.sequence)
BEGIN SELECT RAISE(ABORT, 'this payload exists'); END;

CREATE TRIGGER tally_payload_update BEFORE UPDATE ON tally_payload
BEGIN SELECT RAISE(ABORT, 'a payload never changes'); END;

CREATE TRIGGER tally_payload_delete BEFORE DELETE ON tally_payload
WHEN (SELECT ended_at FROM tally_run WHERE run_no = OLD.run_no) IS NULL
BEGIN SELECT RAISE(ABORT, 'the payloads of a live run stay'); END;
