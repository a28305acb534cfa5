"""One step of a source, with the defaults of its workflow, as a node of the definition.

Everything has one form in the definition, however it was written: a default that was spelled out is
left out, one need is a list of one, `when: true` is no condition. So sources that mean the same
have the same digest.

    no `needs`      waits for the step before it, whatever became of that one
    `needs: []`     starts at once
    `needs: [a]`    waits for a, and is skipped if a was, unless `if_skipped: run`
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import UNSET

from tallystick.core.definition import FAILURE_KINDS, Effect, Json, Node, Retry, Schema
from tallystick.core.pointer import Path, quote
from tallystick.core.reading import Reading
from tallystick.core.soundness import KINDS, KINDS_LATER
from tallystick.core.source import Located, Mapping, Scalar

OnFailure: TypeAlias = Literal["fail", "continue"]

DEFAULTS: Final = ("effect", "timeout", "retry", "on_failure")
_SHARED: Final = ("id", "needs", "when", "on_failure", "if_skipped", "title")
STEP_KEYS: Final = (*_SHARED, *KINDS, "with", "retry", "timeout", "effect", "output")
_LATER: Final = frozenset({"on_unknown", "env", "probe", "resources"})
RETRY_KEYS: Final = ("max_attempts", "on", "backoff", "factor", "backoff_max", "interruptions_max")


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a `call` step gets where it is silent. None: the defaults are silent too.

    retry  the fields that are set, by the names of `Retry`
    """

    effect: Effect | None = None
    timeout_ms: int | None = None
    retry: tuple[tuple[str, Any], ...] = ()
    on_failure: OnFailure | None = None


def read_defaults(reading: Reading, node: Mapping, path: Path) -> Defaults:
    """Read `defaults`. Words that the language does not have are found where they are used."""
    reading.keys(node, path, DEFAULTS, _LATER)
    return Defaults(
        cast(Effect | None, reading.text(node, "effect", path)),
        reading.duration(node, "timeout", path),
        tuple(_retry(reading, node, path).items()),
        cast(OnFailure | None, reading.text(node, "on_failure", path)),
    )


def read_step(
    reading: Reading, found: Located, at: int, before: str | None, defaults: Defaults
) -> tuple[Node, str | None]:
    """Read the step at position `at`, and its title. `before` is the id of the step before it.

    What cannot be read gets a placeholder, so that the positions of the others stay right.
    """
    path: Path = ("steps", at)
    if not isinstance(found, Mapping):
        reading.tell("wrong-type", found.place, path, "a step is an object")
        reading.told |= {(*path, "id"), (*path, "call")}
        return Node(id=f"?{at}", kind="call"), None
    kind = _kind(reading, found, path)
    needs, if_skipped = _order(reading, found, path, before)
    on_failure = reading.text(found, "on_failure", path)
    if on_failure is None:
        on_failure = (defaults.on_failure if kind == "call" else None) or "fail"
    node = Node(
        id=_id(reading, found, path, at),
        kind=kind,
        needs=needs,
        if_skipped=cast(Literal["skip", "run"], if_skipped),
        when=_when(reading, found, path),
        on_failure=cast(OnFailure, on_failure),
        **_work(reading, found, path, kind, defaults),
    )
    return node, reading.text(found, "title", path)


def _id(reading: Reading, node: Mapping, path: Path, at: int) -> str:
    there = reading.required(node, "id", path, "give the step an id, a word of its own")
    found = reading.text(node, "id", path) if there else None
    return f"?{at}" if found is None else found


def _kind(reading: Reading, node: Mapping, path: Path) -> str:
    """Return the kind of a step, which is the key that says so."""
    named = [key for key in node.entries if key in KINDS or key in KINDS_LATER]
    later = [key for key in named if key in KINDS_LATER]
    if not later:  # what else a step of a later kind may have is not known here
        reading.keys(node, path, STEP_KEYS, _LATER)
    if not named:
        message = "this step does not say what it does"
        remedy = f"give it one of {', '.join(KINDS)}"
        reading.tell("kind-missing", node.place, (*path, "call"), message, remedy)
        return "call"
    if len(named) > 1:
        message = f"a step does one thing; this one has {', '.join(map(quote, named))}"
        place = node.entries[named[1]].place
        reading.tell("kind-several", place, path, message, "make a step of each")
    return (later or named)[0]


