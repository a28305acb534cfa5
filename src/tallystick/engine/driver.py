"""Hands over what was prepared, and keeps the table of what runs.

    committed start ─▶ accept ─▶ running ─▶ report ─▶ a letter for the run
                                    │
                              timeout due ─▶ a letter ─▶ committed stop ─▶ cancel

Nothing is handed over before its intent is on disk, and no signal is sent before its request is.
The table belongs to the process, not to the copies of runs: whatever becomes of a copy, what runs
here stays known here, and what it reports is decided.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from tallystick.core.commands import (
    Accepted,
    DispatchEnd,
    GivenUp,
    Refused,
    Report,
    RequestTimeout,
    Unknown,
)
from tallystick.core.draft import Start, Stop
from tallystick.core.identity import ActivationKey
from tallystick.engine.clock import Clock
from tallystick.engine.held import Letter
from tallystick.engine.timers import Timers
from tallystick.errors import NotAccepted
from tallystick.executors.contract import Call, Executor, Receipt, Statement, StopReason
from tallystick.store.protocol import UserStatement

Place: TypeAlias = tuple[str, ActivationKey, int, int]
"""Run, activation, attempt, dispatch: what runs where."""

_log: Final = logging.getLogger("tallystick.engine")


class Operation(msgspec.Struct):
    """Something that was handed over and has not reported."""

    call: Call
    executor: Executor


class Driver:
    """The table of running work. `post` puts a letter into the mailbox of a run.

    closed  nothing more is handed over; what is prepared all the same is given up uncalled
    """

    def __init__(
        self,
        clock: Clock,
        post: Callable[[str, Letter], None],
        fault: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._post = post
        self._fault = fault
        self._executors: Mapping[str, Executor] = {}
        self._running: dict[Place, Operation] = {}
        self._timeouts: Timers[Place] = Timers(clock, clock.monotonic, self._too_long)
        self._accepting: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self.closed = False

    def use(self, executors: Iterable[Executor]) -> None:
        """The executors by name. Called once, before anything is handed over."""
        self._executors = {executor.name: executor for executor in executors}

    def __len__(self) -> int:
        return len(self._running)

    def knows(self, place: Place) -> bool:
        """This dispatch runs here and will report."""
        return place in self._running

    def calls(self) -> Iterator[Call]:
        """Everything that runs here now."""
        return (operation.call for operation in self._running.values())

    def start(self, run: str, workflow: str, start: Start) -> None:
        """Hand over a dispatch whose intent has just been committed."""
        if self.closed:
            self._tell(run, start.key, start.attempt, start.dispatch, GivenUp())
            return
        call = Call(
            run,
            start.key,
            start.attempt,
            start.dispatch,
            start.identity,
            start.terms,
            start.input,
            workflow,
        )
        executor = self._executors.get(start.terms.executor)
        if executor is None:
            self._end(call, Refused(f"there is no executor named {start.terms.executor}"))
            return
        self._enter(call, executor)
        self._accept(call, executor)

    def report(self, call: Call, end: DispatchEnd, statements: tuple[Statement, ...] = ()) -> None:
        """How a dispatch ended, told by its executor, once."""
        place = _place(call)
        if self._running.pop(place, None) is None:
            _log.warning("a second report of %s of run %s is ignored", call.key, call.run)
            return
        self._fault("driver.report")
        self._clock.release("dispatch")
        if call.terms.timeout_ms is not None:
            self._timeouts.drop(place)
        self._end(call, end, statements)
        if not self._running:
            self._empty.set()

    def stop(self, run: str, stop: Stop) -> None:
        """Send the signal of a request that has just been committed."""
        operation = self._running.get((run, stop.key, stop.attempt, stop.dispatch))
        if operation is not None:
            self._cancel(operation, "timeout" if stop.reason == "timeout" else "cancel")

    def lose(self, run: str) -> None:
        """The run has another owner: stop what only this process can be doing, and nothing else."""
        for operation in self._of(run):
            if operation.executor.in_engine:
                self._cancel(operation, "lost")

    def end_grace(self) -> list[str]:
        """The grace is over: stop everything that runs in this process.

        Returns the identities of what was running.
        """
        operations = list(self._running.values())
        for operation in operations:
            if operation.executor.in_engine:
                self._cancel(operation, "grace")
        return [operation.call.identity for operation in operations]

    def give_up_waiting(self) -> None:
        """Nobody will hear of what still runs: each ends unknown, by the engine's orderly stop."""
        for operation in list(self._running.values()):
            end = Unknown("it was still running when the engine stopped", counted=False)
            self.report(operation.call, end)

    async def drained(self) -> None:
        """Return once nothing runs."""
        await self._empty.wait()

    def close(self) -> None:
        """Let go of timers and of calls that still wait for their acceptance."""
        self._timeouts.stop()
        for task in self._accepting:
            task.cancel()

    def _enter(self, call: Call, executor: Executor) -> None:
        self._running[_place(call)] = Operation(call, executor)
        self._empty.clear()
        self._clock.hold("dispatch")
        if call.terms.timeout_ms is not None:
            self._timeouts.set(_place(call), self._clock.monotonic() + call.terms.timeout_ms)

    def _accept(self, call: Call, executor: Executor) -> None:
        self._fault("driver.before-accept")
        try:
            receipt = executor.accept(call)
        except NotAccepted as refusal:
            self.report(call, Refused(str(refusal)))
        except Exception as error:  # noqa: BLE001  whatever it raised, it may have begun
            _log.exception("executor %s raised on accept", executor.name)
            self.report(call, Unknown(f"accept raised {type(error).__name__}"))
        else:
            self._fault("driver.after-accept")
            if inspect.isawaitable(receipt):
                self._await(call, receipt)

    def _await(self, call: Call, receipt: Awaitable[Receipt]) -> None:
        task = asyncio.get_running_loop().create_task(self._accepted(call, receipt))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _accepted(self, call: Call, receipt: Awaitable[Receipt]) -> None:
        """An executor outside the engine took it, or did not."""
        try:
            body = msgspec.json.encode(await receipt, order="sorted")
        except NotAccepted as refusal:
            self.report(call, Refused(str(refusal)))
        except Exception as error:  # noqa: BLE001  whatever it raised, it may have begun
            _log.exception("an executor raised on accept")
            self.report(call, Unknown(f"accept raised {type(error).__name__}"))
        else:
            self._post(call.run, Letter(Accepted(call.key, call.attempt, call.dispatch, body)))

    def _too_long(self, place: Place) -> None:
        run, key, attempt, dispatch = place
        self._post(run, Letter(RequestTimeout(key, attempt, dispatch)))

    def _cancel(self, operation: Operation, reason: StopReason) -> None:
        self._fault("driver.before-cancel")
        operation.executor.cancel(operation.call, reason)
        self._fault("driver.after-cancel")

    def _end(self, call: Call, end: DispatchEnd, statements: tuple[Statement, ...] = ()) -> None:
        self._tell(call.run, call.key, call.attempt, call.dispatch, end, statements)

    def _tell(
        self,
        run: str,
        key: ActivationKey,
        attempt: int,
        dispatch: int,
        end: DispatchEnd,
        statements: tuple[Statement, ...] = (),
    ) -> None:
        report = Report(key, attempt, dispatch, end)
        self._post(run, Letter(report, tuple(map(_for_store, statements)) if statements else ()))

    def _of(self, run: str) -> list[Operation]:
        return [o for o in self._running.values() if o.call.run == run]


def _place(call: Call) -> Place:
    return (call.run, call.key, call.attempt, call.dispatch)


def _for_store(statement: Statement) -> UserStatement:
    return UserStatement(statement.sql, statement.params, statement.expect_rows)
