"""P3: text with NUL goes through unchanged or is refused at the edge; it never breaks a list."""

from contextlib import suppress

import pytest

import tallystick as ts
from tests.cases.field import World, definition, tally

NUL = "a\0b"
STRANGE = [NUL, "\0", "\0" * 100, "a\0", "\0b", "é\0\U0001f600", "\x7f\x1b[31m\x01", "\\u0000"]

ECHO = definition(
    """
    tally: 1
    workflow: p3
    steps:
      - {id: note, call: "TASKS:note", with: {x: "${{ input }}"}}
    output: {whole: "${{ steps.note.output }}", key: {"a\\0b": "${{ input }}"}}
    """
)
INSIDE = definition(
    """
    tally: 1
    workflow: p3
    steps:
      - {id: stop, fail: "it said <${{ input }}>"}
    """
)
FAIL = definition(
    """
    tally: 1
    workflow: p3
    steps:
      - id: fail
        call: "TASKS:fail"
        with: {message: "${{ input }}"}
        retry: {backoff: 1ms}
    """
)
UNSURE = definition(
    """
    tally: 1
    workflow: p3
    steps:
      - {id: send, call: "TASKS:unsure", with: {message: "${{ input }}"}}
    """
)

pytestmark = [pytest.mark.case("P3")]


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    monkeypatch.setenv("TALLY_EFFECT_LOG", str(world.effect_log))
    return world


async def rest(run: ts.RunHandle) -> ts.RunInfo:
    with suppress(ts.RunFailed, ts.RunInDoubt):
        await run.result()
    return await run.status()


@pytest.mark.slow
@pytest.mark.parametrize("text", STRANGE, ids=lambda text: ascii(text[:4]))
async def test_values_come_back_as_they_were(world, text):
    async with ts.open(world.store, engine=True) as tally:
        run = await tally.start(ECHO, input=text)
        await run.result()
        stopped = await rest(await tally.start(INSIDE, input=text))
        failed = await rest(await tally.start(FAIL, input=text))
        doubtful = await tally.start(UNSURE, input=text)
        await rest(doubtful)
        await tally.resolve(
            doubtful.id, "send", outcome="succeeded", output={text: text}, reason=text, actor=text
        )
    assert (stopped.failure or {})["message"] == f"it said <{text}>"
    assert "\0" not in (failed.failure or {})["message"], "an error's text is made safe to show"
    async with ts.open(world.store) as reader:
        found = await (await reader.get(run.id)).status()
        assert found.output == {"whole": text, "key": {NUL: text}}
        listed = await reader.list()
        assert len(listed) == 4
        for info in listed:
            events = [event async for event in reader.history(info.id)]
            assert events[0].payload == text
            assert (await (await reader.get(info.id)).status()).id == info.id
        decided = [e async for e in reader.history(doubtful.id) if e.kind == "AttemptSettled"]
        assert decided[-1].payload == {text: text}
    assert not world.judged(complete=False)


@pytest.mark.invariant("X2")
@pytest.mark.parametrize("key", [NUL, "\0", "a\nb", "\x1b[31m", "\ud800", "", "x" * 513])
async def test_a_key_that_cannot_be_shown_is_refused(world, key):
    async with ts.open(world.store, engine=True) as tally:
        with pytest.raises(ts.InvalidRequest) as refused:
            await tally.start(ECHO, input="x", key=key)
        assert refused.value.code == "key-invalid"
        assert await tally.list() == []


@pytest.mark.parametrize("text", [NUL, "\udcb2", "x" * 100_000], ids=lambda text: ascii(text[:4]))
async def test_whatever_is_asked_for_no_engine_ends_by_it(world, text):
    """One `resolve` with an id that is not UTF-8 ended the engine for everybody."""
    async with ts.open(world.store, engine=True) as tally:
        run = await tally.start(UNSURE, input="?")
        await rest(run)
        for asked in (
            tally.get(text),
            tally.list(key=text),
            tally.list(workflow=text),
            tally.list(status=text),
            tally.list(status=[text, "failed"]),
            anext(tally.history(text)),
            tally.resolve(text, "send", outcome="failed"),
            tally.resolve(run.id, text, outcome="failed"),
            tally.resolve(run.id, f"{text}[1].{text}", outcome="failed"),
        ):
            with suppress(ts.InvalidRequest, ts.NotFound):
                assert await asked == []
        assert tally.engine.state == "running"
        await tally.resolve(run.id, "send", outcome="failed", reason=text, actor=text)
        assert (await run.status()).status == "failed"
        assert [info.id for info in await tally.list()] == [run.id]


@pytest.mark.parametrize(
    "asked",
    [
        {"limit": 0},
        {"limit": -1},
        {"limit": 2**63},
        {"before": -1},
        {"before": 2**63},
    ],
    ids=repr,
)
async def test_a_number_out_of_range_is_refused_with_a_sentence(world, asked):
    """SQLite reads a negative limit as none, and cannot hold more than 64 bits."""
    async with ts.open(world.store, engine=True) as tally:
        with pytest.raises(ts.InvalidRequest):
            await tally.list(**asked)
        run = await tally.start(ECHO, input="x")
        for after in (-1, 2**63):
            with pytest.raises(ts.InvalidRequest):
                await anext(tally.history(run.id, after=after))
            with pytest.raises(ts.InvalidRequest):
                await anext(run.events(after=after))


@pytest.mark.slow
def test_no_command_breaks_on_a_poisoned_row_or_an_argument_that_is_no_text(world):
    source = """
        tally: 1
        workflow: p3
        steps:
          - {id: stop, fail: "it said <${{ input }}>"}
        """
    (run,) = world.run(source, NUL)["runs"].values()
    folder, db = world.folder, ("--db", str(world.store))
    for words in (("list",), ("show", run["run"]), ("history", run["run"])):
        for form in ((), ("--json",)):
            said = tally(*words, *db, *form, status=0, folder=folder).stdout
            assert run["run"].encode() in said or words[0] == "history"
            assert b"\0" not in said, "a terminal gets no control characters"
    for words in (("show", b"\xb2"), ("history", b"\xb2"), ("resolve", b"\xb2", "a")):
        more = ("--outcome", "failed", "--reason", b"\xb2") if words[0] == "resolve" else ()
        done = tally(*words, *more, *db, status=2, folder=folder)
        assert b"Traceback" not in done.stderr
