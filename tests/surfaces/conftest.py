"""What the tests of the command line share."""

import json
import signal

import pytest

from tallystick.surfaces import cli
from tallystick.surfaces.cli import connect
from tests.surfaces.fake_client import FakeOpener, FakeTally


class Answer:
    """What a command did: exit code, both streams, and what it asked the client."""

    def __init__(self, code, out, err, opener):
        self.code, self.out, self.err = code, out, err
        self.opener = opener
        self.calls = opener.tally.calls

    @property
    def document(self):
        """Standard output as JSON."""
        return json.loads(self.out)

    @property
    def said(self):
        """Standard error as JSON, one value a line."""
        return [json.loads(line) for line in self.err.splitlines()]

    def asked(self, verb):
        """The arguments of the only call of this verb."""
        (found,) = [arguments for name, arguments in self.calls if name == verb]
        return found


@pytest.fixture
def tally(monkeypatch, capsys):
    """Run a command line against a fake client, in this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for name in ("NO_COLOR", "COLUMNS", "TALLY_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*words, opener=None, **told):
        opener = opener or FakeOpener(FakeTally(**told))
        monkeypatch.setattr(connect, "opener", lambda: opener)
        code = cli.main(list(words))
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err, opener)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)
