-- Every statement that a store runs, by name. `(a, b)` after a name lists what it binds, in order. A
-- statement named like a fact binds the run's number and then the fact's fields.
--
-- Written for one row. A loader rewrites statements that change many rows of one batch: an INSERT gets
-- more rows of VALUES, an UPDATE reads its values from a table `given`. So an UPDATE names its own
-- table's columns in full, has its WHERE on a line of its own, and each statement changes exactly one
-- row for each row that it is given; a store compares the two numbers.

-- name: snapshot ()
-- The guard of a whole batch, and where its numbers start.
SELECT
  epoch,
  (SELECT ifnull(max(position), 0) FROM tally_event),
  (SELECT ifnull(max(run_no), 0) FROM tally_run)
FROM tally_store;

-- name: run_number (run_id)
-- The short number by which rows name their run.
SELECT run_no FROM tally_run WHERE run_id = :run_id;

-- name: expected (run_id)
-- What the guard of a run compares, as it is now.
SELECT generation, token, sequence FROM tally_run WHERE run_id = :run_id;

-- name: holder_of_key (key)
-- Which run an idempotency key belongs to, and what was asked when it was started.
SELECT run_id, request FROM tally_run WHERE key = :key;

-- name: insert_bindings (digest, body)
-- What runs were bound to, once for all of them.
INSERT INTO tally_bindings (digest, body) VALUES (:digest, :body) ON CONFLICT DO NOTHING;

-- name: insert_run (run_no, run_id, key, request, definition, workflow, semantics, bindings, limits, admitted_at, deadline, generation, token, engine, sequence, head, last_at, status, reason, due_at, consumed, active, open_attempts, ready, barrier, stopping, ended_at)
-- A new run; its id and its key must be free.
INSERT INTO tally_run (
  run_no, run_id, key, request, definition, workflow, semantics, bindings, limits, admitted_at, deadline,
  generation, token, engine,
  sequence, head, last_at, status, reason, due_at, consumed, active, open_attempts, ready, barrier,
  stopping, ended_at
)
VALUES (:run_no, :run_id, :key, :request, :definition, :workflow, :semantics, :bindings, :limits, :admitted_at, :deadline, :generation, :token, :engine, :sequence, :head, :last_at, :status, :reason, :due_at, :consumed, :active, :open_attempts, :ready, :barrier, :stopping, :ended_at);

-- name: advance_run (run_no, held_generation, held_token, held_sequence, sequence, head, last_at, status, reason, due_at, consumed, active, open_attempts, ready, barrier, stopping)
-- Guard and header in one: the run moves only from exactly the expected authority and sequence.
UPDATE tally_run SET
  sequence = :sequence, head = :head, last_at = :last_at, status = :status, reason = :reason,
  due_at = :due_at, consumed = :consumed, active = :active, open_attempts = :open_attempts,
  ready = :ready, barrier = :barrier, stopping = :stopping
WHERE tally_run.run_no = :run_no AND tally_run.generation = :held_generation
  AND tally_run.token IS :held_token AND tally_run.sequence = :held_sequence;

-- name: finish_run (run_no, held_generation, held_token, held_sequence, sequence, head, last_at, status, reason, due_at, consumed, active, open_attempts, ready, barrier, stopping, ended_at)
-- The same with the end. Apart, because naming `ended_at` rewrites the index of unfinished runs.
UPDATE tally_run SET
  sequence = :sequence, head = :head, last_at = :last_at, status = :status, reason = :reason,
  due_at = :due_at, consumed = :consumed, active = :active, open_attempts = :open_attempts,
  ready = :ready, barrier = :barrier, stopping = :stopping, ended_at = :ended_at
WHERE tally_run.run_no = :run_no AND tally_run.generation = :held_generation
  AND tally_run.token IS :held_token AND tally_run.sequence = :held_sequence;

-- name: move_run (run_no, held_generation, held_token, held_sequence, sequence, head, last_at, status, reason, due_at, consumed, active, open_attempts, ready, barrier, stopping, ended_at, generation, token, engine)
-- The same where authority moves: claim, handoff, release.
UPDATE tally_run SET
  sequence = :sequence, head = :head, last_at = :last_at, status = :status, reason = :reason,
  due_at = :due_at, consumed = :consumed, active = :active, open_attempts = :open_attempts,
  ready = :ready, barrier = :barrier, stopping = :stopping, ended_at = :ended_at,
  generation = :generation, token = :token, engine = :engine
