"""The one place where the commands meet the client: its values become the documents of `port`."""

from __future__ import annotations

import builtins
from asyncio import Event
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, cast

from tallystick.core.identity import ActivationKey, parse_instance
from tallystick.core.values import Value, decode_trusted
from tallystick.errors import InvalidRequest, NotFound
from tallystick.surfaces import client
from tallystick.surfaces.cli.port import (
    DoubtDocument,
    EventDocument,
    Failure,
    IdleDocument,
    ListDocument,
    Opener,
    Outcome,
    ProblemDocument,
    Role,
    RunDocument,
    RunLine,
    Started,
    StepDocument,
    Tally,
    ValidDocument,
)
from tallystick.surfaces.render import safe

_ENGINE_OF: Final[dict[Role, client.EngineOf]] = {"client": False, "own": "own", "engine": True}
CANDIDATES_MAX: Final = 5
"""How many runs are named where a beginning fits several."""


def opener() -> Opener:
    """How this process reaches a database."""
    return _Opener()


class _Opener:
    """Meets `port.Opener`."""

    def open(
        self, database: str | None, *, role: Role, file: str | None = None
    ) -> AbstractAsyncContextManager[Tally]:
        return _opened(database, role, file)

    def validate(self, file: str, *, import_code: bool, root: str | None) -> ValidDocument:
        found = client.validate(file, import_code=import_code, root=root)
        return {
            "file": file,
            "valid": found.valid,
            "workflow": found.workflow,
            "digest": found.digest,
            "steps": found.steps,
            "problems": [cast(ProblemDocument, client.problem_fact(it)) for it in found.problems],
            "warnings": [cast(ProblemDocument, client.problem_fact(it)) for it in found.warnings],
        }


@asynccontextmanager
async def _opened(database: str | None, role: Role, file: str | None) -> AsyncIterator[Tally]:
    unopened = client.open(database, engine=_ENGINE_OF[role])
    if file is not None:
        unopened.compile(file)
    async with unopened as tally:
        yield _Connected(tally)


class _Connected:
    """Meets `port.Tally`."""

    def __init__(self, tally: client.Tally) -> None:
        self._tally = tally
        self.path = str(tally.path)
        self.created = tally.created

    async def full_id(self, text: str) -> str:
        found = await self._tally.find(text, CANDIDATES_MAX + 1) if text else []
        if text in found or len(found) == 1:
            return text if text in found else found[0]
        if not found:
            raise NotFound(
                f"no run begins with {safe(text)}" if text else "a run is named by its id",
                code="run-unknown",
                check="run",
                next_step="tally list",
            )
        more = " and others" if len(found) > CANDIDATES_MAX else ""
        raise InvalidRequest(
            f"several runs begin with {safe(text)}: these{more}",
            code="run-ambiguous",
            check="run",
            facts={"candidates": [*found[:CANDIDATES_MAX]]},
            next_step="type more of its id",
        )

    async def start(self, file: str, *, value: Value, key: str | None, root: str | None) -> Started:
        handle = await self._tally.start(file, value, key, root=root)
        return Started(handle.id, handle.created is True, handle.found_at)

    async def show(self, run: str) -> RunDocument:
        handle = await self._tally.get(run)
        return _document(await handle.status(), await handle.steps())

    async def list(
        self,
        *,
        status: tuple[str, ...],
        workflow: str | None,
        key: str | None,
        before: int | None,
        limit: int,
    ) -> ListDocument:
        async def page(before: int | None, limit: int) -> builtins.list[client.RunInfo]:
            return await self._tally.list(
                status=status or None, workflow=workflow, key=key, before=before, limit=limit
            )

        runs = await page(before, limit)
        last = runs[-1].number if len(runs) == limit else None
        more = last is not None and bool(await page(last, 1))
        return {"runs": [_line(run) for run in runs], "next": last if more else None}

    async def history(self, run: str, *, after: int) -> AsyncIterator[EventDocument]:
        async for event in self._tally.history(run, after):
            yield _event(event)

    async def follow(self, run: str, *, after: int) -> AsyncIterator[EventDocument]:
        async for event in (await self._tally.get(run)).events(after):
            yield _event(event)

    async def news(self, kinds: Collection[str], until: Event) -> AsyncIterator[EventDocument]:
        async for event in self._tally.follow(kinds, until=until):
            yield _event(event)

    async def settled(self, run: str) -> RunDocument:
        await (await self._tally.get(run)).settled()
        return await self.show(run)

    async def resolve(
        self, run: str, step: str, outcome: Outcome, *, output: bytes | None, reason: str
    ) -> RunDocument:
        value = None if output is None else decode_trusted(output)
        await self._tally.resolve(run, step, outcome=outcome, output=value, reason=reason)
        return await self.show(run)

    async def idle(self) -> IdleDocument:
        await self._tally.until_idle()
        return {
            "statuses": await self._tally.counts(),
            "person": await self._tally.waiting_for_a_person(),
        }

    async def stopped(self) -> None:
        await self._tally.wait_over()

    async def stop(self, grace_ms: int) -> None:
        await self._tally.close(grace_ms / 1_000)


def _line(run: client.RunInfo) -> RunLine:
    return {
        "number": run.number or 0,
        "run": run.id,
        "workflow": run.workflow,
        "key": run.key,
        "status": run.status,
        "reason": run.reason or run.damaged,
        "person": run.needs_person,
        "admitted_at": run.admitted_at,
        "ended_at": run.ended_at,
    }


def _document(run: client.RunInfo, steps: list[client.StepInfo]) -> RunDocument:
    return {
        **_line(run),
        "definition": run.definition,
        "deadline": run.deadline,
        "owner": run.engine,
        "generation": run.generation,
        "input": run.input,
        "output": run.output,
        "failure": cast("Failure | None", run.failure),
        "steps": [_step(step) for step in steps],
        "doubts": [_doubt(doubt) for doubt in run.doubts],
    }


def _step(step: client.StepInfo) -> StepDocument:
    return {
        "step": step.step,
        "status": step.status,
        "effect": step.effect,
        "attempt": step.attempt,
        "dispatch": step.dispatch,
        "due_at": step.due_at,
        "output": step.output,
        "failure": cast("Failure | None", step.failure),
    }


def _doubt(doubt: client.Doubt) -> DoubtDocument:
    return {
        "step": doubt.step,
        "attempt": doubt.attempt,
        "dispatch": doubt.dispatch,
        "effect": doubt.effect,
        "identity": doubt.identity,
        "reason": doubt.reason,
        "detail": doubt.detail,
        "since": doubt.since,
    }


def _event(event: client.HistoryEvent) -> EventDocument:
    node = event.fields.get("node")
    instance = event.fields.get("instance", "")
    step = str(ActivationKey(node, parse_instance(instance))) if node else None
    return {
        "kind": event.kind,
        "run": event.run,
        "sequence": event.sequence,
        "position": event.position,
        "at": event.at,
        "step": step,
        **event.fields,
        "payload": event.payload,
    }
