"""A function executor with everything around it that the engine would be, for the tests here."""

import asyncio
import inspect
import itertools
import json
from collections.abc import Callable
from pathlib import Path

from tallystick.core.commands import DispatchEnd
from tallystick.core.identity import ActivationKey, dispatch_identity
from tallystick.core.messages import Terms
from tallystick.executors.contract import Call, Statement
from tallystick.executors.function.arguments import Signature
from tallystick.executors.function.executor import FunctionExecutor
from tallystick.executors.function.resolve import ResolvedTask

NOW = 1_700_000_000_000


class Bench:
    """Calls functions by themselves, also local ones, and keeps what is reported."""

    def __init__(self, **settings) -> None:
        self.reports: list[tuple[Call, DispatchEnd, tuple[Statement, ...]]] = []
        self.functions: dict[str, Callable] = {}
        self.numbers = itertools.count(1)
        self.arrived = asyncio.Event()
        settings.setdefault("find", self.find)
        settings.setdefault("linger_s", 0.0)
        self.executor = FunctionExecutor(self.report, now=lambda: NOW, **settings)

    def find(self, name: str, root: Path | None) -> ResolvedTask:
        function = self.functions[name]
        is_async = inspect.iscoroutinefunction(function)
        return ResolvedTask(name, function, is_async, None, None, Signature(function, name))

    def report(self, call: Call, end: DispatchEnd, statements: tuple[Statement, ...]) -> None:
        self.reports.append((call, end, statements))
        self.arrived.set()

    def call(
        self, function: Callable | str, *, effect="mutating", timeout_ms=None, **given
    ) -> Call:
        number = next(self.numbers)
        name = function if isinstance(function, str) else f"bench:{function.__name__}_{number}"
        if not isinstance(function, str):
            self.functions[name] = function
        threaded = not isinstance(function, str) and not inspect.iscoroutinefunction(function)
        mode = "thread" if threaded else "async"
        return make_call(
            number,
            task=name,
            effect=effect,
            mode="transactional" if effect == "transactional" else mode,
            timeout_ms=timeout_ms,
            given=given,
        )

    def start(self, function: Callable | str, **options) -> Call:
        call = self.call(function, **options)
        self.executor.accept(call)
        return call

    async def end_of(self, call: Call) -> DispatchEnd:
        while True:
            for told, end, _ in self.reports:
                if told is call:
                    return end
            self.arrived.clear()
            await self.arrived.wait()

    async def run(self, function: Callable | str, **options) -> DispatchEnd:
        return await self.end_of(self.start(function, **options))


def make_call(
    number: int,
    *,
    task="bench:task",
    effect="mutating",
    mode="async",
    timeout_ms=None,
    given=None,
    attempt=1,
    dispatch=1,
    root=None,
) -> Call:
    key = ActivationKey(f"step{number}")
    terms = Terms(
        definition="d" * 64,
        executor="function",
        contract="function/1",
        effect=effect,
        kind="call",
        max_attempts=1,
        on=(),
        backoff_ms=1000,
        factor=2.0,
        backoff_max_ms=60_000,
        interruptions_max=5,
        task=task,
        mode=mode,
        timeout_ms=timeout_ms,
        root=root,
    )
    return Call(
        run="run-1",
        key=key,
        attempt=attempt,
        dispatch=dispatch,
        identity=dispatch_identity("run-1", key, attempt).hex(),
        terms=terms,
        input=json.dumps(given or {}).encode(),
        workflow="orders",
    )
