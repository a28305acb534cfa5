"""The function executor: exactly one report for each dispatch, and the right one."""

import asyncio
import contextlib
import contextvars
import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tallystick.core.commands import (
    Cancelled,
    Failed,
    GivenUp,
    Interrupted,
    Refused,
    Succeeded,
    Unknown,
)
from tallystick.errors import InvalidRequest, NotAccepted, OutcomeUnknown
from tallystick.executors.contract import Running, Statement, UnknownFate
from tallystick.executors.function import executor as function_executor
from tallystick.executors.function.task import TaskContext
from tallystick.executors.function.threads import Threads
from tests.executors.bench import Bench, make_call

HARMLESS = ("read_only", "transactional")
OTHERS = ("idempotent", "mutating")


@pytest.fixture
async def bench():
    bench = Bench()
    yield bench
    bench.executor.close()


async def turns(count: int = 3) -> None:
    """Let the loop do what it can do now."""
    for _ in range(count):
        await asyncio.sleep(0)


def threads_of(bench: Bench) -> list[threading.Thread]:
    return list(bench.executor._threads._threads)


class Waits:
    """An async function that reached its await, and goes on when it is let."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.let = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self.let.wait()


class Blocks:
    """The same for a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.reached = asyncio.Event()
        self.let = threading.Event()

    def __call__(self) -> None:
        self.loop.call_soon_threadsafe(self.reached.set)
        assert self.let.wait(30)


# ------------------------------------------------------------------------------------------ returns


async def test_a_result_is_reported_as_canonical_json(bench):
    async def one(b: int, a: int) -> dict[str, int]:
        return {"b": b, "a": a}

    def two(b: int, a: int) -> dict[str, int]:
        return {"b": b, "a": a}

    for function in (one, two):
        assert await bench.run(function, a=1, b=2) == Succeeded(b'{"a":1,"b":2}')


async def test_accept_returns_before_anything_runs(bench):
    ran = []

    async def function() -> None:
        ran.append(1)

    call = bench.start(function)
    assert ran == []
    assert await bench.end_of(call) == Succeeded(b"null")


async def test_arguments_that_do_not_fit_never_reach_the_function(bench):
    called = []

    async def one(n: int) -> None:
        called.append(n)

    def two(n: int) -> None:
        called.append(n)

    for function in (one, two):
        assert await bench.run(function, n="3") == Failed(
            "input_invalid", "n: expected int, got str", "none"
        )
    assert called == []


@pytest.mark.invariant("S7")
@pytest.mark.parametrize("value", [float("nan"), object(), "3", None, {1: object()}, "\ud800", [3]])
async def test_an_invalid_result_is_no_success_and_its_effect_is_on_record(bench, value):
    async def one() -> int:
        return value

    def two() -> int:
        return value

    for function in (one, two):
        end = await bench.run(function)
        assert isinstance(end, Failed)
        assert (end.kind, end.effect) == ("output_invalid", "possible")


@pytest.mark.case("P1")
async def test_a_result_that_is_too_large_fails_once_and_says_how_large(bench, monkeypatch):
    monkeypatch.setattr(function_executor, "OUTPUT_BYTES_MAX", 1000)
    calls = []

    async def function(size: int) -> str:
        calls.append(size)
        return "x" * size

    assert isinstance(await bench.run(function, size=998), Succeeded)
    end = await bench.run(function, size=999)
    assert isinstance(end, Failed)
    assert (end.kind, end.effect) == ("output_too_large", "possible")
    assert end.detail == {"step": "step2", "bytes": 1001, "limit": 1000}
    assert all(word in end.message for word in ("step2", "1001", "1000"))
    assert calls == [998, 999]


@pytest.mark.case("P3")
async def test_nul_characters_come_back_as_they_went(bench):
    async def function(text: str) -> str:
        return text

    assert await bench.run(function, text="a\0b") == Succeeded(rb'"a\u0000b"')


async def test_a_function_that_returns_something_to_await_is_told_so(bench):
    async def inner() -> int:
        return 1

    def function() -> int:
        return inner()

    end = await bench.run(function)
    assert isinstance(end, Failed)
    assert end.kind == "output_invalid"
    assert "async def" in end.message


# ------------------------------------------------------------------------------------------- raises


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no"), Failed),
        (SystemExit(1), Failed),
        (OutcomeUnknown("lost"), Unknown),
        (NotAccepted("busy"), Refused),
        (asyncio.CancelledError(), Failed),
    ],
)
async def test_what_it_raises_is_reported_and_the_engine_goes_on(bench, error, kind, threaded):
    async def one() -> None:
        raise error

    def two() -> None:
        raise error

    assert isinstance(await bench.run(two if threaded else one, effect="read_only"), kind)
    assert isinstance(await bench.run(Healthy().one), Succeeded)


