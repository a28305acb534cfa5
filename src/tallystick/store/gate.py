"""What SQL of users may do in the engine's own database, and what it may not.

Statements that transactional functions hand back, queries, and the setup script of a user's tables
run under an authorizer: SQLite asks it, while it compiles a statement, about every action the
statement would take, those of triggers and foreign keys included. What is not on the list is
denied, and so is everything that touches a name of ours. A statement also has a budget of machine
steps, so that no loop holds the writer. Source: sqlite.org/c3ref/set_authorizer.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

ALLOWED, DENIED = 0, 1
STEPS_MAX = 20_000_000
"""Steps of SQLite's machine that one statement may take: about a second."""
STEPS_CHECKED = 10_000
"""How many steps lie between two looks at the budget."""

# Source: sqlite3.h, authorizer action codes.
_READ = {"FUNCTION": 31, "READ": 20, "RECURSIVE": 33, "SELECT": 21}
_WRITE = _READ | {"DELETE": 9, "INSERT": 18, "UPDATE": 23}
_SETUP = _WRITE | {
    "ALTER_TABLE": 26,
    "CREATE_INDEX": 1,
    "CREATE_TABLE": 2,
    "CREATE_TRIGGER": 7,
    "CREATE_VIEW": 8,
    "DROP_INDEX": 10,
    "DROP_TABLE": 11,
    "DROP_TRIGGER": 16,
    "DROP_VIEW": 17,
    "REINDEX": 27,
}
_OURS = "tally_"
_SCHEMA = "sqlite_"
_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})


class Allowed(Enum):
    """Who is at the gate: the engine itself, or SQL of users for one of three purposes."""

    EVERYTHING = frozenset[int]()
    QUERY = frozenset(_READ.values())
    WRITE = frozenset(_WRITE.values())
    SETUP = frozenset(_SETUP.values())


class Gate:
    """Decides for one connection. Installed once: changing an authorizer recompiles everything."""

    def __init__(self) -> None:
        self._allowed = Allowed.EVERYTHING
        self._ran = 0
        self._left = 0

    @contextmanager
    def open(self, allowed: Allowed) -> Iterator[None]:
        """While it is open, what is compiled is SQL of users."""
        self._allowed, self._ran, self._left = allowed, 0, STEPS_MAX
        try:
            yield
        finally:
            self._allowed = Allowed.EVERYTHING

    def authorize(
        self, action: int, one: str | None, two: str | None, _schema: str | None, via: str | None
    ) -> int:
        """The authorizer. one, two: what it is about · via: the trigger or view that asks."""
        if self._allowed is Allowed.EVERYTHING:
            return ALLOWED
        if action not in self._allowed.value or any(self._is_closed(n) for n in (one, two, via)):
            return DENIED
        return ALLOWED

    def _is_closed(self, name: str | None) -> bool:
        if name is None:
            return False
        folded = name.lower()
        if folded.startswith(_SCHEMA) and self._allowed is Allowed.WRITE:
            return True
        return folded.startswith(_OURS) or folded in _FUNCTIONS

    def trace(self, _cursor: object, _sql: str, _bindings: object) -> bool:
        """Called before each statement of a text: only the first one runs."""
        self._ran += 1
        if self._ran > 1 and self._allowed in {Allowed.QUERY, Allowed.WRITE}:
            raise ValueError("one statement at a time")
        return True

    def interrupt(self) -> bool:
        """Called every `STEPS_CHECKED` steps; True ends the statement."""
        if self._allowed is Allowed.EVERYTHING:
            return False
        self._left -= STEPS_CHECKED
        return self._left < 0
