-- The tables of a store. One idea: what was said (events) is never changed, and what holds (rows) only
-- ever goes from absent to present, so that most of the ledger can be guarded by the database itself:
-- here by CHECK, beside this file by the triggers of guards.sql.
--
-- Integers are milliseconds since 1970 and bigints. JSON is canonical text, opaque to SQL. Digests,
-- hashes, identities and tokens are raw bytes. Every table of ours begins with tally_.
--
-- Lock order: tally_store, tally_run, then everything that belongs to a run.

-- One row: what this store is. `epoch` names the engine lock that holds now.
CREATE TABLE tally_store (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  store_id TEXT NOT NULL,
  schema INTEGER NOT NULL,
  epoch INTEGER NOT NULL CHECK (epoch >= 1),
  created_at INTEGER NOT NULL
) STRICT;

-- One row for each opening of the store by an engine; the evidence about its end.
CREATE TABLE tally_engine (
  instance TEXT PRIMARY KEY NOT NULL,
  epoch INTEGER NOT NULL,
  build TEXT NOT NULL,
  host TEXT NOT NULL,
  boot TEXT NOT NULL,
  pid INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  lock_path TEXT NOT NULL,
  lock_device INTEGER NOT NULL,
  lock_inode INTEGER NOT NULL,
  ended TEXT,
  ended_at INTEGER,
  CHECK ((ended IS NULL) = (ended_at IS NULL))
) STRICT, WITHOUT ROWID;

