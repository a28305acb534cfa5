"""Two local HTTP servers whose ledgers say what really happened.

    POST /charges   payment server: one charge per Idempotency-Key, however often it is asked
    POST /invoices  mail server: one message per request, it recognises nothing

Both are one program. What tells them apart is `Service.deduplicates`. A fault plan makes them
behave like servers: answer late, hang, do the work and hang up without a word, fail before it.

Three read-only resources help whoever has to find out what happened:

    GET /effects?reference=R  the ledger's lines about R
    GET /quiet?within_ms=N    answers once every connection accepted before this one is closed: from
                              then on, what the ledger does not have of their requests it never
                              will. 503 after N ms
    GET /counters             requests, effects, deduplicated, and how often each fault was played

Only the standard library is used, and nothing listens anywhere but on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from faults import Fault, Faults, ScriptedFaults, parse_faults
from ledger import SERVICES, KeyReusedError, Ledger, Line, Service

HOST: Final = "127.0.0.1"
BODY_BYTES_MAX: Final = 64 * 1024
KEY_CHARS_MAX: Final = 255
CONNECTIONS_MAX: Final = 256
QUIET_MS_MAX: Final = 30_000
IDLE_SECONDS: Final = 20.0

Request = Any  # a socket; the base class says socket or (bytes, socket)


class EffectServer(ThreadingHTTPServer):
    """One service on 127.0.0.1, a thread for each connection, `CONNECTIONS_MAX` of them at once."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(
        self,
        service: Service,
        ledger: Path,
        *,
        faults: Faults | None = None,
        port: int = 0,
        late_ms: int = 250,
        hang_ms: int = 1_500,
    ) -> None:
        """Open the ledger and bind `port`, 0 meaning any free one; `serve_forever` serves."""
        self.service = service
        self.ledger = Ledger(ledger, service)
        self.faults = faults or ScriptedFaults()
        self.late_seconds = late_ms / 1_000
        self.hang_seconds = hang_ms / 1_000
        self.stopping = threading.Event()
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._changed = threading.Condition()
        self._connections: dict[int, int] = {}  # id of the socket -> its place in line
        self._accepted = 0
        self._arrivals: Counter[str] = Counter()
        self._counters: Counter[str] = Counter()
        super().__init__((HOST, port), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def arrive(self, reference: str) -> Fault:
        """Count one more request about `reference` and say what becomes of it."""
        with self._changed:
            self._arrivals[reference] += 1
            fault = self.faults.choose(reference, self._arrivals[reference])
            self._counters["requests"] += 1
            if fault is not Fault.NONE:
                self._counters[fault.value] += 1
            return fault

    def deduplicated(self) -> None:
        with self._changed:
            self._counters["deduplicated"] += 1

    def counters(self) -> dict[str, int]:
        with self._changed:
            zeros = {"requests": 0, "deduplicated": 0}
            return {**zeros, **self._counters, "effects": self.ledger.count()}

    def pause(self, seconds: float) -> None:
        """Wait, but never longer than the server lives."""
        self.stopping.wait(seconds)

    def quiet(self, own: socket.socket, within_seconds: float) -> bool:
        """Wait until every connection accepted before `own` is closed; False if that is too long.

        The kernel hands out connections in the order they were made. So all that a dead client
        had sent belongs to an earlier connection, and has been worked off once this returns True.
        """
        with self._changed:
            mine = self._connections[id(own)]
            return self._changed.wait_for(
                lambda: all(number >= mine for number in self._connections.values()), within_seconds
            )

    # The three hooks of socketserver that see a connection from its acceptance to its end.

    def process_request(self, request: Request, client_address: object) -> None:
        while not self._slots.acquire(timeout=0.1):
            if self.stopping.is_set():
                raise ConnectionAbortedError("the server is stopping")
        with self._changed:
            self._accepted += 1
            self._connections[id(request)] = self._accepted
        super().process_request(request, client_address)

    def shutdown_request(self, request: Request) -> None:
        super().shutdown_request(request)
        with self._changed:
            if self._connections.pop(id(request), None) is not None:
                self._slots.release()
            self._changed.notify_all()

    def handle_error(self, request: Request, client_address: object) -> None:
        """Let a client that is gone be gone; report everything else as the base class does."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def stop(self) -> None:
        """End `serve_forever`, which must be running, and every pause; close port and ledger."""
        self.stopping.set()
        self.shutdown()
        self.server_close()
        self.ledger.close()


class _Refused(Exception):
    """The request is answered with `status`; nothing was done."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS
    server: EffectServer

    def do_POST(self) -> None:
        try:
            key, body = self._read()
        except _Refused as refused:
            self.close_connection = True  # the rest of the body may still be on its way
            self._answer(refused.status, {"error": refused.reason})
            return
        self._play(self.server.arrive(body["reference"]), key, body)

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        match url.path:
            case "/effects":
                lines = self.server.ledger.about(query.get("reference", ""))
                self._answer(HTTPStatus.OK, {"effects": lines})
            case "/quiet":
                self._answer_quiet(query.get("within_ms", "5000"))
            case "/counters":
                self._answer(HTTPStatus.OK, self.server.counters())
            case _:
                self._answer(HTTPStatus.NOT_FOUND, {"error": "no such resource"})

    def _answer_quiet(self, within_ms: str) -> None:
        if not within_ms.isdecimal():
            self._answer(HTTPStatus.BAD_REQUEST, {"error": "within_ms is a number of milliseconds"})
            return
        quiet = self.server.quiet(self.connection, min(int(within_ms), QUIET_MS_MAX) / 1_000)
        self._answer(HTTPStatus.OK if quiet else HTTPStatus.SERVICE_UNAVAILABLE, {"quiet": quiet})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing: the ledger and the counters say it better."""

    def _read(self) -> tuple[str, Line]:
        if self.path != self.server.service.path:
            raise _Refused(HTTPStatus.NOT_FOUND, f"this server offers {self.server.service.path}")
        key = self.headers.get("Idempotency-Key", "")
        if not 0 < len(key) <= KEY_CHARS_MAX:
            raise _Refused(
                HTTPStatus.BAD_REQUEST, f"Idempotency-Key: 1 to {KEY_CHARS_MAX} characters"
            )
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "Content-Length is needed")
        if int(length) > BODY_BYTES_MAX:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {BODY_BYTES_MAX} bytes")
        data = self.rfile.read(int(length))
        if len(data) != int(length):
            raise _Refused(HTTPStatus.BAD_REQUEST, "the body ended early")
        return key, _parse(data)

    def _play(self, fault: Fault, key: str, body: Line) -> None:
        match fault:
            case Fault.ERROR:
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "something went wrong"})
                return
            case Fault.BUSY:
                self._answer(
                    HTTPStatus.TOO_MANY_REQUESTS, {"error": "not now"}, {"Retry-After": "0"}
                )
                return
            case Fault.HANG:
                self.server.pause(self.server.hang_seconds)
                self.close_connection = True
                return
            case Fault.STALL:
                self.server.pause(self.server.hang_seconds)
            case Fault.NONE | Fault.LATE | Fault.DROP:
                pass
        self._work(fault, key, body)

    def _work(self, fault: Fault, key: str, body: Line) -> None:
        try:
            line, new = self.server.ledger.record(
                key=key, attempt=self.headers.get("X-Attempt", ""), body=body
            )
        except KeyReusedError:
            self._answer(
                HTTPStatus.UNPROCESSABLE_ENTITY, {"error": "this key came with another request"}
            )
            return
        if not new:
            self.server.deduplicated()
        if fault is Fault.DROP:
            self.close_connection = True
            return
        if fault is Fault.LATE:
            self.server.pause(self.server.late_seconds)
        self._answer(HTTPStatus.CREATED if new else HTTPStatus.OK, line)

    def _answer(
        self, status: HTTPStatus, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _parse(data: bytes) -> Line:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the body is not JSON") from error
    reference = body.get("reference") if isinstance(body, dict) else None
    if not isinstance(reference, str) or not reference:
        raise _Refused(HTTPStatus.BAD_REQUEST, 'the body is an object with a text "reference"')
    return dict(body)


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM, or until standard input closes because the parent is gone."""
    parser = argparse.ArgumentParser(prog="servers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("service", choices=sorted(SERVICES))
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--faults", default="", help="for example late=5,drop=3 (percent)")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--late-ms", type=int, default=250)
    parser.add_argument("--hang-ms", type=int, default=1_500)
    options = parser.parse_args(argv)
    service = SERVICES[options.service]
    server = EffectServer(
        service,
        options.ledger,
        faults=parse_faults(options.faults, f"{options.seed}/{service.name}"),
        port=options.port,
        late_ms=options.late_ms,
        hang_ms=options.hang_ms,
    )
    wait = _until_told_to_end()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    told = {"service": service.name, "port": server.port, "pid": os.getpid()}
    print(json.dumps(told), flush=True)
    wait()
    server.stop()
    return 0


def _until_told_to_end() -> Callable[[], None]:
    """Catch the signals from now on; return what waits for one, or for the end of input."""
    told, tell = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(tell, b"."))

    def wait() -> None:
        while True:
            ready, _, _ = select.select([told, sys.stdin], [], [])
            if told in ready or not os.read(sys.stdin.fileno(), 4096):
                return

    return wait


if __name__ == "__main__":
    sys.exit(main())