def _order(
    reading: Reading, node: Mapping, path: Path, before: str | None
) -> tuple[tuple[str, ...], str]:
    written = reading.words(node, "needs", path)
    needs = written if written is not None else () if before is None else (before,)
    if_skipped = reading.text(node, "if_skipped", path)
    if if_skipped is None:
        if_skipped = "skip" if written is not None else "run"
    if not needs and if_skipped == "run":
        if_skipped = "skip"  # without needs it means nothing, and has one form
    return needs, if_skipped


def _when(reading: Reading, node: Mapping, path: Path) -> str | None:
    entry = node.entries.get("when")
    if entry is None:
        return None
    value = entry.node.value if isinstance(entry.node, Scalar) else None
    if isinstance(value, bool):
        return None if value else "${{ false }}"
    if isinstance(value, str):
        return value.strip()  # a block text ends with a line break
    message = "`when` is true, false, or an expression in ${{ }}"
    reading.tell("wrong-type", entry.place, (*path, "when"), message)
    return None


def _work(
    reading: Reading, node: Mapping, path: Path, kind: str, defaults: Defaults
) -> dict[str, Any]:
    """Return the fields of `Node` that say what is done, and how."""
    match kind:
        case "call":
            return _call(reading, node, path, defaults)
        case "fail":
            return {**_misplaced(reading, node, path), "message": reading.text(node, "fail", path)}
        case "succeed":
            value = reading.json(node, "succeed")
            return {
                **_misplaced(reading, node, path),
                "value": UNSET if value is None else value,
            }
        case _:
            return {}


def _call(reading: Reading, node: Mapping, path: Path, defaults: Defaults) -> dict[str, Any]:
    timeout = reading.duration(node, "timeout", path)
    effect = reading.text(node, "effect", path)
    retry = Retry(**{**dict(defaults.retry), **_retry(reading, node, path)})
    return {
        "call": reading.text(node, "call", path),
        "inputs": _inputs(reading, node, path) or None,
        "output_schema": said(reading.schema(node, "output", path)),
        "retry": None if retry == Retry() else retry,
        "timeout_ms": defaults.timeout_ms if timeout is None else timeout,
        "effect": defaults.effect if effect is None else effect,
    }


def _misplaced(reading: Reading, node: Mapping, path: Path) -> dict[str, Any]:
    """Return what such a step does not have, as written: the rules of structure refuse it."""
    return {
        "inputs": _inputs(reading, node, path),
        "output_schema": reading.schema(node, "output", path),
        "retry": Retry(**_retry(reading, node, path)) if "retry" in node.entries else None,
        "timeout_ms": reading.duration(node, "timeout", path),
        "effect": reading.text(node, "effect", path),
    }


def _inputs(reading: Reading, node: Mapping, path: Path) -> Json:
    return None if reading.mapping(node, "with", path) is None else reading.json(node, "with")


def said(schema: Schema | None) -> Schema | None:
    """Return a schema, or None for one that allows anything."""
    return None if schema is True or schema == {} else schema


def _retry(reading: Reading, node: Mapping, path: Path) -> dict[str, Any]:
    """Return the fields of `retry` that are set, by the names of `Retry`."""
    found = reading.mapping(node, "retry", path)
    if found is None:
        return {}
    here = (*path, "retry")
    reading.keys(found, here, RETRY_KEYS)
    fields = {
        "max_attempts": reading.integer(found, "max_attempts", here),
        "on": _kinds_of_failure(reading.words(found, "on", here)),
        "backoff_ms": reading.duration(found, "backoff", here),
        "factor": reading.number(found, "factor", here),
        "backoff_max_ms": reading.duration(found, "backoff_max", here),
        "interruptions_max": reading.integer(found, "interruptions_max", here),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _kinds_of_failure(written: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return them in the order of the language, once each; as written where one is unknown."""
    if written is None or not set(written) <= set(FAILURE_KINDS):
        return written
    return tuple(kind for kind in FAILURE_KINDS if kind in written)
