"""L3: a group of failures is a failure with all its members; context reaches every thread."""

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor

import pytest

import tallystick as ts
from tests.cases.field import World, definition

CALLER = contextvars.ContextVar("caller", default="nobody")

pytestmark = [pytest.mark.case("L3"), pytest.mark.slow]


async def two_failures(*, ctx: ts.TaskContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_later(ValueError("first")))
        group.create_task(_later(KeyError("second")))


async def _later(error: BaseException) -> None:
    try:
        await asyncio.Event().wait() if isinstance(error, KeyError) else await asyncio.sleep(0)
    finally:
        raise error


async def nested(*, ctx: ts.TaskContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(two_failures(ctx=ctx))
        group.create_task(_later(OSError("third")))


def threads(*, ctx: ts.TaskContext) -> None:
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(int, text) for text in ("x", "1", "y")]
    errors = [error for future in futures if (error := future.exception())]
    raise ExceptionGroup("in threads", errors)


async def unknown_inside(*, ctx: ts.TaskContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_later(ValueError("no")))
        group.create_task(_later(ts.OutcomeUnknown("the line was cut")))


async def refusals_inside(*, ctx: ts.TaskContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_later(ts.NotAccepted("closed")))
        group.create_task(_later(ts.NotAccepted("shut")))