-- Immutable, content-addressed: compiled graphs, what runs were bound to, the terms that intents cite.
CREATE TABLE tally_definition (
  digest BLOB PRIMARY KEY NOT NULL CHECK (length(digest) = 32),
  body TEXT NOT NULL,
  description TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tally_bindings (
  digest BLOB PRIMARY KEY NOT NULL CHECK (length(digest) = 32),
  body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tally_terms (
  digest BLOB PRIMARY KEY NOT NULL CHECK (length(digest) = 32),
  body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A run: first what never changes, then its authority, then what every transition moves. The row is
-- rewritten by every transition, so nothing large lies here: bindings are cited by digest.
CREATE TABLE tally_run (
  run_no INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  key TEXT UNIQUE,
  request BLOB NOT NULL CHECK (length(request) = 32),
  definition BLOB NOT NULL REFERENCES tally_definition (digest),
  workflow TEXT NOT NULL,
  semantics INTEGER NOT NULL,
  bindings BLOB NOT NULL REFERENCES tally_bindings (digest),
  limits TEXT NOT NULL,
  admitted_at INTEGER NOT NULL,
  deadline INTEGER,

  generation INTEGER NOT NULL CHECK (generation >= 0),
  token BLOB,
  engine TEXT,

  sequence INTEGER NOT NULL CHECK (sequence >= 0),
  head BLOB NOT NULL CHECK (length(head) = 32),
  last_at INTEGER NOT NULL,
  status TEXT NOT NULL,
  reason TEXT,
  due_at INTEGER,
  consumed INTEGER NOT NULL,
  active INTEGER NOT NULL CHECK (active >= 0),
  open_attempts INTEGER NOT NULL,
  ready INTEGER NOT NULL CHECK (ready >= 0),
  barrier INTEGER NOT NULL CHECK (barrier IN (0, 1)),
  stopping TEXT,
  ended_at INTEGER,
  damaged TEXT,

  CHECK ((token IS NULL) = (engine IS NULL)),
  CHECK (token IS NULL OR (generation >= 1 AND length(token) >= 1)),
  CHECK (active <= open_attempts AND open_attempts <= consumed),
  CHECK (ended_at IS NULL OR (open_attempts = 0 AND barrier = 0)),
  CHECK ((ended_at IS NOT NULL) = (status IN ('succeeded', 'failed', 'cancelled')))
) STRICT;

CREATE INDEX tally_run_unfinished ON tally_run (run_no) WHERE ended_at IS NULL;

-- A run as it is read.
CREATE VIEW tally_run_row AS
SELECT
  r.run_no, r.run_id, r.key, r.request, r.definition, r.workflow, r.semantics, b.body AS bindings, r.limits,
  r.admitted_at, r.deadline, r.generation, r.token, r.engine,
  r.sequence, r.head, r.last_at, r.status, r.reason, r.due_at, r.consumed, r.active, r.open_attempts,
  r.ready, r.barrier, r.stopping, r.ended_at, r.damaged
FROM tally_run AS r JOIN tally_bindings AS b ON b.digest = r.bindings;

-- One visit to one node. ready_sequence and end_sequence name the events that brought input and output.
CREATE TABLE tally_activation (
  run_no INTEGER NOT NULL REFERENCES tally_run (run_no),
  node TEXT NOT NULL,
  instance TEXT NOT NULL,
  ready_sequence INTEGER,
  status TEXT,
  end_sequence INTEGER,
  failures INTEGER NOT NULL DEFAULT 0,
  interruptions INTEGER NOT NULL DEFAULT 0,
  permissions INTEGER NOT NULL DEFAULT 0,
  due_at INTEGER,
  PRIMARY KEY (run_no, node, instance),
  CHECK ((status IS NULL) = (end_sequence IS NULL)),
  CHECK (failures >= 0 AND interruptions >= 0 AND permissions >= 0)
) STRICT, WITHOUT ROWID;

-- One attempt: the intent, the current dispatch, and how it ended. Which facts are there is the status.
--
-- The intent lies here in parts, none of them twice: whole it would be a fifth of all that a step costs.
-- The view puts it together as the canonical JSON that the event of its preparation cites. first_place
-- is set when a later dispatch went to another place.
CREATE TABLE tally_attempt (
  run_no INTEGER NOT NULL REFERENCES tally_run (run_no),
  node TEXT NOT NULL,
  instance TEXT NOT NULL,
  attempt INTEGER NOT NULL CHECK (attempt >= 1),
  identity BLOB NOT NULL CHECK (length(identity) = 32),
  terms BLOB NOT NULL REFERENCES tally_terms (digest),
  input BLOB NOT NULL CHECK (length(input) = 32),
  prepared_at INTEGER NOT NULL,
  first_place TEXT,

  dispatch INTEGER NOT NULL DEFAULT 1 CHECK (dispatch >= 1),
  place TEXT NOT NULL,
  receipt TEXT,
  timeout_at INTEGER,
  "end" TEXT,
  due_at INTEGER,
  earlier_unknown INTEGER NOT NULL DEFAULT 0 CHECK (earlier_unknown IN (0, 1)),
  earlier_failed INTEGER NOT NULL DEFAULT 0 CHECK (earlier_failed IN (0, 1)),
  doubt TEXT,
  resolution TEXT,

  outcome TEXT CHECK (outcome IN ('succeeded', 'failed', 'cancelled')),
  effect TEXT CHECK (effect IN ('none', 'possible')),
  outcome_at INTEGER,
  outcome_sequence INTEGER,
  abandoned_at INTEGER,

  PRIMARY KEY (run_no, node, instance, attempt),
  CHECK ((outcome IS NULL) = (outcome_at IS NULL)),
  CHECK ((outcome IS NULL) = (outcome_sequence IS NULL)),
  CHECK (outcome IS NULL OR receipt IS NOT NULL),
  CHECK ((effect IS NOT NULL) = (outcome IS NOT NULL AND outcome <> 'succeeded')),
  CHECK (outcome IS NULL OR abandoned_at IS NULL),
  CHECK (doubt IS NULL OR (outcome IS NULL AND abandoned_at IS NULL))
) STRICT, WITHOUT ROWID;

-- An attempt as it is read, with its intent.
CREATE VIEW tally_attempt_row AS
SELECT
  a.run_no, a.node, a.instance, a.attempt, a.identity,
  '{"attempt":' || a.attempt || ',"input":"' || lower(hex(a.input)) || '"'
    || CASE a.instance WHEN '' THEN '' ELSE ',"instance":' || json_quote(a.instance) END
    || ',"node":' || json_quote(a.node) || ',"place":' || json_quote(coalesce(a.first_place, a.place))
    || ',"prepared_at":' || a.prepared_at || ',"run":' || json_quote(r.run_id)
    || ',"terms":"' || lower(hex(a.terms)) || '"}' AS intent,
  a.terms, a.dispatch, a.place, a.receipt, a.timeout_at, a."end", a.due_at, a.earlier_unknown,
  a.earlier_failed, a.doubt, a.resolution, a.outcome, a.effect, a.outcome_at, a.outcome_sequence,
  a.abandoned_at
FROM tally_attempt AS a JOIN tally_run AS r ON r.run_no = a.run_no;

-- What was said, in commit order. The hash covers the previous hash, sequence, transition and envelope.
CREATE TABLE tally_event (
  position INTEGER PRIMARY KEY,
  run_no INTEGER NOT NULL REFERENCES tally_run (run_no),
  sequence INTEGER NOT NULL CHECK (sequence >= 1),
  transition_id INTEGER NOT NULL,
  envelope TEXT NOT NULL,
  hash BLOB NOT NULL CHECK (length(hash) = 32),
  UNIQUE (run_no, sequence)
) STRICT;

-- What an event cites. `blob` names a file for what is too large to lie here; then body is null.
CREATE TABLE tally_payload (
  run_no INTEGER NOT NULL REFERENCES tally_run (run_no),
  sequence INTEGER NOT NULL,
  salt BLOB NOT NULL,
  body TEXT,
  blob TEXT,
  size INTEGER,
  PRIMARY KEY (run_no, sequence),
  CHECK ((body IS NULL) <> (blob IS NULL)),
  CHECK ((blob IS NULL) = (size IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX tally_payload_blob ON tally_payload (blob) WHERE blob IS NOT NULL;
