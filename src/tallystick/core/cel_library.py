"""The one module that knows the CEL library. It loads it when it is first asked for anything.

The library reports every kind of failure as text. Texts of compiling are about the definition and
are passed on; texts of evaluating quote data, so they are replaced by sentences of ours.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from tallystick.core.cel_tree import Tree, read_tree
from tallystick.core.expression_values import Unusable, from_cel
from tallystick.core.templates import EXPRESSION_BYTES_MAX
from tallystick.core.values import Value

if TYPE_CHECKING:
    from cel_expr_python import cel

TEXT_TYPES: Final = frozenset({"STRING", "INT", "UINT", "BOOL", "DYN"})
"""Static types whose values may stand inside a text."""

_PROBLEM: Final = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_CONTAINER: Final = " (in container '')"
_PROBLEMS_MAX: Final = 4


class NotCompiled(ValueError):
    """The library refuses an expression; `reasons` has one sentence for each problem.

    `too_large` when it did not even look at it, because it is nested too deep.
    """

    def __init__(self, reasons: list[str], *, too_large: bool) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons
        self.too_large = too_large


@dataclass(frozen=True, slots=True)
class Compiled:
    """A checked expression, its tree, and the name of its static type (`INT`, `LIST<DYN>`, …)."""

    expression: "cel.Expression"
    tree: Tree
    result_type: str


def parse(source: str) -> Tree:
    """Return the tree of an expression, its names unchecked. Raises `NotCompiled`."""
    try:
        return read_tree(_bare_environment().compile(source, disable_check=True).serialize())
    except RuntimeError as error:
        raise _not_compiled(error) from None


def compile_checked(source: str, variables: Mapping[str, str]) -> Compiled:
    """Compile an expression whose variables have these CEL types. Raises `NotCompiled`."""
    from cel_expr_python import cel

    try:
        environment = cel.NewEnv(
            variables={name: cel.Type(signature) for name, signature in variables.items()}
        )
        expression = environment.compile(source)
        tree = read_tree(expression.serialize())
    except RuntimeError as error:
        raise _not_compiled(error) from None
    return Compiled(expression, tree, expression.return_type().name())


def run(compiled: Compiled, values: Mapping[str, Value]) -> Value:
    """Evaluate with values that were checked before. Raises `Unusable` when there is no value."""
    try:
        result = compiled.expression.eval(data=values)
        plain = result.plain_value()
        failed = result.type().name() in {"ERROR", "UNKNOWN"}
    except RuntimeError as error:
        raise Unusable(_reason(str(error))) from None
    if failed:
        raise Unusable(_reason(str(plain)))
    return from_cel(plain)


@cache
def _bare_environment() -> "cel.Env":
    from cel_expr_python import cel

    return cel.NewEnv()


def _not_compiled(error: RuntimeError) -> NotCompiled:
    # What has no place in the source is about the whole: the recursion limit. Depending on the mode
    # its line is absent, -1, or -1 as an unsigned number.
    found = _PROBLEM.findall(str(error).removesuffix(" [INVALID_ARGUMENT]"))
    placed = [text for line, _, text in found if 0 < int(line) <= EXPRESSION_BYTES_MAX]
    if placed:
        reasons = [text.replace(_CONTAINER, "") for text in placed]
        return NotCompiled(list(dict.fromkeys(reasons))[:_PROBLEMS_MAX], too_large=False)
    return NotCompiled(["it is nested too deep (32 levels are allowed)"], too_large=True)


_REASONS: Final = (
    ("divide by zero", "it divides by zero"),
    ("modulus by zero", "it divides by zero"),
    ("overflow", "an integer leaves 64 bits"),
    ("out of int64 range", "an integer leaves 64 bits"),
    ("out of uint64 range", "an integer leaves 64 bits"),
    ("out of range", "a number or an index is out of range"),
    ("Key not found", "a key is missing; has(…) tests for it"),
    ("No value with name", "a value is missing; has(…) tests for it"),
    ("Index error", "an index is outside its list"),
    ("index out of bounds", "an index is outside its list"),
    ("No matching overloads", "an operator or function does not take values of these types"),
    ("Applying SELECT", "a key is taken from a value that is not an object"),
    ("convert", "a text cannot be converted"),
    ("conversion", "a text cannot be converted"),
    ("malformed UTF-8", "a text cannot be converted"),
    ("Unexpected value type", "a value is not of its declared type"),
    ("cannot be interpreted", "a value is not of its declared type"),
    ("regular expression", "a regular expression cannot be used"),
    ("duplicate key", "an object has the same key twice"),
    ("Iteration budget", "it goes over too many items (10,000 in all are allowed)"),
)
"""What the library's messages begin with or hold, and what is said instead.

It has no codes: only their text tells an overflow from a missing key. A text that is not here is
still an error, only a less helpful one.
"""


def _reason(message: str) -> str:
    # Only the part before a colon that follows the status: what comes later may quote data.
    head = message.split(": ", 1)[-1][:60]
    for sign, reason in _REASONS:
        if sign in head:
            return reason
    return "CEL gives an error"
