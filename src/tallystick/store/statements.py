"""The SQL of a store, by name: read from `sql/`, checked once, written for one row or for many.

Every statement is written for one row. Statements that change rows of a whole batch are also needed
for many rows at once, because each call into the database gives the interpreter lock away and has
to win it back: with a busy event loop that costs up to 5 ms a call, whatever the call does.
(Measured: 256 inserts by one call each took 455 ms beside a busy thread, by two calls 18 ms.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

SIZES = (128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""How many rows one call may carry. Few sizes, so that prepared statements are found again."""

_NAME = re.compile(r"^-- name: (\w+) \(([^)]*)\)\n", re.MULTILINE)
_PARAMETER = re.compile(r":(\w+)")
_ROW = re.compile(r"VALUES \((.*)\)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Statement:
    """One named statement.

    binds     what it binds, in order
    text      SQL with `:name` parameters, without the semicolon
    idempotent  it may find its row there already and change nothing
    """

    name: str
    binds: tuple[str, ...]
    text: str

    @property
    def idempotent(self) -> bool:
        """Whether changing no row is a success."""
        return "ON CONFLICT DO NOTHING" in self.text or "WHERE NOT EXISTS" in self.text

    def one(self) -> str:
        """The statement for one row, with numbered parameters."""
        numbers = {name: f"?{number}" for number, name in enumerate(self.binds, 1)}
        return _PARAMETER.sub(lambda found: numbers[found[1]], self.text)

    def many(self, rows: int) -> str:
        """The statement for `rows` rows, whose values are bound one row after the other."""
        if rows == 1:
            return self.one()
        if self.text.startswith("INSERT"):
            return self._insert_many(rows)
        return self._update_many(rows)

    def _insert_many(self, rows: int) -> str:
        row = _ROW.search(self.text)
        assert row is not None, f"{self.name} has no VALUES"
        assert tuple(_PARAMETER.findall(row[1])) == self.binds, (
            f"{self.name} binds in another order"
        )
        values = ", ".join(["(" + _PARAMETER.sub("?", row[1]) + ")"] * rows)
        return f"{self.text[: row.start()]}VALUES {values}{self.text[row.end() :]}"

    def _update_many(self, rows: int) -> str:
        change, condition = self.text.split("\nWHERE ")
        columns = ", ".join(f'"{name}"' for name in self.binds)
        row = "(" + ", ".join("?" * len(self.binds)) + ")"
        given = f"WITH given ({columns}) AS (VALUES {', '.join([row] * rows)})"
        update = f"{change}\nFROM given\nWHERE {condition}"
        return f"{given}\n" + _PARAMETER.sub(r'given."\1"', update)


def chunks(rows: int) -> list[int]:
    """Split a number of rows into as few of `SIZES` as a greedy choice gives."""
    parts = []
    for size in SIZES:
        while rows >= size:
            parts.append(size)
            rows -= size
    return parts


def parse(text: str) -> dict[str, Statement]:
    """Read the named statements of a file."""
    found = list(_NAME.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    statements = {}
    for match, end in zip(found, ends, strict=True):
        binds = tuple(name.strip() for name in match[2].split(",") if name.strip())
        statement = Statement(match[1], binds, _without_comments(text[match.end() : end]))
        assert set(_PARAMETER.findall(statement.text)) == set(binds), f"{match[1]} binds {binds}"
        statements[match[1]] = statement
    return statements


def _without_comments(text: str) -> str:
    lines = (line for line in text.splitlines() if not line.startswith("--"))
    return "\n".join(lines).strip().rstrip(";")


@cache
def load(name: str) -> str:
    """A file of `sql/` as text."""
    return resources.files("tallystick.store").joinpath("sql", name).read_text(encoding="utf-8")


@cache
def statements() -> dict[str, Statement]:
    """All statements by name."""
    return parse(load("statements.sql"))