@pytest.mark.parametrize(("effect", "kind"), [("read_only", Failed), ("mutating", Unknown)])
def test_an_interrupt_from_the_keyboard_passes_and_is_not_taken_for_the_functions_own(effect, kind):
    """It was meant for the process; what the function had begun may still succeed."""
    told = []

    async def function() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        bench = Bench()
        bench.executor._report = lambda *report: told.append(report)
        bench.start(function, effect=effect)
        bench.executor.close()
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    waiting = loop.create_task(main())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(waiting)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)
    loop.close()
    assert [type(end) for _, end, _ in told] == [kind]


class Healthy:
    async def one(self) -> None:
        pass


@pytest.mark.case("L3")
async def test_a_task_group_fails_with_all_its_members_listed(bench):
    async def fail(text: str) -> None:
        raise ValueError(text)

    async def function() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail("a"))
            group.create_task(fail("b"))

    end = await bench.run(function)
    assert isinstance(end, Failed)
    assert end.kind == "error"
    assert [member["message"] for member in end.detail["members"]] == ["a", "b"]


@pytest.mark.case("L3")
async def test_a_function_that_handles_its_group_succeeds(bench):
    async def fail() -> None:
        raise ValueError("a")

    async def function() -> int:
        handled = 0
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                group.create_task(fail())
        except* ValueError as group:
            handled = len(group.exceptions)
        return handled

    assert await bench.run(function) == Succeeded(b"2")


@pytest.mark.case("L3")
async def test_the_callers_context_variables_are_seen_everywhere(bench):
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set by the caller")

    def plain() -> str:
        return variable.get()

    async def coroutine() -> list[str]:
        with ThreadPoolExecutor(1) as pool:
            context = contextvars.copy_context()
            in_pool = pool.submit(context.run, variable.get).result()
        return [variable.get(), await asyncio.to_thread(variable.get), in_pool]

    assert await bench.run(plain) == Succeeded(b'"set by the caller"')
    end = await bench.run(coroutine)
    assert end == Succeeded(b'["set by the caller","set by the caller","set by the caller"]')


async def test_what_a_function_does_to_context_variables_stays_its_own(bench):
    variable = contextvars.ContextVar("variable", default="unset")

    def plain() -> None:
        variable.set("set by a task")

    async def coroutine() -> None:
        variable.set("set by a task")

    await bench.run(plain)
    await bench.run(coroutine)
    assert variable.get() == "unset"


# ----------------------------------------------------------------------------- asked to stop: async


@pytest.mark.invariant("R11", "S8")
@pytest.mark.parametrize(
    ("reason", "effect", "expected"),
    [
        *[("timeout", effect, Failed) for effect in HARMLESS],
        *[("cancel", effect, Cancelled) for effect in HARMLESS],
        *[("grace", effect, Interrupted) for effect in HARMLESS],
        *[("lost", effect, Interrupted) for effect in HARMLESS],
        *[
            (r, effect, Unknown)
            for r in ("timeout", "cancel", "grace", "lost")
            for effect in OTHERS
        ],
    ],
)
async def test_a_coroutine_left_at_an_await_ends_as_its_class_allows(
    bench, reason, effect, expected
):
    waits = Waits()

    async def function() -> None:
        await waits()

    call = bench.start(function, effect=effect)
    await waits.reached.wait()
    bench.executor.cancel(call, reason)
    end = await bench.end_of(call)
    assert type(end) is expected
    if reason == "timeout" and isinstance(end, Failed):
        assert end.kind == "timeout"
    if isinstance(end, Unknown):
        assert end.counted is not (effect == "idempotent" and reason in ("grace", "lost"))


@pytest.mark.invariant("S8")
@pytest.mark.case("X3")
@pytest.mark.parametrize("reason", ["timeout", "cancel", "grace", "lost"])
async def test_a_success_after_a_request_to_stop_is_a_success(bench, reason):
    waits = Waits()

    async def function() -> str:
        with contextlib.suppress(BaseException):
            await waits()
        return "done all the same"

    call = bench.start(function)
    await waits.reached.wait()
    bench.executor.cancel(call, reason)
    bench.executor.cancel(call, reason)
    assert await bench.end_of(call) == Succeeded(b'"done all the same"')


