"""Which values an expression uses.

A reference is a name in scope and the keys that follow it as literals: `input.order.lines`,
`steps["my-step"].output`. References are found in the syntax tree, so they are known before any
data is, and only what they name is passed into an evaluation.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.core.cel_tree import Call, Const, Ident, Loop, Select, Tree, children
from tallystick.core.pointer import Path, quote

STEPS: Final = "steps"
RUN: Final = "run"
OUTPUT: Final = "output"

LITERAL_WORDS: Final = frozenset({"true", "false", "null", "in"})
"""Words that cannot stand after a dot."""

RESERVED_WORDS: Final = LITERAL_WORDS | frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
"""Words that cannot be names. Source: cel-spec, langdef.md, "Syntax"."""

_TYPE_NAMES: Final = frozenset(
    [
        "bool",
        "bytes",
        "double",
        "dyn",
        "int",
        "list",
        "map",
        "null_type",
        "string",
        "timestamp",
        "type",
        "uint",
        "duration",
    ]
)
"""Names that mean a type where no value has them: `type(x) == int`."""


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A name and the literal keys after it. `tested` is whether only `has(…)` looks at it."""

    name: str
    path: Path = ()
    tested: bool = False

    @property
    def step(self) -> str | None:
        """The id of the step whose output is used; None when the name is not `steps`."""
        return str(self.path[0]) if self.name == STEPS and self.path else None

    def __str__(self) -> str:
        """Write the reference as in an expression."""
        return self.name + "".join(map(_part, self.path))


@dataclass(frozen=True, slots=True)
class Use:
    """A reference and whether it is written with dots alone."""

    reference: Reference
    dotted: bool


Schema = Mapping[str, object] | bool


@dataclass(frozen=True, slots=True)
class Names:
    """What an expression may name.

    `values` maps each name in scope (`input`, `item`, …) to its JSON Schema, None when it has none;
    `steps` does so for the output of each step that may be used. `run` is always in scope. `types`
    are the named types that `$ref` leads to.
    """

    values: Mapping[str, Schema | None]
    steps: Mapping[str, Schema | None]
    types: Mapping[str, Schema]


_BARE: Final = re.compile(
    r"([A-Za-z_]\w*)((?:\.[A-Za-z_]\w*|\[(?:\"[^\"\\\n]*\"|'[^'\\\n]*'|\d{1,9})\])*)", re.ASCII
)
_BARE_PART: Final = re.compile(r"\.(\w+)|\[(?:\"([^\"]*)\"|'([^']*)'|(\d+))\]", re.ASCII)


def bare_reference(source: str) -> Reference | None:
    """Return the reference that an expression consists of; None when it computes anything."""
    found = _BARE.fullmatch(source)
    if found is None or found.group(1) in RESERVED_WORDS | _TYPE_NAMES:
        return None
    path: list[str | int] = []
    for field, double, single, index in _BARE_PART.findall(found.group(2)):
        if field in LITERAL_WORDS:
            return None
        path.append(int(index) if index else field or double or single)
    return Reference(found.group(1), tuple(path))


def uses(tree: Tree) -> tuple[Use, ...]:
    """Return every use of a name that the expression does not bind itself, in order of writing."""
    return tuple(dict.fromkeys(_uses(tree, frozenset())))


def _uses(tree: Tree, bound: frozenset[str]) -> Iterator[Use]:
    tested = isinstance(tree, Select) and tree.tested
    chain = _chain(tree.operand if isinstance(tree, Select) and tree.tested else tree)
    if chain is not None:
        name, path, dotted = chain
        if name not in bound and not (name in _TYPE_NAMES and not path):
            keys = (*path, tree.field) if isinstance(tree, Select) and tested else path
            yield Use(Reference(name, keys, tested), dotted)
        return
    if isinstance(tree, Loop):
        yield from _uses(tree.range, bound)
        yield from _uses(tree.start, bound)
        inside = bound | {*tree.names, tree.result_name}
        for part in (tree.condition, tree.step, tree.result):
            yield from _uses(part, inside)
        return
    for child in children(tree):
        yield from _uses(child, bound)


def _chain(tree: Tree) -> tuple[str, Path, bool] | None:
    match tree:
        case Ident():
            return tree.name, (), True
        case Select(tested=False):
            below = _chain(tree.operand)
            return below and (below[0], (*below[1], tree.field), below[2])
        case Call(function="_[_]", arguments=(operand, Const(value=str() as key))):
            below = _chain(operand)
            return below and (below[0], (*below[1], key), False)
        case _:
            return None


def _part(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    plain = re.fullmatch(r"[A-Za-z_]\w*", part, re.ASCII) and part not in LITERAL_WORDS
    return f".{part}" if plain else f"[{quote(part)}]"
