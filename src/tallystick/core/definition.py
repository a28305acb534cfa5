"""The definition: an immutable compiled graph, addressed by the digest of its canonical JSON.

A definition is what a source file *means*, after order, defaults and durations were resolved, so
that two files that mean the same thing have the same digest. Two shapes carry the order:

    default order    a step waits for the step written before it, whatever became of that one
    explicit needs   a step waits for all its needs, and is skipped if every one of them was

Both are `Node.needs`; what differs is `Node.if_skipped`. A control node (a loop, a fan-out) holds
a nested `Scope`; a visit to a node inside it is named by the node path and an *instance path*, one
index for each enclosing scope that repeats: `fix[2].build` is node path `fix.build`, instance (2,).

Titles and labels are not part of it: `Description` travels beside the definition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
    Schema: TypeAlias = dict[str, Json] | bool
else:  # msgspec evaluates annotations at run time and cannot follow a recursive alias
    Json = Any
    Schema = Any
Effect: TypeAlias = Literal["read_only", "idempotent", "transactional", "mutating"]
OnUnknown: TypeAlias = Literal["ask", "probe", "assume_failed"]
FailureKind: TypeAlias = Literal["timeout", "error", "exit", "status", "conflict", "unavailable"]
"""What a retry policy may name. Source: design §4.2."""

EFFECTS: tuple[Effect, ...] = ("read_only", "idempotent", "transactional", "mutating")
FAILURE_KINDS: tuple[FailureKind, ...] = (
    "timeout",
    "error",
    "exit",
    "status",
    "conflict",
    "unavailable",
)
LEAF_KINDS = frozenset({"call"})
"""Kinds that do work through an executor. The others decide."""

LANGUAGE_VERSION = 1
NODES_MAX = 10_000
ATTEMPTS_MAX = 1_000_000
INTERRUPTIONS_DEFAULT = 5
BACKOFF_DEFAULT_MS = 1_000
BACKOFF_MAX_DEFAULT_MS = 60_000


class Retry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """When a failed step is tried again, and how long it waits before that.

    max_attempts       dispatches that failed or were refused, the first included; None: the file
                       is silent, the task's own number (or 1) is bound at admission
    on                 failure kinds that are retried; None: all that the effect class allows
    backoff_ms         upper bound of the first wait; the wait itself is drawn from 0 to the bound
    factor             by which the bound grows with each failure
    backoff_max_ms     the bound never exceeds this
    interruptions_max  dispatches with an unknown end are counted apart, up to this many
    """

    max_attempts: int | None = None
    on: tuple[FailureKind, ...] | None = None
    backoff_ms: int = BACKOFF_DEFAULT_MS
    factor: float = 2.0
    backoff_max_ms: int = BACKOFF_MAX_DEFAULT_MS
    interruptions_max: int = INTERRUPTIONS_DEFAULT


class Limits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The baseline limits of a run. None means no limit.

    duration_ms  from admission to the deadline; at the deadline nothing starts any more
    attempts     rows ever, over all steps
    concurrency  open attempts that are not in doubt
    """

    duration_ms: int | None = None
    attempts: int | None = None
    concurrency: int | None = None


class Node(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A vertex of the graph.

    id          unique within its scope; `[A-Za-z_][A-Za-z0-9_-]*`
    kind        `call` does work; `fail` and `succeed` end the run
    needs       ids in the same scope, in written order, without repeats; () starts at once
    if_skipped  `skip`: skipped when it has needs and all were skipped; `run`: runs all the same.
                Default order compiles to `run`
    when        template text whose value must be a boolean; None: always
    on_failure  `continue`: a failure counts as success with output null
    call        importable `module:function`; only for `call`
    inputs      `with:` as written, JSON whose strings are templates; None: the task gets {}
    output_schema  what a success must satisfy, beside what the task's annotation says; None:
                   anything
    retry, timeout_ms, effect   None: the file is silent; bound at admission
    on_unknown  what to do with an unknown end of `mutating` work
    message     template text of a `fail` step
    value       JSON with templates: the run's output at a `succeed` step; unset: null
    """

    id: str
    kind: str
    needs: tuple[str, ...] = ()
    if_skipped: Literal["skip", "run"] = "skip"
    when: str | None = None
    on_failure: Literal["fail", "continue"] = "fail"
    call: str | None = None
    inputs: dict[str, Json] | None = None
    output_schema: Schema | None = None
    retry: Retry | None = None
    timeout_ms: int | None = None
    effect: Effect | None = None
    on_unknown: OnUnknown = "ask"
    message: str | None = None
    value: Json | UnsetType = UNSET


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that belong together, in written order. The root of a definition is one."""

    nodes: tuple[Node, ...]


class Definition(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The whole graph. `encode` of it is what the digest is taken over.

    workflow  the name people use; part of the digest
    input     schema of the run's input; None: any JSON value
    types     named schemas that `$ref: "#/types/NAME"` may name
    output    JSON with templates; unset: the run's output is null
    """

    workflow: str
    root: Scope
    tally: int = LANGUAGE_VERSION
    input: Schema | None = None
    types: dict[str, Schema] = {}
    limits: Limits = Limits()
    output: Json | UnsetType = UNSET


class Binding(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one leaf step was bound to at admission, for ever. Source: design §9.

    task         importable name, `module:function`
    effect       the file's, else the decorator's, else `mutating`
    contract     digest of the task's signature (hex), "" if it could not be read
    mode         how the function executor runs it
    max_attempts the file's, else the decorator's, else 1
    """

    task: str
    effect: Effect
    contract: str = ""
    mode: Literal["async", "thread", "transactional"] = "async"
    max_attempts: int = 1


class Bindings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The bindings of a run: where code comes from, and one `Binding` for each leaf node path.

    root  absolute folder put on the import path for this run's tasks; None: the process's own path
    """

    steps: dict[str, Binding] = {}
    root: str | None = None


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """What people read and the digest does not cover.

    titles  by node path, "" for the workflow · labels: of the workflow, by name
    text    what the workflow is about, in prose
    """

    titles: dict[str, str] = {}
    labels: dict[str, str] = {}
    text: str | None = None