@pytest.mark.parametrize("reason", ["timeout", "cancel", "grace", "lost"])
async def test_an_exception_of_its_own_is_reported_as_it_is(bench, reason):
    waits = Waits()

    async def function() -> None:
        try:
            await waits()
        finally:
            raise OutcomeUnknown("the connection was open")

    call = bench.start(function, effect="read_only")
    await waits.reached.wait()
    bench.executor.cancel(call, reason)
    end = await bench.end_of(call)
    assert isinstance(end, Unknown)
    assert "the connection was open" in end.reason


@pytest.mark.case("X3")
async def test_a_coroutine_that_goes_on_stays_open_until_the_end_of_the_grace(bench):
    first, second = Waits(), Waits()

    async def function() -> str:
        for wait in (first, second):
            with contextlib.suppress(asyncio.CancelledError):
                await wait()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await second.let.wait()
        return "late"

    call = bench.start(function, effect="idempotent")
    await first.reached.wait()
    bench.executor.cancel(call, "timeout")
    await second.reached.wait()
    bench.executor.cancel(call, "cancel")
    await turns()
    assert bench.reports == []
    assert isinstance(await bench.executor.observe(call, "engine", None), Running)
    bench.executor.cancel(call, "grace")
    end = await bench.end_of(call)
    assert isinstance(end, Unknown)
    assert not end.counted
    assert bench.executor.free("async") == function_executor.ASYNC_MAX - 1
    second.let.set()
    await turns(5)
    assert len(bench.reports) == 1  # its late end is told to nobody
    assert bench.executor.free("async") == function_executor.ASYNC_MAX


@pytest.mark.invariant("S11")
@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("timeout", Failed("timeout", "its time was over before it was called", "none")),
        ("cancel", Cancelled("none")),
        ("grace", GivenUp()),
        ("lost", GivenUp()),
    ],
)
async def test_what_is_stopped_before_its_first_step_was_never_called(bench, reason, expected):
    called = []

    async def function() -> None:
        called.append(1)

    call = bench.start(function)
    bench.executor.cancel(call, reason)
    assert await bench.end_of(call) == expected
    assert called == []


@pytest.mark.case("X3")
async def test_at_whatever_step_a_cancel_arrives_there_is_one_report(bench):
    """The coroutine takes twenty steps; the cancel arrives before each, and after the end."""
    for step in range(25):

        async def function() -> int:
            for _ in range(20):
                await asyncio.sleep(0)
            return 1

        call = bench.start(function)
        await turns(step)
        bench.executor.cancel(call, "cancel")
        bench.executor.cancel(call, "cancel")
        await bench.end_of(call)
        await turns(2)
        assert sum(told is call for told, _, _ in bench.reports) == 1


# --------------------------------------------------------------------------- asked to stop: threads


@pytest.mark.invariant("R11", "S8")
@pytest.mark.parametrize("reason", ["timeout", "cancel", "lost"])
async def test_a_thread_stays_open_until_it_returns_and_its_value_is_a_success(bench, reason):
    blocks = Blocks()

    def function(ctx: TaskContext) -> bool:
        blocks()
        return ctx.stop_requested

    call = bench.start(function, effect="read_only")
    await blocks.reached.wait()
    bench.executor.cancel(call, reason)
    await turns()
    assert bench.reports == []
    assert isinstance(await bench.executor.observe(call, "engine", None), Running)
    blocks.let.set()
    assert await bench.end_of(call) == Succeeded(b"true")


@pytest.mark.invariant("R11")
@pytest.mark.parametrize(
    ("reason", "raised", "kind"),
    [
        ("timeout", ValueError("x"), "timeout"),
        ("timeout", asyncio.CancelledError(), "timeout"),
        ("cancel", ValueError("x"), "error"),
    ],
)
async def test_an_overdue_thread_that_raises_failed(bench, reason, raised, kind):
    blocks = Blocks()

    def function() -> None:
        blocks()
        raise raised

    call = bench.start(function)
    await blocks.reached.wait()
    bench.executor.cancel(call, reason)
    blocks.let.set()
    end = await bench.end_of(call)
    assert isinstance(end, Failed)
    assert (end.kind, end.effect) == (kind, "possible")


async def test_a_thread_that_stops_where_it_was_asked_to_is_cancelled(bench):
    blocks = Blocks()

    def function(ctx: TaskContext) -> None:
        blocks()
        if ctx.stop_requested:
            raise asyncio.CancelledError

    call = bench.start(function)
    await blocks.reached.wait()
    bench.executor.cancel(call, "cancel")
    blocks.let.set()
    assert await bench.end_of(call) == Cancelled()