async def star(how: str, *, ctx: ts.TaskContext) -> str:
    """Handle one kind of a group; what is not handled goes on."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_later(ValueError("handled")))
            if how == "more":
                group.create_task(_later(KeyError("not handled")))
    except* ValueError:
        pass
    return "went on"


async def cancels_itself(*, ctx: ts.TaskContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(3_600))
        asyncio.current_task().cancel()


async def slow_group(*, ctx: ts.TaskContext) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(asyncio.Event().wait())


def seen_in_thread(*, ctx: ts.TaskContext) -> list[str]:
    """In the engine's thread; then in a pool of the task's own, which gets it only by hand."""
    here = CALLER.get()
    with ThreadPoolExecutor(1) as pool:
        return [here, pool.submit(contextvars.copy_context().run, CALLER.get).result()]


async def seen_by_coroutine(*, ctx: ts.TaskContext) -> list[str]:
    return [CALLER.get(), await asyncio.to_thread(CALLER.get)]


async def change(*, ctx: ts.TaskContext) -> str:
    before, _ = CALLER.get(), CALLER.set("changed by a task")
    return before


def write_in_thread(*, ctx: ts.TaskContext) -> int:
    """What is recorded is recorded through `ctx`, from whatever thread."""
    with ThreadPoolExecutor(4) as pool:
        sql = "INSERT INTO written (n) VALUES (?)"
        list(pool.map(lambda n: ctx.write(sql, (n,)), range(20)))
    return len(ctx.statements)


async def write_without_promise(*, ctx: ts.TaskContext) -> None:
    await asyncio.to_thread(ctx.write, "INSERT INTO written (n) VALUES (1)")


def flow(task: str, more: str = "", effect: str = "read_only") -> ts.Definition:
    return definition(
        f"""
        tally: 1
        workflow: l3
        steps:
          - {{id: a, call: "{__name__}:{task}", effect: {effect}{more}}}
        output: ${{{{ steps.a.output }}}}
        """
    )


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def leaves(failure: dict) -> list[str]:
    members = failure["detail"].get("members", [])
    return sorted(m["type"] for m in members if not m["type"].endswith("Group"))


@pytest.mark.parametrize(
    ("task", "members"),
    [
        ("two_failures", ["KeyError", "ValueError"]),
        ("nested", ["KeyError", "OSError", "ValueError"]),
        ("threads", ["ValueError", "ValueError"]),
        ("refusals_inside", ["tallystick.errors.NotAccepted"] * 2),
    ],
)
async def test_a_group_is_a_failure_that_lists_every_member(world, task, members):
    retry = ", retry: {max_attempts: 2, backoff: 1ms}"
    async with ts.open(world.store, engine=True) as tally:
        run = await tally.start(flow(task, retry))
        with pytest.raises(ts.RunFailed) as failed:
            await run.result(30)
        info = await run.status()
        kinds = [event.kind async for event in tally.history(run.id)]
    failure = failed.value.facts["failure"]
    assert failure["kind"] == "error"
    assert leaves(failure) == members
    assert failure["detail"]["members_total"] == len(members)
    assert info.status == "failed"
    assert kinds.count("AttemptPrepared") == 2, "the retry policy sees an error"
    assert not world.judged()


@pytest.mark.invariant("R11", "C8")
@pytest.mark.parametrize(("effect", "end"), [("mutating", "in_doubt"), ("read_only", "exhausted")])
async def test_one_unknown_inside_makes_the_whole_unknown(world, effect, end):
    retry = ", retry: {backoff: 1ms, interruptions_max: 1}"
    async with ts.open(world.store, engine=True) as tally:
        run = await tally.start(flow("unknown_inside", retry, effect))
        with pytest.raises((ts.RunFailed, ts.RunInDoubt)):
            await run.result(30)
        info = await run.status()
    assert info.status == end or info.failure["kind"] == end
    assert not world.judged()


async def test_what_except_star_handles_is_no_failure(world):
    async with ts.open(world.store, engine=True) as tally:
        assert await tally.run(flow("star", ", with: {how: one}"), timeout=30) == "went on"
        run = await tally.start(flow("star", ", with: {how: more}"))
        with pytest.raises(ts.RunFailed) as failed:
            await run.result(30)
    assert leaves(failed.value.facts["failure"]) == ["KeyError"]


@pytest.mark.invariant("R11")
@pytest.mark.parametrize(
    ("task", "effect", "kind"),
    [
        ("slow_group", "read_only", "timeout"),
        ("slow_group", "mutating", "in_doubt"),
        ("cancels_itself", "read_only", "error"),
        ("cancels_itself", "mutating", "in_doubt"),
    ],
)
async def test_a_group_that_is_cancelled_ends_and_says_only_what_is_known(
    world, task, effect, kind
):
    timeout = ", timeout: 50ms" if task == "slow_group" else ""
    async with ts.open(world.store, engine=True) as tally:
        run = await tally.start(flow(task, timeout, effect))
        with pytest.raises((ts.RunFailed, ts.RunInDoubt)):
            await run.result(30)
        info = await run.status()
    assert info.status == kind or info.failure["kind"] == kind
    assert not world.judged()


async def test_a_variable_of_whoever_opened_the_engine_is_seen_in_every_thread(world):
    CALLER.set("the test")
    async with ts.open(world.store, engine=True) as tally:
        assert await tally.run(flow("seen_in_thread"), timeout=30) == ["the test"] * 2
        assert await tally.run(flow("seen_by_coroutine"), timeout=30) == ["the test"] * 2
        for _ in range(2):
            assert await tally.run(flow("change"), timeout=30) == "the test", "no task leaks"
    assert CALLER.get() == "the test"


async def test_a_recorded_operation_works_from_any_thread_or_fails_before_its_effect(world):
    setup = world.folder / "setup.sql"
    setup.write_text("CREATE TABLE IF NOT EXISTS written (n INTEGER PRIMARY KEY) STRICT")
    async with ts.open(world.store, engine=True, setup=setup) as tally:
        done = flow("write_in_thread", effect="transactional")
        assert await tally.run(done, timeout=30) == 20
        run = await tally.start(flow("write_without_promise"))
        with pytest.raises(ts.RunFailed) as failed:
            await run.result(30)
        assert "transactional" in failed.value.facts["failure"]["message"]
        written = await tally.engine.scene.store.query("SELECT count(*) FROM written")
    assert written == [(20,)]
    assert not world.judged(complete=False)