WHERE tally_run.run_no = :run_no AND tally_run.generation = :held_generation
  AND tally_run.token IS :held_token AND tally_run.sequence = :held_sequence;

-- name: insert_terms (digest, body)
-- What intents cite, once for all of them.
INSERT INTO tally_terms (digest, body) VALUES (:digest, :body) ON CONFLICT DO NOTHING;

-- name: insert_activation (run_no, node, instance, ready_sequence, status, end_sequence)
-- A visit to a node.
INSERT INTO tally_activation (run_no, node, instance, ready_sequence, status, end_sequence)
VALUES (:run_no, :node, :instance, :ready_sequence, :status, :end_sequence);

-- name: end_activation (run_no, status, end_sequence, node, instance)
-- A visit ends; nothing of it is due any more.
UPDATE tally_activation SET status = :status, end_sequence = :end_sequence, due_at = NULL
WHERE tally_activation.run_no = :run_no AND tally_activation.node = :node
  AND tally_activation.instance = :instance;

-- name: count_activation (run_no, failures, interruptions, permissions, due_at, node, instance)
-- The counts of a live visit and when its next attempt is due.
UPDATE tally_activation SET
  failures = :failures, interruptions = :interruptions, permissions = :permissions, due_at = :due_at
WHERE tally_activation.run_no = :run_no AND tally_activation.node = :node
  AND tally_activation.instance = :instance;

-- name: insert_attempt (run_no, node, instance, attempt, identity, terms, input, prepared_at, place, receipt)
-- The intent in its parts, with dispatch 1.
INSERT INTO tally_attempt (
  run_no, node, instance, attempt, identity, terms, input, prepared_at, place, receipt
)
VALUES (:run_no, :node, :instance, :attempt, :identity, :terms, :input, :prepared_at, :place, :receipt);

-- name: attach_receipt (run_no, receipt, node, instance, attempt)
-- The current dispatch was accepted.
UPDATE tally_attempt SET receipt = :receipt
WHERE tally_attempt.run_no = :run_no AND tally_attempt.node = :node
  AND tally_attempt.instance = :instance AND tally_attempt.attempt = :attempt;

-- name: begin_dispatch (run_no, dispatch, place, receipt, node, instance, attempt)
-- The one statement that raises the dispatch number; it empties what belonged to the former dispatch.
UPDATE tally_attempt SET
  first_place = CASE tally_attempt.place
    WHEN :place THEN tally_attempt.first_place
    ELSE coalesce(tally_attempt.first_place, tally_attempt.place)
  END,
  dispatch = :dispatch, place = :place, receipt = :receipt, timeout_at = NULL, "end" = NULL, due_at = NULL
WHERE tally_attempt.run_no = :run_no AND tally_attempt.node = :node
  AND tally_attempt.instance = :instance AND tally_attempt.attempt = :attempt;

-- name: end_dispatch (run_no, end, due_at, earlier_unknown, earlier_failed, node, instance, attempt)
-- The current dispatch is over, its attempt stays open.
UPDATE tally_attempt SET
  "end" = :end, due_at = :due_at, earlier_unknown = :earlier_unknown, earlier_failed = :earlier_failed
WHERE tally_attempt.run_no = :run_no AND tally_attempt.node = :node
  AND tally_attempt.instance = :instance AND tally_attempt.attempt = :attempt;

-- name: request_timeout (run_no, timeout_at, node, instance, attempt)
-- The current dispatch was asked to stop.
UPDATE tally_attempt SET timeout_at = :timeout_at
WHERE tally_attempt.run_no = :run_no AND tally_attempt.node = :node
  AND tally_attempt.instance = :instance AND tally_attempt.attempt = :attempt;

