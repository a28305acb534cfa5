-- The tables of a store. One idea: what was said (events) is never changed, and what holds (rows) only
-- ever goes from absent to present, so that most of the ledger can be guarded by the database itself.
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
);

-- One row for each opening of the store by an engine; the evidence about its end.
CREATE TABLE tally_engine (
  instance TEXT PRIMARY KEY,
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
  ended_at INTEGER
);

-- Immutable, content-addressed: compiled graphs, and the terms that intents cite.
CREATE TABLE tally_definition (digest BLOB PRIMARY KEY, body TEXT NOT NULL, description TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tally_terms (digest BLOB PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;

-- A run: first what never changes, then its authority, then what every transition moves.
CREATE TABLE tally_run (
  run_no INTEGER PRIMARY KEY,
  run_id TEXT NOT NULL UNIQUE,
  key TEXT UNIQUE,
  request BLOB NOT NULL,
  definition BLOB NOT NULL REFERENCES tally_definition (digest),
  workflow TEXT NOT NULL,
  semantics INTEGER NOT NULL,
  bindings TEXT NOT NULL,
  limits TEXT NOT NULL,
  admitted_at INTEGER NOT NULL,
  deadline INTEGER,

  generation INTEGER NOT NULL,
  token BLOB,
  engine TEXT,

  sequence INTEGER NOT NULL,
  head BLOB NOT NULL,
  last_at INTEGER NOT NULL,
  status TEXT NOT NULL,
  reason TEXT,
  due_at INTEGER,
  consumed INTEGER NOT NULL,
  active INTEGER NOT NULL,
  open_attempts INTEGER NOT NULL,
  ready INTEGER NOT NULL,
  barrier INTEGER NOT NULL,
  stopping TEXT,
  ended_at INTEGER,
  damaged TEXT
);

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
  PRIMARY KEY (run_no, node, instance)
) WITHOUT ROWID;

-- One attempt: the intent, the current dispatch, and how it ended. Which facts are there is the status.
CREATE TABLE tally_attempt (
  run_no INTEGER NOT NULL REFERENCES tally_run (run_no),
  node TEXT NOT NULL,
  instance TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  identity BLOB NOT NULL,
  intent TEXT NOT NULL,
  terms BLOB NOT NULL REFERENCES tally_terms (digest),

  dispatch INTEGER NOT NULL DEFAULT 1,
  place TEXT NOT NULL,
  receipt TEXT,
  timeout_at INTEGER,
  "end" TEXT,
  due_at INTEGER,
  earlier_unknown INTEGER NOT NULL DEFAULT 0,
  earlier_failed INTEGER NOT NULL DEFAULT 0,
  doubt TEXT,
  resolution TEXT,

  outcome TEXT,
  effect TEXT,
  outcome_at INTEGER,
  outcome_sequence INTEGER,
  abandoned_at INTEGER,
  PRIMARY KEY (run_no, node, instance, attempt)
) WITHOUT ROWID;

-- What was said, in commit order. The hash covers the previous hash, sequence, transition and envelope.
CREATE TABLE tally_event (
  position INTEGER PRIMARY KEY,
  run_no INTEGER NOT NULL REFERENCES tally_run (run_no),
  sequence INTEGER NOT NULL,
  transition_id INTEGER NOT NULL,
  envelope TEXT NOT NULL,
  hash BLOB NOT NULL,
  UNIQUE (run_no, sequence)
);

-- What an event cites. `blob` names a file for what is too large to lie here; then body is null.
CREATE TABLE tally_payload (
  run_no INTEGER NOT NULL REFERENCES tally_run (run_no),
  sequence INTEGER NOT NULL,
  salt BLOB NOT NULL,
  body TEXT,
  blob TEXT,
  size INTEGER,
  PRIMARY KEY (run_no, sequence)
) WITHOUT ROWID;
