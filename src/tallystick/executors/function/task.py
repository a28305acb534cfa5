"""What an author writes: a function, marked with what may be done when nobody knows how it ended.

The mark is an attribute of the function. There is no registry: a task is found by its importable
name, and a module that is imported twice or not at all changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, overload

from tallystick.core.definition import EFFECTS, Effect
from tallystick.errors import InvalidRequest
from tallystick.executors.contract import Statement

MARK: Final = "__tallystick_task__"
STATEMENTS_MAX: Final = 1_000
STATEMENT_BYTES_MAX: Final = 1024 * 1024
"""All texts and parameters of one dispatch together."""

Parameter: TypeAlias = "int | float | str | bytes | None"
Rows: TypeAlias = "Sequence[tuple[object, ...]]"
Reader: TypeAlias = "Callable[[str, tuple[Parameter, ...]], Rows]"
Function = TypeVar("Function", bound=Callable[..., object])


class TaskOptions(NamedTuple):
    """What the decorator said. None: it was silent there, and the file or the default decides."""

    effect: Effect | None = None
    max_attempts: int | None = None


@overload
def task(function: Function, /) -> Function: ...
@overload
def task(
    *, effect: Effect | None = None, max_attempts: int | None = None
) -> Callable[[Function], Function]: ...
def task(
    function: Any = None,
    /,
    *,
    effect: Effect | None = None,
    max_attempts: int | None = None,
) -> Any:
    """Mark a function as a task. It stays the function it was, and can be called as before.

    Args:
        function: given where the decorator is used without parentheses.
        effect: `read_only`, `idempotent`, `transactional` or `mutating`: what may be done when
            nobody knows whether a call happened. None: what the file says, else `mutating`.
        max_attempts: how many calls may fail, the first included; at least 1. None: what the file
            says, else 1.

    A file that says something itself wins over both.

    Raises:
        InvalidRequest: an unknown effect, a number that is none, or something that is no function.
    """
    options = TaskOptions(_checked_effect(effect), _checked_attempts(max_attempts))

    def mark(marked: Function) -> Function:
        if isinstance(marked, type) or not callable(marked):
            raise InvalidRequest(
                f"@task marks a function, and this is {_kind(marked)}",
                code="task-not-a-function",
                next_step="Put @task on a function defined with def or async def, "
                "below @staticmethod if there is one.",
            )
        setattr(marked, MARK, options)
        return marked

    return mark if function is None else mark(function)


def options_of(function: object) -> TaskOptions:
    """What `@task` said about this function; silent in everything where it was not used."""
    found = getattr(function, MARK, None)
    return found if isinstance(found, TaskOptions) else TaskOptions()


class TaskContext:
    """What a function may know about the call it serves. Given to a parameter of this type.

    run_id           the run · workflow: the name of its definition
    step             which step, with the indices of the loops around it: `fix[2].build`
    attempt          1, 2, 3 … · dispatch: which hand-over of that attempt, 1, 2, 3 …
    idempotency_key  64 hex digits, the same for every dispatch of an attempt: send it to whoever
                     can recognise a repeat
    timeout          how long this dispatch may take. None: as long as it likes
    deadline         when that is over, by the wall clock. None: never

    In a test of your own, make one with the fields that the function reads.
    """

    __slots__ = (
        "_bytes",
        "_reader",
        "_statements",
        "_stop",
        "_writable",
        "attempt",
        "dispatch",
        "idempotency_key",
        "run_id",
        "started_at_ms",
        "step",
        "timeout_ms",
        "workflow",
    )

    def __init__(
        self,
        *,
        run_id: str = "",
        workflow: str = "",
        step: str = "",
        attempt: int = 1,
        dispatch: int = 1,
        idempotency_key: str = "",
        timeout_ms: int | None = None,
        started_at_ms: int = 0,
        writable: bool = True,
        reader: Reader | None = None,
    ) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.step = step
        self.attempt = attempt
        self.dispatch = dispatch
        self.idempotency_key = idempotency_key
        self.timeout_ms = timeout_ms
        self.started_at_ms = started_at_ms
        self._stop = False
        self._writable = writable
        self._reader = reader
        self._bytes = 0
        self._statements: list[Statement] = []

    @property
    def timeout(self) -> timedelta | None:
        """How long this dispatch may take. None: as long as it likes."""
        return None if self.timeout_ms is None else timedelta(milliseconds=self.timeout_ms)

    @property
    def deadline(self) -> datetime | None:
        """When the timeout is over, by the wall clock. None: never."""
        if (timeout := self.timeout) is None:
            return None
        return datetime.fromtimestamp(self.started_at_ms / 1000, UTC) + timeout

    @property
    def stop_requested(self) -> bool:
        """True once a timeout, a cancel request or the end of the engine asks this call to stop.

        A thread cannot be stopped from outside: a long function in a thread looks here from time to
        time, and raises `asyncio.CancelledError` if it can stop where it is.
        """
        return self._stop

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What was handed to `write` so far, in order."""
        return tuple(self._statements)

    def write(
        self, sql: str, params: Sequence[Parameter] = (), expect_rows: int | None = 1
    ) -> None:
        """Hand back a statement, to be committed together with the success of this call.

        Nothing is executed now. If the function fails, no statement is; if a statement fails or
        touches another number of rows, nothing of the call is committed and it failed (`conflict`).

        Args:
            sql: one statement on tables of your own.
            params: values for its placeholders, by position.
            expect_rows: number of rows that it must change. None: any number.

        Raises:
            InvalidRequest: the step is not `transactional`, a value cannot be stored, or this is
                more than 1,000 statements or 1 MiB. Nothing was written.
        """
        if not self._writable:
            raise InvalidRequest(
                f"ctx.write in step {self.step}, whose effect is not transactional",
                code="write-not-transactional",
                next_step='Declare the task with effect="transactional", and do nothing outside '
                "the database in it.",
            )
        values = tuple(params)
        self._count(sql, values)
        if expect_rows is not None and (type(expect_rows) is not int or expect_rows < 0):
            raise InvalidRequest("expect_rows is a number of rows, or None", code="write-refused")
        self._statements.append(Statement(sql, values, expect_rows))

    def read(self, sql: str, params: Sequence[Parameter] = ()) -> Rows:
        """Read rows from the snapshot of the database that this call sees.

        Raises:
            InvalidRequest: this engine gives functions nothing to read from.
        """
        if self._reader is None:
            raise InvalidRequest(
                f"ctx.read in step {self.step}, and there is no database to read from here",
                code="read-unavailable",
                next_step='Declare the task with effect="transactional" and run it in an engine.',
            )
        return self._reader(sql, tuple(params))

    def request_stop(self) -> None:
        """Set `stop_requested`. For the executor, and for a test of a function that looks at it."""
        self._stop = True

    def _count(self, sql: str, values: tuple[Parameter, ...]) -> None:
        for number, value in enumerate(values, 1):
            if value is not None and not isinstance(value, int | float | str | bytes):
                raise InvalidRequest(
                    f"parameter {number} of ctx.write is a {type(value).__name__}",
                    code="write-refused",
                    next_step="Pass None, int, float, str or bytes.",
                )
        self._bytes += len(sql) + sum(len(v) if isinstance(v, str | bytes) else 8 for v in values)
        if len(self._statements) >= STATEMENTS_MAX or self._bytes > STATEMENT_BYTES_MAX:
            raise InvalidRequest(
                f"more than {STATEMENTS_MAX} statements or {STATEMENT_BYTES_MAX} bytes in one call",
                code="write-refused",
                facts={"statements": len(self._statements) + 1, "bytes": self._bytes},
                next_step="Split the step, for example with map.",
            )


def _checked_effect(effect: object) -> Effect | None:
    if effect is None:
        return None
    for known in EFFECTS:
        if effect == known:
            return known
    raise InvalidRequest(
        f"unknown effect {effect!r}",
        code="task-effect",
        facts={"allowed": list(EFFECTS)},
        next_step=f"Use one of {', '.join(EFFECTS)}.",
    )


def _checked_attempts(number: object) -> int | None:
    if number is None:
        return None
    if type(number) is int and number >= 1:  # bool is an int, and no number of attempts
        return number
    raise InvalidRequest(
        f"max_attempts is {number!r}, and not a whole number of at least 1",
        code="task-max-attempts",
        next_step="Say how many calls may fail in all: 1 means that nothing is tried again.",
    )


def _kind(thing: object) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"
