"""Named points at which a test may make a store fail. Else nothing is called but `no_fault`.

A store calls its `fault` with each name as it gets there. What the callable does there happens: it
may end the process, stop it, or raise. What a raise means depends on where it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

Fault: TypeAlias = Callable[[str], None]

MEANING: Mapping[str, str] = MappingProxyType(
    {
        "commit.before-begin": "nothing was written",
        "commit.guard": "the guard of one transition fails: the batch is replayed one by one",
        "commit.after-guards": "rolled back, nothing was written",
        "commit.after-rows": "rolled back, nothing was written",
        "commit.before-commit": "rolled back, nothing was written",
        "commit.after-commit": "the commit succeeded and reports failure",
        "commit.replay": "rolled back while the batch is replayed, nothing was written",
        "blob.before-write": "no file was made",
        "blob.after-write": "a temporary file stays behind",
        "blob.after-rename": "a file that nothing cites stays behind",
        "blob.after-sync": "a file that nothing cites stays behind",
        "checkpoint.before": "nothing: a checkpoint moves no fact",
        "definition.before-commit": "rolled back, nothing was written",
        "engine.before-commit": "rolled back, nothing was written",
        "engine.after-commit": "the row was written and reports failure",
    }
)
"""Every point, and what a store answers for when the fault raises there."""

FAULT_POINTS: tuple[str, ...] = tuple(MEANING)


def no_fault(point: str) -> None:
    """The fault of every day: none."""
