"""The independent judge of what a run left behind.

It opens the database file with the interpreter's own `sqlite3`, reads the effect log, and
recomputes everything it says. It imports nothing from the package that it judges, so that the two
cannot share a mistake; import-linter's contract `checker-independent` says so.
"""
