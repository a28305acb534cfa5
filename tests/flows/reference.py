"""The reference flows: small definitions that together visit every kind, class and way to end.

    start ─┬─▶ double ─▶ charge ─▶ charge_flaky ─▶ charge_unsure ──┐
           ├─▶ letter ─▶ letter_sync ─▶ refused ─▶ undeclared ─────┤
           ├─▶ book ─▶ book_async ──────────────────────────────────┼─▶ join ─▶ done (succeed)
           ├─▶ flaky ─▶ slow ─▶ charge_sync ────────────────────────┤
           ├─▶ never (skipped) ─▶ after_never (skipped)             │
           │       └────────────▶ despite (if_skipped: run) ────────┤
           └─▶ broken (on_failure: continue) ─▶ after_broken ───────┘

Built through the core model: what is tested here needs no compiler.
"""

from typing import Any

from tallystick.core.definition import Definition, Limits, Node, Retry, Scope

MODULE = "tests.flows.tasks"
APPLIED = ("applied",)
"""User tables with an `identity` column that the flow's transactional tasks write."""

SOON = Retry(max_attempts=3, backoff_ms=1, backoff_max_ms=5)
INPUT: dict[str, Any] = {
    "type": "object",
    "required": ["x"],
    "properties": {"x": {"type": "integer"}},
    "additionalProperties": False,
}


def call(name: str, task: str, *needs: str, x: str = "${{ input.x }}", **more: Any) -> Node:
    """A step that calls one of the tasks with `x`."""
    inputs = {"x": x}
    return Node(id=name, kind="call", call=f"{MODULE}:{task}", needs=needs, inputs=inputs, **more)


def output(step: str, name: str) -> str:
    """The template that reads one field of a step's output."""
    return f"${{{{ steps.{step}.output.{name} }}}}"


def definition(workflow: str, *nodes: Node, **more: Any) -> Definition:
    """A definition whose input is {"x": integer}."""
    return Definition(workflow=workflow, root=Scope(nodes), input=INPUT, **more)


def reference() -> Definition:
    """Everything that ends well, joined. Input {"x": n}; its output is {"total": …, "x": n}."""
    x = output("start", "x")
    charged, sent = output("charge", "charged"), output("letter", "sent")
    numbers = [
        output(step, field)
        for step, field in {
            "charge_unsure": "charged",
            "undeclared": "sent",
            "book_async": "booked",
            "charge_sync": "charged",
            "despite": "x",
            "after_broken": "x",
        }.items()
    ]
    joined = ("charge_unsure", "undeclared", "book_async", "charge_sync", "despite")
    return definition(
        "reference",
        call("start", "look"),
        call("double", "look_sync", "start", x=x),
        call("charge", "charge", "double", x=output("double", "x")),
        call("charge_flaky", "charge_flaky", "charge", x=charged, retry=SOON),
        call("charge_unsure", "charge_unsure", "charge_flaky", x=charged),
        call("letter", "send", "start", x=x),
        call("letter_sync", "send_sync", "letter", x=sent, effect="mutating"),
        call("refused", "send_refused", "letter_sync", x=sent, retry=SOON),
        call("undeclared", "send_undeclared", "refused", x=output("refused", "sent")),
        call("book", "book", "start", x=x),
        call("book_async", "book_async", "book", x=output("book", "booked")),
        call("flaky", "look_flaky", "start", x=x, retry=SOON),
        call("slow", "look_slow", "flaky", x=output("flaky", "x"), timeout_ms=100, retry=SOON),
        call("charge_sync", "charge_sync", "slow", x=output("slow", "x")),
        call("never", "send", "start", when="${{ input.x > 1000000 }}"),
        call("after_never", "send", "never"),
        call("despite", "look", "never", if_skipped="run"),
        call("broken", "look_broken", "start", on_failure="continue"),
        call("after_broken", "look", "broken"),
        Node(
            id="join",
            kind="call",
            call=f"{MODULE}:add",
            needs=(*joined, "after_broken"),
            inputs={"numbers": numbers},
        ),
        Node(
            id="not_now",
            kind="fail",
            needs=("join",),
            when="${{ steps.join.output.total == 0 }}",
            message="nothing came of it",
        ),
        Node(
            id="done",
            kind="succeed",
            needs=("not_now",),
            if_skipped="run",
            value={"total": output("join", "total"), "x": "${{ input.x }}"},
        ),
        limits=Limits(duration_ms=3_600_000, attempts=100, concurrency=8),
    )


def result(x: int) -> dict[str, int]:
    """The output of `reference` for an input, computed by hand."""
    start = x + 1
    charged, sent, booked = start * 2, start, -start
    charge_sync = -(start + 3 + 5)
    return {"total": charged + sent + booked + charge_sync + (x + 1) + (x + 1), "x": x}


def failing() -> Definition:
    """One branch fails while another works: what runs finishes, what waits is given up."""
    return definition(
        "failing",
        call("start", "charge"),
        call("broken", "look_broken", "start"),
        call("beside", "send_sync", "start"),
        call("after", "send", "broken", "beside"),
    )


def stopping() -> Definition:
    """A `fail` step ends the run on purpose."""
    return definition(
        "stopping",
        call("start", "charge"),
        Node(id="stop", kind="fail", needs=("start",), message="${{ input.x }} is enough"),
        call("after", "send", "stop"),
    )


def lingering() -> Definition:
    """A step outlives its engine's grace, so this ends only in a second life."""
    return definition(
        "lingering",
        call("linger", "look_lingering"),
        call("beside", "charge"),
        call("after", "send", "linger", "beside", x=output("linger", "x")),
    )


def large() -> Definition:
    """An output that is too large to lie inline travels through a file."""
    return definition(
        "large",
        call("start", "look_large"),
        call("after", "send", "start"),
        output=output("start", "text"),
    )


def sequential(steps: int) -> Definition:
    """A chain of `steps` steps, each with the one before as its need. Input {"x": integer}."""
    inputs = {"n": "${{ input.x }}"}
    nodes = tuple(
        Node(
            id=f"s{number}",
            kind="call",
            call=f"{MODULE}:echo",
            needs=(f"s{number - 1}",) if number else (),
            inputs=inputs,
        )
        for number in range(steps)
    )
    return definition(f"sequential-{steps}", *nodes)


FLOWS = {flow.__name__: flow for flow in (reference, failing, stopping, lingering, large)}
ENDS = {name: "failed" if name in {"failing", "stopping"} else "succeeded" for name in FLOWS}
