"""Bugs for the real engine, each a few changed lines: what the checker has to see through.

A plant changes the package in the process that calls it, and nothing else. The rest of the engine
is as it is, so that the bug is met by every guard, and what still gets through is what a checker is
for.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module

import msgspec

PLANTS: dict[str, Callable[[], None]] = {}


def plant(change: Callable[[], None]) -> Callable[[], None]:
    """Register a bug under the name of its function."""
    PLANTS[change.__name__] = change
    return change


def everywhere(original: object, changed: object) -> None:
    """Put `changed` in the place of `original` in every module of the package that names it."""
    import_module("tallystick.engine.opening")  # brings in all that an engine is made of
    for module in [m for name, m in sys.modules.items() if name.startswith("tallystick")]:
        for name in [name for name, value in vars(module).items() if value is original]:
            setattr(module, name, changed)


@plant
def hands_over_twice() -> None:
    """Every dispatch is handed to its executor a second time, as if it were the next."""
    from tallystick.engine.driver import Driver

    accept = Driver._accept

    def twice(self, call, executor):
        executor.accept(msgspec.structs.replace(call, dispatch=call.dispatch + 1))
        accept(self, call, executor)

    Driver._accept = twice


@plant
def acts_before_the_commit() -> None:
    """What a batch is about to prepare is handed over before the batch is on disk."""
    from tallystick.engine.outcomes import Outcomes

    write = Outcomes.write

    async def early(self, batch):
        for flight in batch:
            for start in flight.decision.starts:
                self._acting._driver.start(flight.held.id, "", start)
        await write(self, batch)

    Outcomes.write = early


@plant
def takes_mutating_for_harmless() -> None:
    """Mutating work of unknown fate is dispatched again, and the ledger's own check is gone."""
    from tallystick.core.ledger import may_redispatch as refusal
    from tallystick.core.recovery import judge

    def unchecked(run, activation, now):
        found = refusal(run, activation, now)
        return None if found is not None and found.check == "effect" else found

    everywhere(refusal, unchecked)

    def bold(case):
        if case.effect == "mutating" and case.end == "unknown":
            case = case._replace(effect="idempotent")
        return judge(case)

    everywhere(judge, bold)


@plant
def retries_under_a_new_key() -> None:
    """A failed dispatch of idempotent work is followed by a new attempt, with another key."""
    from tallystick.core.recovery import Verdict, judge

    def forgetful(case):
        verdict = judge(case)
        again = case.effect == "idempotent" and case.end == "failed"
        return Verdict.RETRY if again and verdict is Verdict.AGAIN else verdict

    everywhere(judge, forgetful)


@plant
def believes_without_calling() -> None:
    """An idempotent operation is reported as a success and never called."""
    from tallystick.core.commands import Succeeded
    from tallystick.engine.driver import Driver

    accept = Driver._accept

    def lazy(self, call, executor):
        if call.key.node == "charge":
            self.report(call, Succeeded(b'{"charged":4}'))
        else:
            accept(self, call, executor)

    Driver._accept = lazy


@plant
def lets_the_key_depend_on_the_process() -> None:
    """The dispatch identity changes with the process."""
    from tallystick.core.identity import dispatch_identity as identity

    def volatile(name, key, attempt):
        return identity(f"{name}@{os.getpid()}", key, attempt)

    everywhere(identity, volatile)


@plant
def miscounts() -> None:
    """The run's row counts one attempt too many."""
    from tallystick.core.draft import Draft

    header = Draft.header

    def generous(self, head=b""):
        found = header(self, head)
        return msgspec.structs.replace(found, consumed=found.consumed + 1)

    Draft.header = generous


@plant
def chains_nothing() -> None:
    """The hash of an event does not cover the one before; the engine verifies as it seals."""
    from tallystick.core.history import link

    def loose(_previous, sequence, transition, envelope):
        return link(bytes(32), sequence, transition, envelope)

    everywhere(link, loose)


@plant
def forgets_the_salt() -> None:
    """Payloads are cited by the digest of their bytes alone."""
    from tallystick.core.history import payload_digest as digest

    def plain(_salt, body):
        return digest(b"", body)

    everywhere(digest, plain)


@plant
def writes_a_statement_twice() -> None:
    """The statements of a transactional function are committed twice."""
    from tallystick.executors.function.task import TaskContext

    write = TaskContext.write

    def twice(self, sql, params=(), expect_rows=1):
        write(self, sql, params, expect_rows)
        write(self, sql, params, expect_rows)

    TaskContext.write = twice


@plant
def drops_the_barrier_and_the_doubt() -> None:
    """After a takeover, what was in flight is recorded as never begun."""
    from tallystick.core.recovery import judge

    def careless(case):
        if case.end == "unknown" and case.effect == "mutating":
            case = case._replace(end="given_up")
        return judge(case)

    everywhere(judge, careless)
