"""Which invariants a test carries, which come later, and which are uncovered: `make invariants`.

The ids are the lines of `docs/invariants.md`. A test carries one by `pytest.mark.invariant("P4")`,
as a decorator, in `pytestmark`, or in the marks of a `pytest.param`. Marks are read from the
source, so that a test which is not collected today (a missing tool, another system) is not
forgotten; one that is skipped or expected to fail carries nothing.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LINE: Final = re.compile(r"- ([A-Z]\d+) (.+)")
SETS_ASIDE: Final = {"skip", "xfail"}


@dataclass(frozen=True, slots=True)
class Report:
    """The state of every id.

    `texts` maps each id to its line. `carried` maps ids to the places ("file:line") of the tests
    that carry them, ids that do not exist included. `later` and `partly` map ids to why.
    `unreadable` are the places of marks whose arguments are not plain strings.
    """

    texts: Mapping[str, str]
    carried: Mapping[str, list[str]]
    later: Mapping[str, str]
    partly: Mapping[str, str]
    unreadable: list[str]

    @property
    def uncovered(self) -> list[str]:
        """Ids that no test carries and that no feature of tomorrow explains."""
        return [i for i in self.texts if i not in self.carried and i not in self.later]

    @property
    def mistakes(self) -> list[str]:
        """One sentence for each contradiction between docs, tests and the list of later ids."""
        unknown = {**self.carried, **self.later, **self.partly}.keys() - self.texts.keys()
        return [
            *(f"{i}: no such invariant ({self._place(i)})" for i in sorted(unknown)),
            *(
                f"{i}: listed as later, and carried by {self.carried[i][0]}"
                for i in self.texts
                if i in self.later and i in self.carried
            ),
            *(
                f"{i}: both later and partly"
                for i in self.texts
                if {i} <= self.later.keys() & self.partly.keys()
            ),
            *(
                f"{place}: the ids of an invariant mark are plain strings"
                for place in self.unreadable
            ),
        ]

    def _place(self, name: str) -> str:
        return self.carried[name][0] if name in self.carried else "tests/invariants_later.toml"


def main() -> int:
    """Print the report; 0 if every id is covered or comes later and nothing contradicts itself."""
    report = survey(ROOT)
    covered = [i for i in report.texts if i in report.carried]
    later = [i for i in report.texts if i in report.later]
    _print_section("covered", [_with_note(i, report) for i in covered])
    _print_section("later", [f"{i:4} {report.later[i]}" for i in later])
    _print_section("uncovered", [f"{i:4} {report.texts[i]}" for i in report.uncovered])
    _print_section("mistakes", report.mistakes)
    print(
        f"{len(report.texts)} invariants: {len(covered)} covered, {len(later)} later,"
        f" {len(report.uncovered)} uncovered; {len(report.mistakes)} mistakes"
    )
    return 1 if report.uncovered or report.mistakes else 0


def survey(root: Path) -> Report:
    """Read the docs, the list of later ids and every test below `root`."""
    later, partly = read_later((root / "tests/invariants_later.toml").read_text("utf-8"))
    carried: dict[str, list[str]] = {}
    unreadable: list[str] = []
    for path in sorted(_files_with_tests(root)):
        for name, line in marks(path.read_text("utf-8")):
            place = f"{path.relative_to(root)}:{line}"
            if name is None:
                unreadable.append(place)
            else:
                carried.setdefault(name, []).append(place)
    texts = read_texts((root / "docs/invariants.md").read_text("utf-8"))
    return Report(texts, carried, later, partly, unreadable)


def read_texts(markdown: str) -> dict[str, str]:
    """Map each id to its one line, in the order of the file; a repeated id is a `ValueError`."""
    found = [match.groups() for match in map(LINE.fullmatch, markdown.splitlines()) if match]
    texts = dict(found)
    if len(texts) != len(found):
        raise ValueError("docs/invariants.md gives one id to two lines")
    return texts


def read_later(toml: str) -> tuple[dict[str, str], dict[str, str]]:
    """Map the ids that come later, and those that are covered in part, to why."""
    tables = tomllib.loads(toml)
    later: dict[str, str] = {}
    for table in tables["later"]:
        for name in table["ids"]:
            if name in later:
                raise ValueError(f"tests/invariants_later.toml lists {name} twice")
            later[name] = f"{table['feature']}: {' '.join(table['why'].split())}"
    return later, tables["partly"]


def marks(source: str) -> Iterator[tuple[str | None, int]]:
    """Yield (id, line) for each argument of each invariant mark that counts.

    The id is None where the argument is not a plain string, or there is no argument.
    """
    tree = ast.parse(source)
    set_aside = {node for dead in ast.walk(tree) if _is_set_aside(dead) for node in ast.walk(dead)}
    for node in ast.walk(tree):
        if node in set_aside or not (isinstance(node, ast.Call) and _mark(node) == "invariant"):
            continue
        for argument in node.args or [node.func]:
            match argument:
                case ast.Constant(value=str(name)):
                    yield name, node.lineno
                case _:
                    yield None, node.lineno


def _is_set_aside(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return any(_mark(decorator) in SETS_ASIDE for decorator in node.decorator_list)
        case _:
            return False


def _mark(node: ast.expr) -> str | None:
    """Name the pytest mark that an expression is, called or not; None for any other one."""
    match node:
        case ast.Call(func=func):
            return _mark(func)
        case ast.Attribute(value=ast.Attribute(attr="mark"), attr=name):
            return name
        case ast.Attribute(value=ast.Name(id="mark"), attr=name):
            return name
        case _:
            return None


def _files_with_tests(root: Path) -> Iterator[Path]:
    yield from (root / "tests").rglob("*.py")
    yield from (root / "src/tallystick/testing").rglob("*.py")  # the suites that tests inherit


def _with_note(name: str, report: Report) -> str:
    places = report.carried[name]
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    note = f"\n       in part: {report.partly[name]}" if name in report.partly else ""
    return f"{name:4} {places[0]}{more}{note}"


def _print_section(title: str, lines: list[str]) -> None:
    if lines:
        print(f"{title}\n" + "\n".join(f"  {line}" for line in lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