@pytest.mark.invariant("R11")
@pytest.mark.parametrize("effect", ["read_only", "idempotent", "mutating", "transactional"])
async def test_a_thread_that_outlives_the_grace_is_unknown_at_once(bench, effect):
    blocks = Blocks()

    def function() -> str:
        blocks()
        return "late"

    mode = "transactional" if effect == "transactional" else "thread"
    before = bench.executor.free(mode)
    call = bench.start(function, effect=effect)
    await blocks.reached.wait()
    bench.executor.cancel(call, "grace")
    assert [type(end) for _, end, _ in bench.reports] == [Unknown]
    assert isinstance(await bench.executor.observe(call, "engine", None), UnknownFate)
    assert bench.executor.free(mode) == before - 1  # it still occupies a thread
    assert bench.executor.close(0) == 1
    blocks.let.set()
    for thread in threads_of(bench):
        await asyncio.to_thread(thread.join)
    await turns()
    assert bench.executor.free(mode) == before
    assert len(bench.reports) == 1


@pytest.mark.slow
@pytest.mark.case("K3")
async def test_a_thread_that_never_returns_does_not_hold_up_the_process():
    program = """
import asyncio, threading
from tests.executors.bench import Bench
async def main():
    bench, reached = Bench(), threading.Event()
    def forever() -> None:
        reached.set()
        threading.Event().wait()
    call = bench.start(forever)
    reached.wait()
    bench.executor.cancel(call, "grace")
    assert bench.executor.close(0.0) == 1
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await asyncio.wait_for(process.wait(), 20) == 0


# ------------------------------------------------------------------------------------ transactional


async def test_a_transactional_function_hands_its_statements_back_with_its_success(bench):
    async def one(ctx: TaskContext) -> str:
        ctx.write("insert into stock values (?, ?)", ("a", 1))
        ctx.write("delete from old", expect_rows=None)
        return "ok"

    def two(ctx: TaskContext) -> str:
        ctx.write("insert into stock values (?, ?)", ("a", 1))
        ctx.write("delete from old", expect_rows=None)
        return "ok"

    for function in (one, two):
        await bench.run(function, effect="transactional")
        assert bench.reports[-1][1:] == (
            Succeeded(b'"ok"'),
            (
                Statement("insert into stock values (?, ?)", ("a", 1), 1),
                Statement("delete from old", (), None),
            ),
        )


async def test_a_transactional_function_that_fails_hands_back_nothing(bench):
    async def raises(ctx: TaskContext) -> None:
        ctx.write("delete from stock")
        raise ValueError

    async def lies(ctx: TaskContext) -> int:
        ctx.write("delete from stock")
        return "three"

    for function in (raises, lies):
        assert isinstance(await bench.run(function, effect="transactional"), Failed)
        assert bench.reports[-1][2] == ()


@pytest.mark.parametrize("effect", ["read_only", "idempotent", "mutating"])
async def test_no_other_class_can_write(bench, effect):
    async def function(ctx: TaskContext) -> None:
        ctx.write("delete from stock")

    end = await bench.run(function, effect=effect)
    assert isinstance(end, Failed)
    assert "transactional" in end.message
    assert bench.reports[-1][2] == ()


async def test_a_snapshot_is_opened_where_it_is_read_and_closed_with_the_call():
    log = []

    @contextlib.contextmanager
    def snapshot():
        log.append(("open", threading.get_ident()))
        yield lambda sql, params: [(sql, *params)]
        log.append(("close", threading.get_ident()))

    def reads(ctx: TaskContext) -> list:
        assert ctx.read("select 1") == [("select 1",)]
        return list(ctx.read("select ?", (2,)))

    async def does_not(ctx: TaskContext) -> None:
        pass

    bench = Bench(snapshot=snapshot)
    assert await bench.run(reads, effect="transactional") == Succeeded(b'[["select ?",2]]')
    await bench.run(does_not, effect="transactional")
    assert [what for what, _ in log] == ["open", "close"]
    assert log[0][1] == log[1][1] != threading.get_ident()
    bench.executor.close()


# ---------------------------------------------------------------------------------- slots, receipts


@pytest.mark.invariant("P14")
@pytest.mark.parametrize("mode", ["async", "thread", "transactional"])
async def test_nothing_starts_without_a_free_slot(mode):
    bench = Bench(slots={"async": 2, "thread": 2, "transactional": 2})
    blocks, waits = Blocks(), Waits()

    def in_thread() -> None:
        blocks.let.wait(30)

    async def in_loop() -> None:
        await waits.let.wait()

    function = in_loop if mode == "async" else in_thread
    options = {"effect": "transactional"} if mode == "transactional" else {}
    calls = [bench.start(function, **options) for _ in range(2)]
    assert bench.executor.free(mode) == 0
    with pytest.raises(NotAccepted, match="slot"):
        bench.start(function, **options)
    blocks.let.set()
    waits.let.set()
    for call in calls:
        await bench.end_of(call)
    assert bench.executor.free(mode) == 2
    assert bench.executor.free("shell") == 0
    bench.executor.close()


async def test_all_slots_work_at_the_same_time(bench):
    """As many threads as slots: each waits for all the others."""
    barrier = threading.Barrier(function_executor.THREADS_MAX, timeout=30)

    def function() -> None:
        barrier.wait()

    calls = [bench.start(function) for _ in range(function_executor.THREADS_MAX)]
    for call in calls:
        assert isinstance(await bench.end_of(call), Succeeded)


def test_an_idle_thread_is_used_again_and_counted_right():
    threads = Threads(4)
    done = threading.Semaphore(0)
    for _ in range(3):
        threads.start(contextvars.copy_context(), done.release)
        assert done.acquire(timeout=30)
        while threads._idle != 1:
            os.sched_yield()
    assert len(threads._threads) == 1
    barrier = threading.Barrier(5, timeout=30)  # four threads at once, and this one
    for _ in range(4):
        threads.start(contextvars.copy_context(), barrier.wait)
    barrier.wait()
    assert threads.close(5) == 0


def test_a_thread_survives_work_that_raises(caplog):
    threads = Threads(1)
    done = threading.Event()
    threads.start(contextvars.copy_context(), lambda: 1 / 0)
    threads.start(contextvars.copy_context(), done.set)
    assert done.wait(30)
    assert threads.close(5) == 0
    assert "must not" in caplog.text


async def test_receipts_are_remembered_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(function_executor, "RECEIPTS_MAX", 10)
    bench = Bench()
    waits = Waits()

    async def function() -> None:
        pass

    async def open_one() -> None:
        await waits()

    oldest = bench.call(open_one)
    receipt = bench.executor.accept(oldest)
    for _ in range(50):
        await bench.run(function)
    assert len(bench.executor._receipts) == 10
    assert bench.executor.accept(oldest) is receipt  # what is open is never forgotten
    waits.let.set()
    await bench.end_of(oldest)
    assert len(bench.reports) == 51
    bench.executor.close()


async def test_a_task_is_found_once_and_one_that_is_gone_is_not_accepted():
    asked = []

    async def function() -> None:
        pass

    def find(name, root):
        asked.append(name)
        if name == "gone:task":
            raise InvalidRequest("task gone:task: there is no module 'gone'")
        return bench.find(name, root)

    bench = Bench(find=find)
    bench.functions["here:task"] = function
    for _ in range(3):
        await bench.run("here:task")
    assert asked == ["here:task"]
    with pytest.raises(NotAccepted, match="no module 'gone'"):
        bench.executor.accept(make_call(99, task="gone:task"))
    assert len(bench.reports) == 3
    bench.executor.close()


async def test_a_function_knows_which_call_it_serves(bench):
    async def function(ctx) -> list:
        return [ctx.run_id, ctx.workflow, ctx.step, ctx.attempt, ctx.dispatch, ctx.idempotency_key]

    call = bench.start(function, timeout_ms=60_000)
    await bench.end_of(call)
    expected = f'["run-1","orders","step1",1,1,"{call.identity}"]'
    assert bench.reports[0][1] == Succeeded(expected.encode())


# ----------------------------------------------------------------------------------------- watchdog


async def test_a_blocked_loop_is_named_while_it_is_blocked():
    said, lines = threading.Event(), []

    class Listener(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
            said.set()

    async def blocks_the_loop() -> None:
        assert said.wait(30)  # ends because of what is said about it

    bench = Bench(blocked_after_s=0.05)
    logger = logging.getLogger("tallystick.function")
    logger.addHandler(listener := Listener())
    try:
        await bench.run(blocks_the_loop)
    finally:
        logger.removeHandler(listener)
        bench.executor.close()
    assert "blocked for" in lines[0]
    assert " in " in lines[0]


def test_a_blockage_is_said_once_and_only_when_it_is_one():
    pulse = function_executor.Watchdog(lambda: 0.0)._pulse
    pulse.beat(10.0)
    assert pulse.blocked_for(10.99) is None
    assert pulse.blocked_for(11.0) == 1.0
    assert pulse.blocked_for(15.0) is None
    pulse.beat(15.0)
    assert pulse.blocked_for(16.5) == 1.5
