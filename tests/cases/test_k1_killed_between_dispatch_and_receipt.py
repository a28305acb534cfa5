"""K1: the engine is killed after the outside did it and before anybody heard of it."""

import pytest

import tallystick as ts
from tests.cases.field import World, tally, tally_process, until
from tests.checker import judge
from tests.effects.client import EffectServer

STEPS = ("keyed", "keyed_thread", "unsafe", "unsafe_thread", "look")
UNSAFE = {"unsafe", "unsafe_thread"}
FLOW = (
    """
    tally: 1
    workflow: k1
    input: {type: integer}
    defaults: {retry: {backoff: 10ms}}
    steps:
    """
    + "".join(
        f"""
      - {{id: {step}, needs: [], call: "TASKS:{step}", with: {{port: "${{{{ input }}}}"}}}}"""
        for step in STEPS
    )
    + """
      - {id: after_keyed, needs: [keyed], call: "TASKS:give"}
      - {id: after_unsafe, needs: [unsafe], call: "TASKS:give"}
    """
)

pytestmark = [pytest.mark.case("K1"), pytest.mark.slow]


def by_step(effects) -> dict:
    found: dict = {}
    for line in (line for line in effects if "step" in line["body"]):
        found.setdefault(line["body"]["step"], []).append((line["identity"], line["dispatch"]))
    return found


def killed(world: World, server: EffectServer) -> dict:
    """Let the receiver do all of it and answer nothing, then kill; what it did."""
    server.behave(*["hang"] * len(STEPS))
    with world.life(FLOW, server.port) as life:
        until("every effect", lambda: len(world.effects()) == len(STEPS))
        life.kill()
    return by_step(world.effects())


@pytest.mark.invariant("P1", "C2", "C8", "C10", "R2", "R10", "I3")
@pytest.mark.parametrize("deduplicate", [True, False], ids=["receiver knows keys", "it does not"])
async def test_what_may_be_repeated_is_and_what_may_not_is_in_doubt(tmp_path, deduplicate):
    world = World(tmp_path)
    with EffectServer(world.effect_log, store=world.store, deduplicate=deduplicate) as server:
        first = killed(world, server)
        assert all(line["on_disk"] for line in world.effects())
        (run,) = world.run(FLOW, server.port)["runs"].values()
        second = by_step(world.effects())
        again = by_step(world.effects())
        assert world.run(FLOW, server.port)["runs"].popitem()[1]["status"] == "in_doubt"
        assert by_step(world.effects()) == again, "a third life repeats nothing"
        assert not world.judged()

        async with ts.open(world.store) as client:
            info = await (await client.get(run["run"])).status()
            for doubt in info.doubts:
                await client.resolve(info.id, doubt.step, outcome="succeeded", output={"done": 1})
        assert world.run(FLOW, server.port)["runs"].popitem()[1]["status"] == "succeeded"
        assert by_step(world.effects()) == again

    assert run["status"] == "in_doubt"
    assert {doubt["step"] for doubt in run["doubts"]} == UNSAFE
    for doubt in run["doubts"]:
        assert (doubt["identity"], 1) == first[doubt["step"]][0], "the doubt shows the very key"
        assert doubt["reason"] == "unknown"
    for step, ((identity, dispatch),) in first.items():
        assert dispatch == 1
        repeated = step not in UNSAFE and not deduplicate
        assert second[step] == [(identity, 1), *([(identity, 2)] if repeated else [])]


@pytest.mark.invariant("P1", "C8", "P14")
@pytest.mark.parametrize("point", ["driver.before-accept", "driver.after-accept", "driver.report"])
@pytest.mark.parametrize("step", ["note", "note_thread"])
def test_an_unsafe_step_of_unknown_fate_is_never_done_blindly_again(tmp_path, point, step):
    flow = f"""
        tally: 1
        workflow: k1
        steps:
          - {{id: send, call: "TASKS:{step}"}}
        """
    world = World(tmp_path)
    fault = {"TALLY_TESTING": "1", "TALLY_FAULT": f"{point}:1:kill"}
    with world.life(flow, 0, environment=fault) as life:
        life.last_words(status=-9)
    before = world.effects()
    assert point != "driver.before-accept" or before == [], "nothing happened, and nobody can know"
    (run,) = world.run(flow, 0)["runs"].values()
    assert run["status"] == "in_doubt"
    assert [doubt["step"] for doubt in run["doubts"]] == ["send"]
    assert world.effects() == before
    assert not world.judged()


def test_the_command_that_was_killed_goes_on_and_asks_a_person(tmp_path):
    world = World(tmp_path)
    world.store = tmp_path / ".tally" / "tally.db"
    (tmp_path / "k1.yaml").write_text(
        "tally: 1\nworkflow: k1\ninput: {type: object}\nsteps:\n"
        '  - {id: send, call: tests.cases.tasks:unsafe, with: {port: "${{ input.port }}"}}\n'
        "  - {id: after, call: tests.cases.tasks:give}\n"
    )
    with EffectServer(world.effect_log) as server:
        words = ("run", "k1.yaml", "--key", "k", "--input", f"port:={server.port}")
        server.behave("hang")
        with tally_process(*words, folder=tmp_path) as process:
            until("the effect", lambda: world.effects())
            process.kill()
        done = tally(*words, status=3, folder=tmp_path)
        assert b"send" in done.stdout + done.stderr
        (doubt,) = judge.doubts(world.store)
        assert doubt["identity"] == world.effects()[0]["identity"]
        said = ("--outcome", "succeeded", "--output", '{"done": 1}', "--reason", "it is in the log")
        tally("resolve", doubt["run"], "send", *said, status=0, folder=tmp_path)
        tally(*words, status=0, folder=tmp_path)
    assert len([line for line in world.effects() if "node" not in line]) == 1
    assert not world.judged()