-- name: mark_doubt (run_no, doubt, node, instance, attempt)
-- A person has to decide; null lifts the mark.
UPDATE tally_attempt SET doubt = :doubt
WHERE tally_attempt.run_no = :run_no AND tally_attempt.node = :node
  AND tally_attempt.instance = :instance AND tally_attempt.attempt = :attempt;

-- name: set_resolution (run_no, resolution, node, instance, attempt)
-- What the person decided.
UPDATE tally_attempt SET resolution = :resolution
WHERE tally_attempt.run_no = :run_no AND tally_attempt.node = :node
  AND tally_attempt.instance = :instance AND tally_attempt.attempt = :attempt;

-- name: set_outcome (run_no, outcome, effect, outcome_at, outcome_sequence, receipt, node, instance, attempt)
-- How the attempt ended, once. A receipt that is there stays.
UPDATE tally_attempt SET
  outcome = :outcome, effect = :effect, outcome_at = :outcome_at, outcome_sequence = :outcome_sequence,
  receipt = coalesce(tally_attempt.receipt, :receipt), doubt = NULL
WHERE tally_attempt.run_no = :run_no AND tally_attempt.node = :node
  AND tally_attempt.instance = :instance AND tally_attempt.attempt = :attempt;

-- name: abandon (run_no, abandoned_at, end, node, instance, attempt)
-- The attempt never began and never can.
UPDATE tally_attempt SET abandoned_at = :abandoned_at, "end" = :end, doubt = NULL
WHERE tally_attempt.run_no = :run_no AND tally_attempt.node = :node
  AND tally_attempt.instance = :instance AND tally_attempt.attempt = :attempt;

-- name: insert_event (position, run_no, sequence, transition_id, envelope, hash)
-- What was said.
INSERT INTO tally_event (position, run_no, sequence, transition_id, envelope, hash)
VALUES (:position, :run_no, :sequence, :transition_id, :envelope, :hash);

-- name: insert_payload (run_no, sequence, salt, body, blob, size)
-- What an event cites, here or in a file.
INSERT INTO tally_payload (run_no, sequence, salt, body, blob, size)
VALUES (:run_no, :sequence, :salt, :body, :blob, :size);

-- name: insert_store (store_id, schema, created_at)
-- The one row of a new store; its first engine epoch is 1.
INSERT INTO tally_store (one, store_id, schema, epoch, created_at)
VALUES (1, :store_id, :schema, 1, :created_at);

-- name: store_row ()
-- What this store is.
SELECT store_id, schema, epoch FROM tally_store;

-- name: insert_definition (digest, body, description)
-- A compiled graph by its digest. The first description stays: it is outside the digest.
INSERT INTO tally_definition (digest, body, description)
SELECT :digest, :body, :description
WHERE NOT EXISTS (SELECT 1 FROM tally_definition WHERE digest = :digest AND body = :body);

-- name: read_definition (digest)
-- A compiled graph.
SELECT body FROM tally_definition WHERE digest = :digest;

-- name: read_terms (digest)
-- What an intent was prepared under.
SELECT body FROM tally_terms WHERE digest = :digest;

-- name: insert_engine (instance, epoch, build, host, boot, pid, started_at, lock_path, lock_device, lock_inode, ended, ended_at)
-- An engine opened the store.
INSERT INTO tally_engine (
  instance, epoch, build, host, boot, pid, started_at, lock_path, lock_device, lock_inode, ended, ended_at
)
VALUES (:instance, :epoch, :build, :host, :boot, :pid, :started_at, :lock_path, :lock_device, :lock_inode, :ended, :ended_at);

-- name: end_engine (instance, ended, ended_at)
-- An engine says how it ended.
UPDATE tally_engine SET ended = :ended, ended_at = :ended_at
WHERE tally_engine.instance = :instance;

-- name: read_engine (instance)
-- What an engine left about itself.
SELECT
  instance, epoch, build, host, boot, pid, started_at, lock_path, lock_device, lock_inode, ended, ended_at
FROM tally_engine WHERE instance = :instance;

-- name: read_run (run_id)
-- A run's row.
SELECT * FROM tally_run_row WHERE run_id = :run_id;

-- name: read_run_by_key (key)
-- The run that an idempotency key belongs to.
SELECT * FROM tally_run_row WHERE key = :key;

