"""The words of `tally`: commands, arguments and options, and their help.

Help has to be quick, so this module imports typer and nothing of ours; each command imports what it
does when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from tallystick.surfaces.cli.verbs import Asked

OUTCOMES: Final = ("succeeded", "failed", "cancelled", "never_happened")
LIMIT_DEFAULT: Final = 50

app = typer.Typer(
    name="tally",
    help="Run workflows that never repeat what they cannot account for.",
    epilog="Exit codes: 0 succeeded, 1 failed, 2 invalid request, 3 in doubt or waiting for a "
    "person, 4 owner elsewhere, 5 storage, 130/143 stopped.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON: results on stdout, the rest on stderr.")
]
Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH",
        help="The database; else TALLY_DATABASE_URL, else .tally/tally.db.",
    ),
]
Root = Annotated[
    str | None,
    typer.Option(
        "--root", metavar="DIR", help="Where task modules are imported from; else FILE's folder."
    ),
]
Source = Annotated[str, typer.Argument(metavar="FILE", help="The definition, YAML.")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's id, or a beginning that only it has.")
]


@app.command()
def run(
    file: Source,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE|-|K=V",
            help="The input: a JSON file, - for standard input, or fields: k=text k:=JSON k=@FILE.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Idempotency key: the same request again finds the same run."),
    ] = None,
    database: Database = None,
    root: Root = None,
    json: Json = False,
) -> int:
    """Start a run and watch it to its end."""
    from tallystick.surfaces.cli import arguments, verbs

    value = arguments.input_value(inputs or [])
    asked = _asked(database, json=json)
    return verbs.stoppable(
        asked, lambda stopping: verbs.run(asked, file, value, key, root, stopping)
    )


@app.command()
def engine(
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle",
            help="End when every run is terminal, in doubt or waiting for a person.",
        ),
    ] = False,
    database: Database = None,
    json: Json = False,
) -> int:
    """Carry on every run of the database."""
    from tallystick.surfaces.cli import verbs

    asked = _asked(database, json=json)
    return verbs.stoppable(asked, lambda stopping: verbs.engine(asked, until_idle, stopping))


@app.command()
def validate(
    file: Source,
    import_code: Annotated[
        bool, typer.Option("--import", help="Import the task functions and check against them.")
    ] = False,
    root: Root = None,
    json: Json = False,
) -> int:
    """Check a definition and print everything that is wrong with it."""
    from tallystick.surfaces.cli import verbs

    return verbs.validate(_asked(None, json=json), file, import_code, root)


@app.command("list")
def list_runs(
    status: Annotated[
        list[str] | None,
        typer.Option("--status", help="Only runs of this status; may be repeated."),
    ] = None,
    workflow: Annotated[
        str | None, typer.Option("--workflow", help="Only runs of this workflow.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only the run with this key.")] = None,
    before: Annotated[
        int | None,
        typer.Option("--before", metavar="N", help="Only runs before this number: the next page."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000)] = LIMIT_DEFAULT,
    database: Database = None,
    json: Json = False,
) -> int:
    """List runs, newest first."""
    from tallystick.surfaces.cli import verbs

    asked = _asked(database, json=json)
    return verbs.wait(
        asked, lambda: verbs.list_runs(asked, tuple(status or ()), workflow, key, before, limit)
    )


@app.command()
def show(name: RunName, database: Database = None, json: Json = False) -> int:
    """Show a run: its status, its steps, and what waits for a person."""
    from tallystick.surfaces.cli import verbs

    asked = _asked(database, json=json)
    return verbs.wait(asked, lambda: verbs.show(asked, name))


@app.command()
def history(
    name: RunName,
    after: Annotated[
        int, typer.Option("--after", metavar="N", min=0, help="Only events above this number.")
    ] = 0,
    database: Database = None,
    json: Json = False,
) -> int:
    """Print a run's events, one a line."""
    from tallystick.surfaces.cli import verbs

    asked = _asked(database, json=json)
    return verbs.wait(asked, lambda: verbs.history(asked, name, after))


@app.command()
def resolve(
    name: RunName,
    step: Annotated[
        str, typer.Argument(metavar="STEP", help="The step in doubt, as `tally show` writes it.")
    ],
    outcome: Annotated[
        str,
        typer.Option("--outcome", metavar="|".join(OUTCOMES), help="What became of it."),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="JSON|@FILE|-", help="Its output; with succeeded, and only with it."
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the history.")
    ] = "",
    database: Database = None,
    json: Json = False,
) -> int:
    """Decide about a step that may or may not have happened."""
    from tallystick.surfaces.cli import arguments, verbs

    decided = arguments.outcome_of(outcome, output)
    body = None if output is None else arguments.output_bytes(output)
    asked = _asked(database, json=json)
    return verbs.wait(asked, lambda: verbs.resolve(asked, name, step, decided, body, reason))


@app.command()
def version(json: Json = False) -> int:
    """Print the version."""
    from tallystick.surfaces.cli.about import print_version

    return print_version(json=json)


def _asked(database: str | None, *, json: bool) -> Asked:
    import os

    from tallystick.surfaces.cli.connect import opener
    from tallystick.surfaces.cli.screen import open_screen
    from tallystick.surfaces.cli.verbs import Asked

    typed = () if database is None else ("--db", database)
    chosen = database or os.environ.get("TALLY_DATABASE_URL") or None
    return Asked(opener(), open_screen(json=json), chosen, typed)
