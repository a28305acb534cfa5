"""What is wrong with a definition, told all at once.

A problem has a stable code (tools match on it, so a code is never renamed or re-meant), a place,
one sentence, and a remedy: what to type instead. The sentence may name keys, ids and types; it
never quotes a value, because a value may be a secret.

Readers and compilers add to one `Problems`, and go on where they can. What comes out is sorted by
place and bounded, and the same for the same text from every entry point.
"""

from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Final

from tallystick.core.pointer import Path, render

SHOWN_MAX: Final = 128
KEPT_MAX: Final = 4_096
"""Problems kept until they are sorted. A file that has more is told of the first ones met."""

CODES: Final = MappingProxyType(
    {
        "too-many-problems": "there are more problems than are shown",
        "source-too-large": "the text is larger than a definition may be",
        "source-encoding": "the text is not UTF-8, or holds a character that no source may hold",
        "yaml-syntax": "the text is not YAML",
        "yaml-directive": "a line that begins with % is a YAML directive, which is not supported",
        "yaml-multiple-documents": "a source is one document",
        "yaml-empty": "the source holds no document",
        "yaml-too-deep": "the source is nested too deep",
        "yaml-too-many-nodes": "the source expands to too many nodes",
        "yaml-tag": "a tag; plain YAML only",
        "yaml-unknown-alias": "an alias whose anchor does not come before it",
        "yaml-alias-cycle": "an alias inside the node that it names",
        "yaml-duplicate-key": "a mapping has the same key twice",
        "yaml-merge-conflict": "two merged mappings bring the same key",
        "yaml-merge-value": "what << merges is not a mapping or a list of mappings",
        "yaml-key-not-string": "a key that is not a string",
        "yaml-number": "a number that JSON cannot hold",
        "expression-syntax": "an expression that is not CEL, or a ${{ without its }}",
        "expression-too-large": "an expression that is too long, too deep or too costly",
        "expression-unknown-name": "an expression uses a name that is not in scope",
        "expression-quoted-id": 'a step id that has to be written steps["…"]',
        "expression-type": "an expression whose types do not fit",
        "schema-invalid": "a schema that is not JSON Schema 2020-12",
        "schema-ref": "a $ref that does not name a declared type",
        "schema-too-large": "a schema that is too large or too deep",
        "source-expands": "the text of the source, aliases counted each time, is too large",
        "version-unsupported": "a version of the language that this program does not know",
        "key-unknown": "a key that the language does not have at this place",
        "key-missing": "a key that has to be there is not",
        "key-not-yet": "a key of the language that this version does not carry out",
        "wrong-type": "a value of another type than this place has",
        "value-unknown": "a word that is none of those that may stand here",
        "value-not-json": "a Python value that JSON cannot hold",
        "out-of-range": "a number or duration that is too small or too large",
        "duration-invalid": "a duration that is not written as one",
        "workflow-name-invalid": "a workflow name that cannot be one",
        "type-name-invalid": "the name of a type that cannot be one",
        "no-steps": "a workflow without steps",
        "too-many-steps": "more steps than a workflow may have",
        "step-id-invalid": "a step id that cannot be one",
        "step-id-repeated": "two steps with the same id",
        "kind-missing": "a step that does not say what it does",
        "kind-several": "a step that does two things",
        "kind-not-yet": "a step kind of the language that this version does not carry out",
        "kind-unknown": "a step kind that the language does not have",
        "field-not-here": "a key that this kind of step does not have",
        "call-invalid": "what is called is not written as module:function",
        "retry-repeats-effect": "a retry that the effect class of the step forbids",
        "needs-unknown": "a need that is no step of this workflow",
        "needs-itself": "a step that needs itself",
        "needs-repeated": "a need that is named twice",
        "needs-cycle": "steps that wait for each other",
        "too-many-expressions": "more computed expressions than a workflow may have",
        "expression-not-yet": "a function of the language that this version does not carry out",
        "reference-not-before": "the output of a step that is not surely over",
        "reference-no-output": "the output of a step that never has one",
        "when-not-boolean": "a condition that is not true or false",
        "fail-not-text": "the text of a fail step that is no text",
        "effect-undeclared": "warning: steps whose effect the file does not declare",
        "reference-maybe-missing": "warning: the output of a step that may have been skipped",
        "step-unreachable": "warning: steps that never run",
    }
)
"""Every code and its one-line meaning."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A position in a source, counted from 1 in lines and in characters."""

    line: int
    column: int


NOWHERE: Final = Place(0, 0)
"""The problem is about the source as a whole."""


@dataclass(frozen=True, slots=True)
class Related:
    """Another place that belongs to the problem, and what is there."""

    place: Place
    message: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem in one source.

    `remedy` says what to do, None when the message already does.
    """

    code: str
    message: str
    file: str
    line: int
    column: int
    remedy: str | None = None
    related: tuple[Related, ...] = ()

    def __str__(self) -> str:
        """Write `file:line:column: message (code)`, the remedy after a dash."""
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        remedy = f" — {self.remedy}" if self.remedy else ""
        return f"{where}: {self.message}{remedy} ({self.code})"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a definition, which may have no source.

    `path` is as in the language, e.g. `("steps", 2, "needs", 0)`; a compiler knows its place.
    `first` leads to what it contradicts, which was written before; None: there is no such place.
    """

    code: str
    path: Path
    message: str
    remedy: str | None = None
    first: Path | None = None

    def __str__(self) -> str:
        """Write `$.path: message (code)`, the remedy after a dash."""
        remedy = f" — {self.remedy}" if self.remedy else ""
        return f"{render(self.path)}: {self.message}{remedy} ({self.code})"


_ORDER = attrgetter("file", "line", "column", "code", "message")


@dataclass(slots=True)
class Problems:
    """Collects the problems of one source, for the length of one compile.

    `file` is the name to show, as the user gave it.
    """

    file: str
    _kept: list[Diagnostic] = field(default_factory=list)
    _dropped: int = 0

    def add(
        self,
        code: str,
        place: Place,
        message: str,
        *,
        remedy: str | None = None,
        related: tuple[Related, ...] = (),
    ) -> None:
        """Record one problem. `code` must be in `CODES`, and `message` must quote no value."""
        assert code in CODES, code
        if len(self._kept) >= KEPT_MAX:
            self._dropped += 1
            return
        self._kept.append(
            Diagnostic(code, message, self.file, place.line, place.column, remedy, related)
        )

    def __bool__(self) -> bool:
        """Whether there is any problem."""
        return bool(self._kept)

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return the problems in order of place, without repetitions, at most `SHOWN_MAX`.

        When there are more, the last one says how many are not shown.
        """
        ordered = sorted(dict.fromkeys(self._kept), key=_ORDER)
        total = len(ordered) + self._dropped
        if total <= SHOWN_MAX:
            return tuple(ordered)
        shown = ordered[: SHOWN_MAX - 1]
        return (*shown, _more(total - len(shown), shown[-1]))


class SourceRefused(ValueError):
    """The source has problems; nothing was compiled or written. `diagnostics` is never empty."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        super().__init__("\n".join(map(str, diagnostics)))
        self.diagnostics = diagnostics


def refuse_if_any(problems: Problems) -> None:
    """Raise `SourceRefused` when there is any problem."""
    if problems:
        raise SourceRefused(problems.diagnostics())


def _more(count: int, last: Diagnostic) -> Diagnostic:
    return Diagnostic(
        "too-many-problems",
        f"{count} more problems are not shown",
        last.file,
        last.line,
        last.column,
        "repair the ones above and validate again",
    )
