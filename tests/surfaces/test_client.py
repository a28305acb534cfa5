"""The Python client, with the real engine and store."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tallystick as ts
from tallystick.core.definition import Definition, Node, Scope
from tallystick.surfaces.client import database_path
from tallystick.surfaces.client.runs import parse_step
from tests.engine import work

FLOW = Path(__file__).parents[1] / "engine" / "flow.yaml"


@pytest.fixture(autouse=True)
def _nothing_done():
    work.forget()


def opened(tmp_path, **rest):
    return ts.open(tmp_path / "t.db", **rest)


async def go_on(name: str = "second") -> None:
    """Open the gate at which a step waits."""
    await work.reached(name)
    work.open_gates[name].set()


async def test_a_run_is_started_watched_and_answered(tmp_path):
    async with opened(tmp_path, engine=True) as tally:
        run = await tally.start(FLOW, input={"n": 7}, key="seven")
        assert (await run.status()).status == "running"
        watched = asyncio.create_task(kinds(run))
        await go_on()
        assert await run.result(timeout=10) == {"said": "second", "n": 7}
        seen = await watched
        assert seen[0] == "RunAdmitted"
        assert seen[-1] == "RunEnded"
        assert seen == [event.kind async for event in tally.history(run.id)]
        info = await run.status()
        assert (info.status, info.key) == ("succeeded", "seven")
        assert info.output == {"said": "second", "n": 7}
        assert [listed.id for listed in await tally.list(workflow="flow")] == [run.id]
        assert await tally.list(status="failed") == []


async def kinds(run) -> list[str]:
    return [event.kind async for event in run.events()]


@pytest.mark.invariant("X2")
async def test_the_same_key_is_the_same_run_and_another_request_is_refused(tmp_path):
    async with opened(tmp_path, engine=True) as tally:
        one = await tally.start(FLOW, input={"n": 1}, key="k")
        two = await tally.start(str(FLOW), input={"n": 1}, key="k")
        assert (one.id, one.created, two.created) == (two.id, True, False)
        with pytest.raises(ts.Conflict) as refused:
            await tally.start(FLOW, input={"n": 1}, key="k", limits=ts.Limits(attempts=3))
        assert refused.value.facts["differs"] == ["limits"]
        await go_on()
        await one.result(timeout=10)


@pytest.mark.parametrize("wrong", [{}, {"n": "one"}, None, {"n": float("nan")}, {"n": {1, 2}}])
async def test_an_input_that_does_not_fit_is_refused_and_nothing_is_written(tmp_path, wrong):
    async with opened(tmp_path, engine=True) as tally:
        with pytest.raises(ts.InvalidRequest):
            await tally.start(FLOW, input=wrong)
        assert await tally.list() == []


async def test_a_definition_with_problems_is_refused_with_all_of_them(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("tally: 1\nworkflow: w\nsteps:\n  - id: a\n    cal: x\n    nope: 1\n")
    found = ts.validate(bad)
    assert len(found.problems) >= 2
    assert found.definition is None
    async with opened(tmp_path, engine=True) as tally:
        with pytest.raises(ts.InvalidRequest) as refused:
            await tally.start(bad)
        assert len(refused.value.facts["problems"]) == len(found.problems)
    assert ts.validate(FLOW).problems == ()
    with pytest.raises(ts.InvalidRequest):
        ts.validate(tmp_path / "nowhere.yaml")


async def test_a_failure_is_raised_with_what_is_recorded(tmp_path):
    work.failures["first"] = [ValueError("no such order")]
    async with opened(tmp_path, engine=True) as tally:
        run = await tally.start(FLOW, input={"n": 1})
        with pytest.raises(ts.RunFailed) as failed:
            await run.result(timeout=10)
        assert "no such order" in failed.value.message
        assert failed.value.facts["failure"]["step"] == "first"
        assert (await run.status()).failure["kind"] == "error"


async def test_a_doubt_is_raised_resolved_and_the_run_goes_on(tmp_path):
    work.failures["second"] = [ts.OutcomeUnknown("the line went dead")]
    async with opened(tmp_path, engine=True) as tally:
        run = await tally.start(FLOW, input={"n": 1})
        with pytest.raises(ts.RunInDoubt) as doubt:
            await run.result(timeout=10)
        assert doubt.value.facts["steps"] == ["second"]
        (told,) = (await run.status()).doubts
        assert told.identity == work.keys[-1][0]
        with pytest.raises(ts.InvalidRequest):
            await tally.resolve(run.id, "second", outcome="failed", output={"done": 1})
        with pytest.raises(ts.NotFound):
            await tally.resolve(run.id, "third", outcome="failed")
        await tally.resolve(
            run.id, "second", outcome="succeeded", output={"done": "by hand"}, reason="I looked"
        )
        assert await run.result(timeout=10) == {"said": "by hand", "n": 1}
        resolved = [e async for e in tally.history(run.id) if e.kind == "DoubtResolved"]
        assert str(os.getuid()) in resolved[0].fields["actor"]
        assert resolved[0].payload == "I looked"


@pytest.mark.invariant("X6", "C11")
async def test_a_client_without_an_engine_reads_starts_and_dispatches_nothing(tmp_path):
    async with opened(tmp_path) as tally:
        with pytest.raises(ts.NotFound):
            await tally.list()
        run = await tally.start(FLOW, input={"n": 1})
        info = await run.status()
        assert (info.status, info.reason, info.engine) == ("waiting", "owner", None)
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.05)
        with pytest.raises(ts.NotReady):
            await tally.run(FLOW, input={"n": 1})
    assert work.calls == {}
    async with opened(tmp_path, engine=True) as tally:
        await go_on()
        assert await (await tally.get(run.id)).result(timeout=10) == {"said": "second", "n": 1}


@pytest.mark.invariant("C11")
async def test_reading_changes_no_byte_of_the_database(tmp_path):
    work.failures["second"] = [ts.OutcomeUnknown("?")]
    async with opened(tmp_path, engine=True) as tally:
        run = await tally.start(FLOW, input={"n": 1})
        await tally.until_idle()
    before = (tmp_path / "t.db").read_bytes()
    async with opened(tmp_path) as tally:
        await tally.list()
        handle = await tally.get(run.id)
        assert (await handle.status()).doubts
        assert [event async for event in tally.history(run.id)]
        with pytest.raises(ts.RunInDoubt):
            await handle.result(timeout=5)
    assert (tmp_path / "t.db").read_bytes() == before


async def test_where_another_process_is_the_engine_it_is_named(tmp_path):
    async with opened(tmp_path, engine=True) as tally:
        run = await tally.start(FLOW, input={"n": 1})
        async with opened(tmp_path) as other:
            assert [info.id for info in await other.list()] == [run.id]
            for asked in (
                other.start(FLOW, input={"n": 1}),
                other.resolve(run.id, "second", outcome="failed"),
            ):
                with pytest.raises(ts.OwnerElsewhere) as refused:
                    await asked
                assert refused.value.facts["pid"] == os.getpid()
        with pytest.raises(ts.OwnerElsewhere):
            async with opened(tmp_path, engine=True):
                pass
        await go_on()
        await run.result(timeout=10)


def test_the_blocking_client_does_the_same(tmp_path):
    work.failures["second"] = [ts.OutcomeUnknown("?")]
    with ts.open_blocking(tmp_path / "t.db", engine=True) as tally:
        run = tally.start(FLOW, input={"n": 1})
        tally.until_idle()
        with pytest.raises(ts.RunInDoubt):
            run.result(timeout=10)
        tally.resolve(run.id, "second", outcome="succeeded", output={"done": "x"})
        assert run.result(timeout=10) == {"said": "x", "n": 1}
        assert [event.kind for event in run.events()][-1] == "RunEnded"
        assert [info.status for info in tally.list()] == ["succeeded"]
        assert tally.get(run.id).status().output == {"said": "x", "n": 1}
        assert len(tally.history(run.id)) > 5


def status_of_a_child_that_uses(tally) -> int:
    child = os.fork()
    if child == 0:
        try:
            tally.next_change("r_1")
        except ts.ForkedClient:
            os._exit(7)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_a_client_in_a_forked_child_says_so(tmp_path):
    async with opened(tmp_path, engine=True) as tally:
        assert status_of_a_child_that_uses(tally) == 7
    with pytest.raises(ts.NotReady):
        await tally.list()


@pytest.mark.parametrize(
    ("named", "environment", "path"),
    [
        (None, {}, ".tally/tally.db"),
        (None, {"TALLY_DATABASE_URL": "sqlite:///a.db"}, "a.db"),
        ("x.db", {"TALLY_DATABASE_URL": "sqlite:///a.db"}, "x.db"),
        ("sqlite:////var/a%20b.db", {}, "/var/a b.db"),
        (Path("y.db"), {}, "y.db"),
    ],
)
def test_the_named_database_wins_then_the_environment_then_the_default(named, environment, path):
    assert database_path(named, environment) == Path(path)


@pytest.mark.parametrize("url", ["postgresql://host/db", "sqlite://host/x.db", "sqlite:///"])
def test_a_database_that_cannot_be_opened_is_refused(url):
    with pytest.raises(ts.InvalidRequest):
        database_path(url, {})


async def test_the_default_database_is_made_for_its_owner_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TALLY_DATABASE_URL", raising=False)
    async with ts.open(engine=True):
        pass
    assert [oct(os.stat(name).st_mode)[-3:] for name in (".tally", ".tally/tally.db")] == [
        "700",
        "600",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("build", "build"),
        ("fix[2].build", "fix[2].build"),
        ("a.b", "a.b"),
        ("each[17].x", "each[17].x"),
    ],
)
def test_a_step_is_read_as_it_is_written(text, shown):
    assert str(parse_step(text)) == shown


@pytest.mark.parametrize("text", ["", ".", "a[", "a[x]", "a[1]b", "a..b", "[1]"])
def test_what_names_no_step_is_refused(text):
    with pytest.raises(ts.InvalidRequest):
        parse_step(text)


def test_importing_the_package_imports_next_to_nothing():
    heavy = "{'asyncio', 'apsw', 'msgspec', 'jsonschema_rs', 'yaml', 'cel_expr_python'}"
    program = f"import sys, tallystick; print(sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_every_public_name_is_there():
    assert all(getattr(ts, name) is not None for name in ts.__all__)
    assert set(ts.__all__) <= set(dir(ts))
    with pytest.raises(AttributeError):
        _ = ts.nothing


async def test_a_refused_decision_leaves_no_trace(tmp_path):
    """The rules are asked before the run is taken: a slip adds nothing to its history."""
    database = tmp_path / "t.db"
    async with ts.open(database) as tally:
        step = Node("a", "call", call="tests.engine.work:do")
        run = await tally.start(Definition("w", Scope((step,))))
        before = [event.kind async for event in tally.history(run.id)]
        with pytest.raises(ts.NotReady):
            await tally.resolve(run.id, "a", outcome="failed")
        assert [event.kind async for event in tally.history(run.id)] == before


async def test_who_waits_for_a_run_that_nobody_moves_is_told(tmp_path, caplog):
    """A client that is no engine would wait for ever without a word."""
    async with ts.open(tmp_path / "t.db") as tally:
        run = await tally.start(
            Definition("w", Scope((Node("a", "call", call="tests.engine.work:do"),)))
        )
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.05)
    assert f"{run.id} waits for an engine" in caplog.text
