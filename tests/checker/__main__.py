"""Judge a store from the command line.

    python -m tests.checker DB [--effects FILE] [--acknowledged FILE]

Prints each violation and a count. Exit: 0 none, 1 some, 2 the file could not be read.
"""

import argparse
import json
import sqlite3
import sys
from pathlib import Path

from tests.checker import effects
from tests.checker.judge import check


def main(argv: list[str] | None = None) -> int:
    """Run the judgement that the arguments ask for."""
    asked = _arguments().parse_args(argv)
    try:
        found = check(
            asked.db,
            effects.read(asked.effects) if asked.effects else (),
            acknowledged=_promises(asked.acknowledged),
            final=not asked.running,
            complete=asked.complete,
            applied=tuple(asked.applied),
        )
    except (OSError, ValueError, sqlite3.Error) as error:
        sys.stderr.write(f"cannot be judged: {error}\n")
        return 2
    sys.stdout.writelines(f"{violation}\n" for violation in found)
    sys.stdout.write(f"{len(found)} violations\n")
    return 1 if found else 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("db", type=Path, help="the store's database file")
    parser.add_argument("--effects", type=Path, help="the effect log")
    parser.add_argument("--acknowledged", type=Path, help="run ids, or JSON objects, one a line")
    parser.add_argument("--running", action="store_true", help="an engine is, or will be, at work")
    parser.add_argument("--complete", action="store_true", help="every task logs its effect")
    parser.add_argument("--applied", action="append", default=[], help="a transactional user table")
    return parser


def _promises(path: Path | None) -> list:
    lines = path.read_text("utf-8").split("\n") if path else []
    return [json.loads(line) if line.startswith("{") else line for line in lines if line]


if __name__ == "__main__":
    sys.exit(main())
