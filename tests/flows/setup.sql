-- The user's own table that transactional tasks write. No key: a row too many must be visible.
CREATE TABLE IF NOT EXISTS applied (identity TEXT NOT NULL, x INTEGER NOT NULL);
