"""From the text of a source to a definition, or to everything that is wrong with it.

    text ─▶ located tree ─▶ definition ─▶ rules of structure ─▶ digest, warnings
            `yaml_reader`   `reading`      `soundness`           `lints`
                            `steps_source`

Nothing stops at the first problem. What the reading cannot understand it leaves out and tells; the
rules see the rest. They know paths of the language, not places, because they also judge definitions
that have no source; the places are added here, from the tree.

Compiling reads the given bytes only: it opens, imports and calls nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from tallystick.core.definition import (
    LANGUAGE_VERSION,
    NODES_MAX,
    Definition,
    Description,
    Limits,
    Node,
    Schema,
    Scope,
)
from tallystick.core.diagnostics import (
    NOWHERE,
    Diagnostic,
    Finding,
    Place,
    Problems,
    Related,
    refuse_if_any,
)
from tallystick.core.graph import definition_digest
from tallystick.core.lints import lints
from tallystick.core.pointer import Path
from tallystick.core.reading import Reading
from tallystick.core.soundness import examine
from tallystick.core.source import (
    EXPANDED_BYTES_MAX,
    EXPANDS,
    EXPANDS_REMEDY,
    Located,
    Mapping,
    Scalar,
    Sequence,
    place_at,
)
from tallystick.core.steps_source import DEFAULTS, Defaults, read_defaults, read_step, said
from tallystick.core.yaml_reader import read_yaml

KEYS: Final = (
    "tally", "workflow", "title", "labels", "description", "input", "types", "limits", "defaults",
    "steps", "output",
)  # fmt: skip
_LATER: Final = frozenset({"always", "env", "resources", "budget", "schedule", "secrets"})
_LIMITS: Final = ("duration", "attempts", "concurrency")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A definition that can run, and what came with it.

    digest    of the definition, in hex · warnings: sorted, at most 128
    """

    definition: Definition
    description: Description
    digest: str
    warnings: tuple[Diagnostic, ...]


def compile_source(data: bytes, file: str) -> Compiled:
    """Compile a source. `file` is the name to show, as the user gave it.

    Raises `SourceRefused` with all problems, sorted by place. Nothing was written or called.
    """
    problems = Problems(file)
    tree = read_yaml(data, problems)
    if tree is None or not _within_budget(data, tree, problems):
        refuse_if_any(problems)
    assert tree is not None, "without a tree there is a problem"
    reading = Reading(problems)
    source = _root(tree, reading)
    if source is None:
        refuse_if_any(problems)
    assert source is not None, "without a root there is a problem"
    definition, description = _document(source, reading)
    findings, used = examine(definition)
    _place(problems, source, (it for it in findings if it.path not in reading.told))
    refuse_if_any(problems)
    warnings = Problems(file)
    _place(warnings, source, lints(definition, used))
    digest = definition_digest(definition).hex()
    return Compiled(definition, description, digest, warnings.diagnostics())


# The document.


def _root(tree: Located, reading: Reading) -> Mapping | None:
    """Return the document, if it is one of this version of the language."""
    if not isinstance(tree, Mapping):
        message = "a workflow is an object with the keys tally, workflow and steps"
        reading.tell("wrong-type", tree.place, (), message)
        return None
    if not reading.required(tree, "tally", (), f"begin with `tally: {LANGUAGE_VERSION}`"):
        return tree
    version = reading.integer(tree, "tally", ())
    if version == LANGUAGE_VERSION:
        return tree
    if version is not None:
        message = f"this program knows version {LANGUAGE_VERSION} of the language"
        remedy = "use a program that knows the other version"
        reading.tell(
            "version-unsupported", tree.entries["tally"].place, ("tally",), message, remedy
        )
    return None  # what another version means by the rest is not known


def _document(source: Mapping, reading: Reading) -> tuple[Definition, Description]:
    reading.keys(source, (), KEYS, _LATER)
    found = reading.mapping(source, "defaults", ())
    defaults = Defaults() if found is None else read_defaults(reading, found, ("defaults",))
    nodes, titles = _steps(source, reading, defaults)
    # Without the steps it could only be told that it uses steps which are not there.
    output = None if ("steps",) in reading.told else reading.json(source, "output")
    definition = Definition(
        workflow=_workflow(source, reading),
        root=Scope(nodes),
        input=said(reading.schema(source, "input", ())),
        types=_types(source, reading),
        limits=_limits(source, reading),
        output=UNSET if output is None else output,
    )
    title = reading.text(source, "title", ())
    description = Description(
        titles=titles if title is None else {"": title, **titles},
        labels=_labels(source, reading),
        text=reading.text(source, "description", ()),
    )
    return definition, description


def _workflow(source: Mapping, reading: Reading) -> str:
    there = reading.required(source, "workflow", (), "name it, e.g. `workflow: release`")
    found = reading.text(source, "workflow", ()) if there else None
    return "" if found is None else found


