"""Which database is meant: the one that is named, the environment's, or the default."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tallystick.errors import InvalidRequest

VARIABLE: Final = "TALLY_DATABASE_URL"
DEFAULT: Final = Path(".tally") / "tally.db"

_log: Final = logging.getLogger("tallystick.client")


def database_path(
    named: str | os.PathLike[str] | None = None, environment: Mapping[str, str] = os.environ
) -> Path:
    """The file of the database: `named`, else `$TALLY_DATABASE_URL`, else `.tally/tally.db` here.

    A path, or a URL `sqlite:///relative.db` or `sqlite:////absolute.db`. Nothing is created.
    Raises `InvalidRequest` for a URL of another kind.
    """
    text = os.fspath(named) if named is not None else environment.get(VARIABLE) or str(DEFAULT)
    if "://" not in text:
        return Path(text)
    url = urlsplit(text)
    if url.scheme == "sqlite" and not url.netloc and len(url.path) > 1:
        return Path(unquote(url.path[1:]))
    kind = url.scheme if url.scheme != "sqlite" else "sqlite URL of this form"
    raise InvalidRequest(
        f"a {kind} is no database that this version can open",
        code="database-unknown",
        check="database",
        facts={"scheme": url.scheme},
        next_step="name a file, or sqlite:///relative.db, or sqlite:////absolute.db",
    )


def make_default_folder(path: Path) -> None:
    """Make the folder of the default database, for its owner only. Any other must be there."""
    if path.parent == DEFAULT.parent and not path.parent.exists():
        path.parent.mkdir(mode=0o700)
        _log.warning("made %s for a new database, %s", path.parent, path.absolute())
