"""Lists and counts of runs, by the status that is shown.

What is shown differs from what is stored in one thing: a run whose engine has provably ended does
not run, it waits for an engine. So a list of what runs, or waits, looks at both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tallystick.errors import InvalidRequest
from tallystick.store.protocol import RunFilter, Store
from tallystick.surfaces.client.runs import Owners, RunInfo, shown_status

STATUSES: Final = (
    "succeeded",
    "failed",
    "cancelled",
    "damaged",
    "recovering",
    "in_doubt",
    "cancelling",
    "pausing",
    "paused",
    "running",
    "waiting",
)
"""Every status that a list may show. Source: design §4.3."""

RUNS_MAX: Final = 1_000


def statuses(asked: str | Sequence[str] | None) -> frozenset[str] | None:
    """The statuses of a filter; None: any. Raises `InvalidRequest` for one that does not exist."""
    if asked is None:
        return None
    wanted = frozenset((asked,) if isinstance(asked, str) else asked)
    if unknown := sorted(wanted.difference(STATUSES)):
        raise InvalidRequest(
            f"no run can have the status {', '.join(unknown)}",
            code="status-unknown",
            check="status",
            facts={"statuses": [*STATUSES]},
            next_step="choose from those",
        )
    return wanted


async def page(store: Store, wanted: frozenset[str] | None, which: RunFilter) -> list[RunInfo]:
    """A page of runs, newest first: `which`, and of these those that show a wanted status."""
    owners, limit = Owners(store), min(which.limit, RUNS_MAX)
    found: list[RunInfo] = []
    which = msgspec.structs.replace(which, status=_stored_as(wanted), limit=limit)
    while len(found) < limit:
        listed = await store.runs(which)
        shown = [await owners.info(one) for one in listed]
        found += [info for info in shown if wanted is None or info.status in wanted]
        if len(listed) < limit:
            break
        which = msgspec.structs.replace(which, before=listed[-1].number)
    return found[:limit]


async def counts(store: Store) -> dict[str, int]:
    """How many runs show each status; what no run shows is left out."""
    owners, found = Owners(store), dict[str, int]()
    for some in await store.counts():
        moved = some.engine is not None
        if moved and some.status == "running":
            moved = not await owners.gone(some.engine)
        name, _ = shown_status(some.status, some.reason, damaged=some.damaged, moved=moved)
        found[name] = found.get(name, 0) + some.count
    return found


async def waiting_for_a_person(store: Store, limit: int) -> list[str]:
    """Ids of runs of which nothing moves before somebody acts, oldest first."""
    owners, found, after = Owners(store), list[str](), 0
    while len(found) < limit and (some := await store.halted(after=after, limit=RUNS_MAX)):
        found += [info.id for info in [await owners.info(one) for one in some] if info.needs_person]
        after = some[-1].number
    return found[:limit]


def _stored_as(wanted: frozenset[str] | None) -> tuple[str, ...] | None:
    """The stored statuses among which the wanted ones are found; None: any may be one of them."""
    if wanted is None or "damaged" in wanted:
        return None
    return tuple(sorted(wanted | {"running"} if "waiting" in wanted else wanted))