def _steps(
    source: Mapping, reading: Reading, defaults: Defaults
) -> tuple[tuple[Node, ...], dict[str, str]]:
    """Return the nodes in written order, and the titles by id."""
    if not reading.required(source, "steps", (), "list the steps"):
        reading.told.add(("steps",))
        return (), {}
    entry = source.entries["steps"]
    if not isinstance(entry.node, Sequence):
        reading.tell("wrong-type", entry.place, ("steps",), "`steps` is a list of steps")
        return (), {}
    items = entry.node.items
    if len(items) > NODES_MAX:
        message = f"{len(items):,} steps; a workflow has at most {NODES_MAX:,}"
        reading.tell("too-many-steps", entry.place, ("steps",), message, "split the workflow")
        return (), {}
    nodes: list[Node] = []
    titles: dict[str, str] = {}
    for at, item in enumerate(items):
        before = nodes[-1].id if nodes else None
        node, title = read_step(reading, item, at, before, defaults)
        nodes.append(node)
        if title is not None:
            titles[node.id] = title
    return tuple(nodes), titles


def _limits(source: Mapping, reading: Reading) -> Limits:
    found = reading.mapping(source, "limits", ())
    if found is None:
        return Limits()
    path: Path = ("limits",)
    reading.keys(found, path, _LIMITS)
    return Limits(
        duration_ms=reading.duration(found, "duration", path),
        attempts=reading.integer(found, "attempts", path),
        concurrency=reading.integer(found, "concurrency", path),
    )


def _types(source: Mapping, reading: Reading) -> dict[str, Schema]:
    found = reading.mapping(source, "types", ())
    if found is None:
        return {}
    read = {name: reading.schema(found, name, ("types",)) for name in found.entries}
    return {name: schema for name, schema in read.items() if schema is not None}


def _labels(source: Mapping, reading: Reading) -> dict[str, str]:
    found = reading.mapping(source, "labels", ())
    if found is None:
        return {}
    read = {name: reading.text(found, name, ("labels",)) for name in found.entries}
    return {name: text for name, text in read.items() if text is not None}


# From paths to places.


def _place(problems: Problems, source: Mapping, findings: Iterable[Finding]) -> None:
    """Add findings with their places; one about a default once, however many steps have it."""
    told: set[tuple[str, Place, str]] = set()
    for finding in findings:
        place, related = _locate(source, finding)
        if finding.first is not None:
            related = (*related, Related(place_at(source, finding.first), "first written here"))
        key = (finding.code, place, finding.message)
        if key not in told:
            told.add(key)
            problems.add(
                finding.code, place, finding.message, remedy=finding.remedy, related=related
            )


def _locate(source: Mapping, finding: Finding) -> tuple[Place, tuple[Related, ...]]:
    path = finding.path
    default = _default(source, path)
    if default is None:
        return (place_at(source, path) if path else NOWHERE), ()
    general, effect = place_at(source, default), (*path[:2], "effect")
    if finding.code == "retry-repeats-effect" and _is_there(source, effect):
        # The default is fine for others: this step has an effect that it does not go with.
        return place_at(source, effect), (Related(general, "the default that it does not fit"),)
    return general, (Related(place_at(source, path[:2]), "a step that has this default"),)


def _default(source: Mapping, path: Path) -> Path | None:
    """Return the path within `defaults` of what a step does not say itself; None where it does."""
    if len(path) < 3 or path[0] != "steps" or path[2] not in DEFAULTS:
        return None
    below = path[2:4] if path[2] == "retry" else path[2:3]
    default: Path = ("defaults", *path[2:])
    own, general = (*path[:2], *below), ("defaults", *below)
    return default if not _is_there(source, own) and _is_there(source, general) else None


def _is_there(node: Located, path: Path) -> bool:
    for key in path:
        if isinstance(node, Mapping) and isinstance(key, str) and key in node.entries:
            node = node.entries[key].node
        elif isinstance(node, Sequence) and isinstance(key, int) and key < len(node.items):
            node = node.items[key]
        else:
            return False
    return True


# The budget.


def _within_budget(data: bytes, tree: Located, problems: Problems) -> bool:
    """Whether the text is not too much, with aliases expanded; without one it cannot be."""
    if b"*" not in data or _size(tree, {}) <= EXPANDED_BYTES_MAX:
        return True
    problems.add("source-expands", NOWHERE, EXPANDS, remedy=EXPANDS_REMEDY)
    return False


def _size(node: Located, known: dict[int, int]) -> int:
    """Count the characters of all texts and keys, those of a shared node each time it is met."""
    if isinstance(node, Scalar):
        return len(node.value) if isinstance(node.value, str) else 0
    size = known.get(id(node))
    if size is None:
        if isinstance(node, Sequence):
            size = sum(_size(item, known) for item in node.items)
        else:
            assert isinstance(node, Mapping)
            size = sum(len(key) + _size(entry.node, known) for key, entry in node.entries.items())
        known[id(node)] = size
    return size