-- name: list_runs (before, status, workflow, key, limit)
-- A page of runs, newest first. Null: any. `status` is a JSON list.
SELECT * FROM tally_run_row
WHERE run_no < :before
  AND (:status IS NULL OR status IN (SELECT value FROM json_each(:status)))
  AND (:workflow IS NULL OR workflow = :workflow)
  AND (:key IS NULL OR key = :key)
ORDER BY run_no DESC LIMIT :limit;

-- name: find_runs (from, to, limit)
-- Ids in a range, in their order.
SELECT run_id FROM tally_run WHERE run_id >= :from AND run_id < :to ORDER BY run_id LIMIT :limit;

-- name: count_runs ()
-- How many runs are in each state. What an ended run's owner was is nobody's matter any more.
SELECT
  status, reason, CASE WHEN ended_at IS NULL THEN engine END AS owner, damaged IS NOT NULL AS is_damaged,
  count(*)
FROM tally_run GROUP BY status, reason, owner, is_damaged;

-- name: list_halted (after, limit)
-- Unfinished runs that may wait for a person, oldest first.
SELECT * FROM tally_run_row
WHERE ended_at IS NULL AND run_no > :after
  AND (status IN ('in_doubt', 'waiting') OR damaged IS NOT NULL)
ORDER BY run_no LIMIT :limit;

-- name: list_unfinished (after, limit)
-- Runs that have not ended, oldest first.
SELECT * FROM tally_run_row
WHERE ended_at IS NULL AND run_no > :after
ORDER BY run_no LIMIT :limit;

-- name: read_events (run_id, after, limit)
-- A page of a run's history with what it cites.
SELECT
  e.position, e.sequence, e.transition_id, e.envelope, e.hash, p.salt, p.body, p.blob, p.size
FROM tally_event AS e
LEFT JOIN tally_payload AS p ON p.run_no = e.run_no AND p.sequence = e.sequence
WHERE e.run_no = (SELECT run_no FROM tally_run WHERE run_id = :run_id) AND e.sequence > :after
ORDER BY e.sequence LIMIT :limit;

-- name: feed (after, limit)
-- Events of all runs in the order of their commits, with what they cite.
SELECT
  r.run_id, e.position, e.sequence, e.transition_id, e.envelope, e.hash, p.salt, p.body, p.blob, p.size
FROM tally_event AS e
JOIN tally_run AS r ON r.run_no = e.run_no
LEFT JOIN tally_payload AS p ON p.run_no = e.run_no AND p.sequence = e.sequence
WHERE e.position > :after
ORDER BY e.position LIMIT :limit;

-- name: read_payload (run_id, sequence)
-- What one event cites, with the envelope that cites it.
SELECT e.envelope, p.salt, p.body, p.blob, p.size
FROM tally_event AS e
LEFT JOIN tally_payload AS p ON p.run_no = e.run_no AND p.sequence = e.sequence
WHERE e.run_no = (SELECT run_no FROM tally_run WHERE run_id = :run_id) AND e.sequence = :sequence;

-- name: read_attempts (run_id)
-- All attempts of a run.
SELECT * FROM tally_attempt_row WHERE run_no = (SELECT run_no FROM tally_run WHERE run_id = :run_id)
ORDER BY node, instance, attempt;

-- name: read_pending (run_id, node, instance, attempt, most)
-- Open attempts of a run after a place in their order, a page of them.
SELECT * FROM tally_attempt_row WHERE run_no = (SELECT run_no FROM tally_run WHERE run_id = :run_id)
  AND outcome IS NULL AND abandoned_at IS NULL
  AND (node, instance, attempt) > (:node, :instance, :attempt)
ORDER BY node, instance, attempt LIMIT :most;

-- name: read_activations (run_id)
-- All visits of a run.
SELECT
  node, instance, ready_sequence, status, end_sequence, failures, interruptions, permissions, due_at
FROM tally_activation WHERE run_no = (SELECT run_no FROM tally_run WHERE run_id = :run_id)
ORDER BY node, instance;

-- name: cites_blob (blob)
-- Whether any payload names this file.
SELECT count(*) FROM tally_payload WHERE blob = :blob;
