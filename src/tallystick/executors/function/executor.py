"""Functions as operations: coroutines on the engine's loop, ordinary functions in threads.

A dispatch is accepted by the commit of its intent, so `accept` starts the work and returns. From
then on the executor owes the engine exactly one report, on the loop: what the function returned,
or what it means that it ended otherwise (`ends`). A request to stop changes nothing by itself:

    coroutine   is cancelled where it awaits; what it does then is what is reported. One that goes
                on all the same stays open, until the end of the engine's grace calls it unknown
    thread      sees `ctx.stop_requested`, and stays open until it returns, or until that end

There are slots for each mode, and a function that does not end keeps its slot for as long as it
runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Final

from tallystick.core.commands import DispatchEnd, Failed, Succeeded
from tallystick.core.definition import Effect
from tallystick.core.messages import Terms
from tallystick.errors import InvalidRequest, NotAccepted
from tallystick.executors.contract import (
    Call,
    Observation,
    Receipt,
    ReportTo,
    Running,
    Statement,
    StopReason,
    UnknownFate,
)
from tallystick.executors.function import ends
from tallystick.executors.function.arguments import (
    OUTPUT_BYTES_MAX,
    ArgumentsRefused,
    ResultRefused,
)
from tallystick.executors.function.resolve import ResolvedTask, resolve
from tallystick.executors.function.task import Parameter, Reader, Rows, TaskContext
from tallystick.executors.function.threads import Threads
from tallystick.executors.function.watchdog import BLOCKED_AFTER_S, Watchdog

ASYNC_MAX: Final = 100
THREADS_MAX: Final = 32
TRANSACTIONAL_MAX: Final = 32
RECEIPTS_MAX: Final = 10_000
"""Dispatches remembered after their end, so that a second `accept` gets the first receipt."""

LINGER_S: Final = 1.0
"""How long a coroutine may take to end once it was cancelled at the end of the grace."""

_log: Final = logging.getLogger("tallystick.function")

Resolve = Callable[[str, Path | None], ResolvedTask]
Snapshot = Callable[[], AbstractContextManager[Reader]]


class FunctionExecutor:
    """The executor for `call` steps. Used on one event loop, by one engine.

    Args:
        report: told each end, once, on the loop.
        now: the executor's own clock, ms since 1970; its reading goes into receipts.
        find: how a task is found; found once per import root and name.
        snapshot: opens what `ctx.read` reads, once per call that uses it, in the thread that does.
            None: functions have nothing to read.
        slots: how many dispatches may run at once, by mode; what is not named keeps its default.
        linger_s: seconds a coroutine gets to end once it was cancelled at the end of the grace.
    """

    name = "function"
    contract = "function/1"
    in_engine = True

    def __init__(
        self,
        report: ReportTo,
        *,
        now: Callable[[], int],
        find: Resolve = resolve,
        snapshot: Snapshot | None = None,
        slots: dict[str, int] | None = None,
        linger_s: float = LINGER_S,
        blocked_after_s: float = BLOCKED_AFTER_S,
    ) -> None:
        self._report = report
        self._now = now
        self._find = find
        self._snapshot = snapshot
        self._linger_s = linger_s
        self._blocked_after_s = blocked_after_s
        self._free = {
            "async": ASYNC_MAX,
            "thread": THREADS_MAX,
            "transactional": TRANSACTIONAL_MAX,
            **(slots or {}),
        }
        self._threads = Threads(self._free["thread"] + self._free["transactional"])
        self._tasks: dict[tuple[str | None, str], ResolvedTask] = {}
        self._receipts: dict[tuple[str, int], Receipt] = {}
        self._open: dict[tuple[str, int], _Dispatch] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: Watchdog | None = None

    def free(self, mode: str) -> int:
        """How many more dispatches of this mode can start now; 0 for a mode that is not ours."""
        return self._free.get(mode, 0)

    def accept(self, call: Call) -> Receipt:
        """Start it, and return before it runs.

        Raises:
            NotAccepted: its task cannot be found any more, or every slot is taken.
        """
        key = (call.identity, call.dispatch)
        known = self._open[key].receipt if key in self._open else self._receipts.get(key)
        if known is not None:
            return known
        task = self._task_of(call.terms)
        if self.free(call.terms.mode) <= 0:
            raise NotAccepted(f"no free slot for {call.terms.mode} functions")
        self._free[call.terms.mode] -= 1
        receipt = Receipt(call.identity, call.dispatch, self._now(), self.name)
        self._remember(key, receipt)
        self._open[key] = dispatch = _Dispatch(call, task, receipt)
        self._start(dispatch)
        return receipt

    async def observe(self, call: Call, place: str, receipt: Receipt | None) -> Observation:
        """Running, if it runs here and was not reported yet. A function leaves no other trace."""
        dispatch = self._open.get((call.identity, call.dispatch))
        if dispatch is not None and not dispatch.reported:
            return Running()
        if (call.identity, call.dispatch) in self._receipts:
            return UnknownFate("it ran in this engine, which was told how it ended")
        return UnknownFate("functions leave no record outside the engine that called them")

    async def preclude(self, call: Call, place: str) -> bool:
        """Never: acceptance was recorded with the intent."""
        return False

    def cancel(self, call: Call, reason: StopReason) -> None:
        """Ask it to stop. The end of the grace also ends the waiting for what does not stop."""
        dispatch = self._open.get((call.identity, call.dispatch))
        if dispatch is None:
            return
        dispatch.stop = reason
        if dispatch.context is not None:
            dispatch.context.request_stop()
        if dispatch.work is None:
            if reason == "grace":
                self._give_up_waiting(dispatch)
        elif dispatch.begun:
            dispatch.work.cancel()
            if reason == "grace":
                dispatch.work.get_loop().call_later(self._linger_s, self._give_up_waiting, dispatch)

    def close(self, timeout_s: float = 0.1) -> int:
        """Let go of threads and watchdog. Returns how many threads still run a function."""
        if self._watchdog is not None:
            self._watchdog.stop()
            self._watchdog = None
        return self._threads.close(timeout_s)

    # ------------------------------------------------------------------------------------- starting

    def _task_of(self, terms: Terms) -> ResolvedTask:
        found = self._tasks.get((terms.root, terms.task))
        if found is None:
            root = None if terms.root is None else Path(terms.root)
            try:
                found = self._find(terms.task, root)
            except InvalidRequest as error:
                raise NotAccepted(error.message) from error
            self._tasks[terms.root, terms.task] = found
        return found

    def _remember(self, key: tuple[str, int], receipt: Receipt) -> None:
        self._receipts[key] = receipt
        if len(self._receipts) > RECEIPTS_MAX:
            del self._receipts[next(iter(self._receipts))]

    def _start(self, dispatch: _Dispatch) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._watchdog = Watchdog(self._loop.time, self._blocked_after_s)
            self._watchdog.start()
        if dispatch.task.is_async:
            dispatch.work = self._loop.create_task(self._run(dispatch))
        else:
            self._threads.start(contextvars.copy_context(), lambda: self._run_in_thread(dispatch))

    # -------------------------------------------------------------------------------------- running

    async def _run(self, dispatch: _Dispatch) -> None:
        """A coroutine, from its first step to its report."""
        if dispatch.stop is not None:
            self._over(dispatch, ends.never_called(dispatch.stop))
            return
        dispatch.begun = True
        passes: BaseException | None = None
        try:
            end = await self._await(dispatch)
        except GeneratorExit:
            raise  # the loop is gone, and with it everybody who could be told
        except BaseException as error:  # noqa: BLE001  whatever it raised is how it ended
            passes = error if isinstance(error, KeyboardInterrupt) else None
            cause = asyncio.CancelledError() if passes else error
            end = ends.ended_by(cause, effect=dispatch.effect, stop=dispatch.stop, in_thread=False)
        self._over(dispatch, end)
        if passes is not None:
            raise passes  # Ctrl-C that arrived while this function ran was not meant for it

    async def _await(self, dispatch: _Dispatch) -> DispatchEnd:
        with self._reading() as reader:
            try:
                arguments = self._arguments(dispatch, reader)
            except ArgumentsRefused as refused:
                return _input_invalid(refused)
            return _output(dispatch, await dispatch.task.function(**arguments))

    def _run_in_thread(self, dispatch: _Dispatch) -> None:
        if dispatch.stop is not None:
            end = ends.never_called(dispatch.stop)
        else:
            try:
                end = self._call(dispatch)
            except BaseException as error:  # noqa: BLE001  whatever it raised is how it ended
                end = ends.ended_by(
                    error, effect=dispatch.effect, stop=dispatch.stop, in_thread=True
                )
        assert self._loop is not None  # set by whoever started this thread
        try:
            self._loop.call_soon_threadsafe(self._over, dispatch, end)
        except RuntimeError:
            _log.warning("step %s ended after the engine's loop was closed", dispatch.call.key)

    def _call(self, dispatch: _Dispatch) -> DispatchEnd:
        with self._reading() as reader:
            try:
                arguments = self._arguments(dispatch, reader)
            except ArgumentsRefused as refused:
                return _input_invalid(refused)
            return _output(dispatch, dispatch.task.function(**arguments))

    def _reading(self) -> AbstractContextManager[Reader | None]:
        return nullcontext() if self._snapshot is None else _Lazy(self._snapshot)

    def _arguments(self, dispatch: _Dispatch, reader: Reader | None) -> dict[str, Any]:
        signature = dispatch.task.signature
        arguments = signature.arguments(dispatch.call.input)
        if signature.context is not None:
            arguments[signature.context] = dispatch.make_context(reader)
        return arguments

    # --------------------------------------------------------------------------------------- ending

    def _over(self, dispatch: _Dispatch, end: DispatchEnd) -> None:
        """The function is over: its slot is free, and its end is told unless one was."""
        del self._open[dispatch.call.identity, dispatch.call.dispatch]
        self._free[dispatch.call.terms.mode] += 1
        self._tell(dispatch, end)

    def _give_up_waiting(self, dispatch: _Dispatch) -> None:
        if not dispatch.reported:
            what = (
                "a thread" if dispatch.work is None else "a coroutine that ignored its cancellation"
            )
            self._tell(dispatch, ends.still_running(dispatch.effect, "grace", what))

    def _tell(self, dispatch: _Dispatch, end: DispatchEnd) -> None:
        if dispatch.reported:
            return
        dispatch.reported = True
        statements = dispatch.statements if isinstance(end, Succeeded) else ()
        self._report(dispatch.call, end, statements)


class _Dispatch:
    """One call in progress. `work` is None for a function in a thread."""

    __slots__ = ("begun", "call", "context", "receipt", "reported", "stop", "task", "work")

    def __init__(self, call: Call, task: ResolvedTask, receipt: Receipt) -> None:
        self.call = call
        self.task = task
        self.receipt = receipt
        self.begun = False
        self.reported = False
        self.stop: StopReason | None = None
        self.context: TaskContext | None = None
        self.work: asyncio.Task[None] | None = None

    @property
    def effect(self) -> Effect:
        return self.call.terms.effect

    @property
    def statements(self) -> tuple[Statement, ...]:
        return () if self.context is None else self.context.statements

    def make_context(self, reader: Reader | None) -> TaskContext:
        call = self.call
        self.context = context = TaskContext(
            run_id=call.run,
            workflow=call.workflow,
            step=str(call.key) if call.key.instance else call.key.node,
            attempt=call.attempt,
            dispatch=call.dispatch,
            idempotency_key=call.identity,
            timeout_ms=call.terms.timeout_ms,
            started_at_ms=self.receipt.accepted_at,
            writable=call.terms.effect == "transactional",
            reader=reader,
        )
        if self.stop is not None:  # asked between the start of the thread and here
            context.request_stop()
        return context


class _Lazy:
    """A reader that opens its snapshot at the first read, and closes it with the call."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._opened = ExitStack()
        self._reader: Reader | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def __call__(self, sql: str, params: tuple[Parameter, ...]) -> Rows:
        if self._reader is None:
            self._reader = self._opened.enter_context(self._snapshot())
        return self._reader(sql, params)


def _input_invalid(refused: ArgumentsRefused) -> Failed:
    """The function was never called, which is proof enough."""
    return Failed("input_invalid", str(refused), effect="none")


def _output(dispatch: _Dispatch, value: object) -> DispatchEnd:
    """What the function returned, as the outcome. It ran, so whatever it did is done."""
    try:
        output = dispatch.task.signature.result(value)
    except ResultRefused as refused:
        return Failed("output_invalid", str(refused))
    if len(output) <= OUTPUT_BYTES_MAX:
        return Succeeded(output)
    return Failed(
        "output_too_large",
        f"step {dispatch.call.key} returned {len(output)} bytes, more than {OUTPUT_BYTES_MAX}; "
        "write it to a file or a store and return where it is",
        detail={"step": str(dispatch.call.key), "bytes": len(output), "limit": OUTPUT_BYTES_MAX},
    )
