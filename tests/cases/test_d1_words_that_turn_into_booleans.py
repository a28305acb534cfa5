"""D1: `on`, `off`, `y`, `n` are words. Only `true` and `false` are booleans, and never keys."""

import json

import pytest

import tallystick as ts
from tallystick.core.compiler import compile_source
from tallystick.core.diagnostics import Problems, SourceRefused
from tallystick.core.source import plain
from tallystick.core.yaml_reader import read_yaml

WORDS = ["on", "off", "On", "ON", "Off", "y", "n", "Y", "N", "yes", "no", "Yes", "NO", "o", "x"]
STEPS = "\n".join(
    f"""  - id: {word}
    call: tests.cases.tasks:give
    with:
      x: {{{", ".join(f"{other}: {other}" for other in WORDS)}}}"""
    for word in WORDS
)
SOURCE = f"""\
tally: 1
workflow: on
labels: {{on: off, y: n}}
input: {{type: object, properties: {{on: {{enum: [on, off]}}, no: {{const: no}}}}}}
defaults: {{effect: read_only, retry: {{max_attempts: 2, on: error}}}}
steps:
{STEPS}
output: {{on: "${{{{ steps.on.output }}}}", off: "${{{{ input.on }}}}", no: no, yes: "yes"}}
"""

pytestmark = [pytest.mark.case("D1")]


@pytest.mark.slow
@pytest.mark.invariant("K4")
async def test_words_stay_words_from_the_file_to_the_output(tmp_path, monkeypatch):
    monkeypatch.setenv("TALLY_EFFECT_LOG", str(tmp_path / "effects"))
    words = {word: word for word in WORDS}
    definition = compile_source(SOURCE.encode(), "on.yaml").definition
    assert [node.id for node in definition.root.nodes] == WORDS
    assert definition.root.nodes[0].retry.on == ("error",)
    async with ts.open(tmp_path / "d1.db", engine=True) as tally:
        output = await tally.run(definition, input={"on": "off", "no": "no"})
        assert output == {"on": words, "off": "off", "no": "no", "yes": "yes"}
        with pytest.raises(ts.InvalidRequest):
            await tally.start(definition, input={"on": True})
        kept = await tally.engine.scene.store.definition(
            bytes.fromhex(compile_source(SOURCE.encode(), "on.yaml").digest)
        )
    assert b"true" not in kept.replace(b'"true"', b""), "no boolean anywhere in what is kept"


def test_the_same_as_json_has_the_same_digest():
    problems = Problems("on.yaml")
    value = plain(read_yaml(SOURCE.encode(), problems))
    assert not problems.diagnostics()
    again = json.dumps(value)
    assert "true" not in again
    exported = compile_source(again.encode(), "on.json")
    assert exported.digest == compile_source(SOURCE.encode(), "on.yaml").digest


@pytest.mark.invariant("K4")
@pytest.mark.parametrize("key", ["true", "false", "True", "FALSE", "null", "~", "1", "1.5", "0x1"])
@pytest.mark.parametrize("flow", [True, False], ids=["flow", "block"])
def test_a_key_that_is_no_string_is_refused_where_it_stands(key, flow):
    inputs = f"{{{key}: 1}}" if flow else f"\n      {key}: 1"
    source = f"tally: 1\nworkflow: d1\nsteps:\n  - id: a\n    call: m:f\n    with: {inputs}\n"
    with pytest.raises(SourceRefused) as refused:
        compile_source(source.encode(), "on.yaml")
    (problem,) = refused.value.diagnostics
    assert (problem.line, problem.column) == ((6, 12) if flow else (7, 7))
    assert problem.code == "yaml-key-not-string"
    assert f'in quotes: "{key}"' in problem.remedy
