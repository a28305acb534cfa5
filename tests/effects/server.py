"""A receiver in a process of its own, which does what it is asked and then answers, or does not.

    python -m tests.effects.server --log FILE [--port N] [--store DB] [--deduplicate]

prints its port and serves until its standard input closes. `POST /effect` with the headers
`Idempotency-Key` and `Dispatch` appends one fsynced line to the log and answers it. How it behaves
is told in advance, one word for each request, by `POST /behave` with a JSON list:

    answer     do it and answer (what it does when nothing was said)
    late:0.2   do it and answer after so many seconds
    hang       do it and never answer
    close      do it and close the connection without an answer
    refuse     do nothing and answer 500
    hang-first do nothing and never answer

With a store, it looks into the database at the moment of the effect: is the dispatch on disk there?
In this process, because two SQLite libraries in one process undo each other's locks.
"""

import argparse
import json
import os
import sqlite3
import sys
import threading
import time
from collections import deque
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.effects.log import append

BODY_MAX = 1024 * 1024


class Receiver(ThreadingHTTPServer):
    """The server with what it knows: its log, its orders, and what it did before."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, log: Path, store: Path | None, *, deduplicate: bool) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.log, self.store, self.deduplicate = log, store, deduplicate
        self.orders: deque[str] = deque()
        self.done: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def order(self) -> str:
        """The next behaviour."""
        with self.lock:
            return self.orders.popleft() if self.orders else "answer"

    def do(self, key: str, dispatch: int | None, body: object) -> bytes:
        """Cause the effect, unless this receiver deduplicates and knows the key; the answer."""
        with self.lock:
            if self.deduplicate and key in self.done:
                return self.done[key]
            line = {"identity": key, "body": body, "at": time.time_ns() // 1_000_000}
            if dispatch is not None:
                line["dispatch"] = dispatch
            if self.store is not None:
                line["on_disk"] = self._on_disk(key, dispatch)
            append(self.log, line)
            self.done[key] = json.dumps({"done": body}).encode()
            return self.done[key]

    def _on_disk(self, key: str, dispatch: int | None) -> bool:
        uri = f"{self.store.resolve().as_uri()}?mode=ro"
        sql = "SELECT dispatch FROM tally_attempt WHERE identity = ?"
        with closing(sqlite3.connect(uri, uri=True, timeout=10)) as db:
            row = db.execute(sql, (bytes.fromhex(key),)).fetchone()
        return row is not None and (dispatch is None or row[0] >= dispatch)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        """Take an order about behaviour, or an effect."""
        raw = self.rfile.read(min(int(self.headers["Content-Length"]), BODY_MAX))
        if self.path == "/behave":
            self.server.orders.extend(json.loads(raw))
            self._answer(200, b"{}")
        else:
            self._effect(json.loads(raw))

    def _effect(self, body: object) -> None:
        order, _, seconds = self.server.order().partition(":")
        if order == "refuse":
            self._answer(500, b'{"error":"refused"}')
            return
        if order == "hang-first":
            threading.Event().wait()
        dispatch = self.headers.get("Dispatch")
        key = self.headers["Idempotency-Key"]
        answer = self.server.do(key, int(dispatch) if dispatch else None, body)
        if order == "close":
            self.close_connection = True
            return
        if order == "hang":
            threading.Event().wait()
        if order == "late":
            threading.Event().wait(float(seconds))
        self._answer(200, answer)

    def _answer(self, status: int, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the parent's name
        """Say nothing: the log is the effect log."""


def _end_with_the_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Serve until standard input closes, so that no server outlives its test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--deduplicate", action="store_true")
    asked = parser.parse_args()
    receiver = Receiver(asked.port, asked.log, asked.store, deduplicate=asked.deduplicate)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    sys.stdout.write(f"{receiver.server_port}\n")
    sys.stdout.flush()
    receiver.serve_forever()


if __name__ == "__main__":
    main()
