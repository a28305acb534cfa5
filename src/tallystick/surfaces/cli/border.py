"""Where errors end: each becomes a refusal on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import typer

from tallystick.errors import TallyError
from tallystick.surfaces.cli.words import app

# Typer carries a click of its own or uses the installed one; this names the parent in either.
_USAGE: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


def carry_out(words: Sequence[str]) -> int:
    """Run a command line. Returns the exit code; prints the refusal, if there is one."""
    json = "--json" in words
    try:
        code = app(list(words), prog_name="tally", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        return _pipe_closed()
    except KeyboardInterrupt:
        return 130
    except TallyError as error:
        from tallystick.surfaces import exits
        from tallystick.surfaces.cli import refusals

        return _refuse(refusals.of_error(error), exits.of_error(error), json=json)
    except OSError as error:
        from tallystick.surfaces import exits
        from tallystick.surfaces.cli import refusals

        return _refuse(refusals.of_system(error), exits.of_error(error), json=json)
    except _USAGE as error:
        return _usage(error, json=json)
    except Exception as error:  # noqa: BLE001  a defect has its own exit code, and is told in full
        return _defect(error, json=json)
    return code if isinstance(code, int) else 0


def _usage(error: Exception, *, json: bool) -> int:
    """What typer refuses. Without any word it has the help to say."""
    from tallystick.surfaces.cli import refusals
    from tallystick.surfaces.render import safe

    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(str(getattr(error, "message", error)) + "\n")
        return 2
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "tally"
    message = error.format_message()  # type: ignore[attr-defined]  # every ClickException has it
    return _refuse(refusals.of_usage(message, f"{safe(path)} --help"), 2, json=json)


def _defect(error: Exception, *, json: bool) -> int:
    """What nobody foresaw. The traceback is for the report; its lines are made safe."""
    import traceback

    from tallystick.surfaces.cli import refusals
    from tallystick.surfaces.exits import ExitCode

    told = "".join(traceback.format_exception(error)).rstrip()
    refusal = refusals.of_error(
        TallyError(
            f"a defect in tally: {type(error).__name__}\n{told}",
            code="defect",
            next_step="report it with the lines above; the store is as the last commit left it",
        )
    )
    return _refuse(refusal, ExitCode.DEFECT, json=json)


def _refuse(document: Mapping[str, object], code: int, *, json: bool) -> int:
    from tallystick.surfaces.cli import refusals
    from tallystick.surfaces.cli.screen import open_screen

    try:
        sys.stdout.flush()
        screen = open_screen(json=json)
        screen.refuse(document, lambda style: refusals.page(document, style))
    except BrokenPipeError:
        return _pipe_closed()
    return int(code)


def _pipe_closed() -> int:
    """The reader of our output went away. Source: the note on SIGPIPE in Python's `signal`."""
    from tallystick.surfaces.exits import ExitCode

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return ExitCode.PIPE_CLOSED
