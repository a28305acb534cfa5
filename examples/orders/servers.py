"""Two local HTTP servers whose ledgers say what really happened.

    POST /charges   payment server: one charge per Idempotency-Key, however often it is asked
    POST /invoices  mail server: one message per request, it recognises nothing

Both are one program. What tells them apart is `Service.deduplicates`. Every effect is one line of an
append-only JSONL file, fsynced before anybody is told of it, so the file is the truth that a client's
own beliefs can be judged by. A restart reads it again; a line torn by a crash was never answered for
and is cut off.

A fault plan makes the servers behave like servers: answer late, hang, do the work and hang up without a
word, fail before the work. What happens to a request depends only on the seed, the reference and how
often that reference has come (its *arrival*, 1, 2, 3 ...), never on timing.

Three read-only resources help whoever has to find out what happened:

    GET /effects?reference=R   the ledger's lines about R
    GET /quiet?within_ms=N     answers once every connection accepted before this one is closed: from then
                               on, what is not in the ledger for their requests never will be. 503 after N ms
    GET /counters              requests, effects, deduplicated, and how often each fault was played

Only the standard library is used, and nothing listens anywhere but on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

HOST: Final = "127.0.0.1"
BODY_BYTES_MAX: Final = 64 * 1024
KEY_CHARS_MAX: Final = 255
CONNECTIONS_MAX: Final = 256
QUIET_MS_MAX: Final = 30_000
IDLE_SECONDS: Final = 20.0

Line = dict[str, Any]  # one line of a ledger: JSON, so its values are only known to be JSON


class Fault(StrEnum):
    """What a server does with one request."""

    NONE = "none"  # works, answers
    LATE = "late"  # works, pauses for `late_ms`, answers
    STALL = "stall"  # pauses for `hang_ms`, then works after all, and answers whoever is still there
    HANG = "hang"  # pauses for `hang_ms`, then hangs up; nothing was done
    DROP = "drop"  # works, then hangs up without an answer
    ERROR = "error"  # 500, nothing was done, though a 500 does not say so
    BUSY = "busy"  # 429 with Retry-After, nothing was done


class Faults(Protocol):
    """Chooses the fault of one request; asked once for each, so it must be cheap and thread-safe."""

    def choose(self, reference: str, arrival: int) -> Fault: ...


@dataclass(frozen=True, slots=True)
class SeededFaults:
    """Faults by lot, the same for the same seed.

    `percent` holds the chance of each fault in whole percent, together at most 100. From arrival
    `arrivals_max` + 1 on a reference is always served, so that every retry ends some day.
    """

    seed: str
    percent: dict[Fault, int]
    arrivals_max: int = 2

    def choose(self, reference: str, arrival: int) -> Fault:
        if arrival > self.arrivals_max:
            return Fault.NONE
        lot = random.Random(f"{self.seed}/{reference}/{arrival}").random() * 100
        for fault, percent in sorted(self.percent.items()):
            if lot < percent:
                return fault
            lot -= percent
        return Fault.NONE


@dataclass(frozen=True, slots=True)
class ScriptedFaults:
    """Exactly these faults, by (reference, arrival); everything else is served."""

    script: dict[tuple[str, int], Fault] = field(default_factory=dict)

    def choose(self, reference: str, arrival: int) -> Fault:
        return self.script.get((reference, arrival), Fault.NONE)


@dataclass(frozen=True, slots=True)
class Service:
    """What one server offers.

    `keeps` names the fields of a request's body that the ledger repeats (the digest covers all of it).
    """

    name: str
    path: str
    prefix: str
    deduplicates: bool
    keeps: tuple[str, ...]


PAYMENT: Final = Service("payment", "/charges", "ch", deduplicates=True, keeps=("amount", "currency"))
MAIL: Final = Service("mail", "/invoices", "ml", deduplicates=False, keeps=("to", "digest"))
SERVICES: Final = {service.name: service for service in (PAYMENT, MAIL)}


class KeyReusedError(Exception):
    """A known key came with another body. Nothing was written."""


class Ledger:
    """Append-only JSONL file of effects. A line that `record` returned is on disk."""

    def __init__(self, path: Path, service: Service) -> None:
        """Open or create `path` and read what it holds; a torn last line is cut off."""
        self._service = service
        self._lock = threading.Lock()
        self._lines: list[Line] = []
        self._by_key: dict[str, Line] = {}
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _sync_directory(path.parent)
        self._load(path.read_bytes())

    def record(self, *, key: str, attempt: str, body: Line) -> tuple[Line, bool]:
        """Perform the effect: return its line, and whether it is new.

        Only a service that deduplicates ever returns an old line. Raises `KeyReusedError` when it knows the
        key with another body, and OSError when the disk refused; then the effect did not happen.
        """
        digest = _digest(body)
        with self._lock:
            known = self._by_key.get(key) if self._service.deduplicates else None
            if known is not None:
                if known["body"] != digest:
                    raise KeyReusedError(key)
                return known, False
            line = self._next_line(key, attempt, digest, body)
            self._append(line)
            self._remember(line)
            return line, True

    def about(self, reference: str) -> list[Line]:
        """Return the lines of one reference, oldest first."""
        with self._lock:
            return [line for line in self._lines if line["reference"] == reference]

    def count(self) -> int:
        with self._lock:
            return len(self._lines)

    def close(self) -> None:
        """Close the file; a `record` that comes later raises OSError and does nothing."""
        with self._lock:
            os.close(self._file)
            self._file = -1

    def _next_line(self, key: str, attempt: str, digest: str, body: Line) -> Line:
        number = len(self._lines) + 1
        kept = {name: body[name] for name in self._service.keeps if name in body}
        return {
            "n": number,
            "id": f"{self._service.prefix}_{number:06d}",
            "key": key,
            "attempt": attempt,
            "reference": body["reference"],
            **kept,
            "body": digest,
            "time_ms": time.time_ns() // 1_000_000,
        }

    def _append(self, line: Line) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        start = os.lseek(self._file, 0, os.SEEK_END)
        try:
            if os.write(self._file, data) != len(data):
                raise OSError("short write to the ledger")  # noqa: TRY301 - undone right below
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, start)
            raise

    def _load(self, data: bytes) -> None:
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.ftruncate(self._file, whole)
            os.fsync(self._file)
        for text in data[:whole].splitlines():
            self._remember(json.loads(text))

    def _remember(self, line: Line) -> None:
        self._lines.append(line)
        self._by_key.setdefault(line["key"], line)


class EffectServer(ThreadingHTTPServer):
    """One service on 127.0.0.1, a thread for each connection, `CONNECTIONS_MAX` of them at once."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        service: Service,
        ledger: Path,
        *,
        faults: Faults | None = None,
        port: int = 0,
        late_ms: int = 250,
        hang_ms: int = 1_500,
    ) -> None:
        """Open the ledger and bind `port` (0: any free one). Serves once `serve_forever` is called."""
        self.service = service
        self.ledger = Ledger(ledger, service)
        self.faults = faults or ScriptedFaults()
        self.late_seconds = late_ms / 1_000
        self.hang_seconds = hang_ms / 1_000
        self.stopping = threading.Event()
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._changed = threading.Condition()
        self._connections: dict[int, int] = {}  # id of the socket -> its number in order of acceptance
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
            return {"requests": 0, "deduplicated": 0, **self._counters, "effects": self.ledger.count()}

    def pause(self, seconds: float) -> None:
        """Wait, but never longer than the server lives."""
        self.stopping.wait(seconds)

    def quiet(self, own: socket.socket, within_seconds: float) -> bool:
        """Wait until every connection accepted before `own` is closed; False when that took too long.

        The kernel hands out connections in the order they were made. So all that a dead client had sent
        belongs to an earlier connection, and has been worked off once this returns True.
        """
        with self._changed:
            mine = self._connections[id(own)]
            return self._changed.wait_for(
                lambda: all(number >= mine for number in self._connections.values()), within_seconds
            )

    # The three hooks of socketserver that see a connection from its acceptance to its end.

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._slots.acquire(timeout=0.1):
            if self.stopping.is_set():
                raise ConnectionAbortedError("the server is stopping")
        with self._changed:
            self._accepted += 1
            self._connections[id(request)] = self._accepted
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._changed:
            if self._connections.pop(id(request), None) is not None:
                self._slots.release()
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base's signature
        """Let a client that is gone be gone; report everything else as the base class does."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def stop(self) -> None:
        """End `serve_forever`, which must be running, and every pause; close port and ledger."""
        self.stopping.set()
        self.shutdown()
        self.server_close()
        self.ledger.close()


class _Refused(Exception):  # noqa: N818 - an answer, not an error
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

    def do_POST(self) -> None:  # noqa: N802 - the name http.server looks for
        try:
            key, body = self._read()
        except _Refused as refused:
            self.close_connection = True  # the rest of the body may still be on its way
            self._answer(refused.status, {"error": refused.reason})
            return
        self._play(self.server.arrive(body["reference"]), key, body)

    def do_GET(self) -> None:  # noqa: N802 - the name http.server looks for
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
            raise _Refused(HTTPStatus.BAD_REQUEST, f"Idempotency-Key: 1 to {KEY_CHARS_MAX} characters")
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
                self._answer(HTTPStatus.TOO_MANY_REQUESTS, {"error": "not now"}, {"Retry-After": "0"})
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
            line, new = self.server.ledger.record(key=key, attempt=self.headers.get("X-Attempt", ""), body=body)
        except KeyReusedError:
            self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": "this key came with another request"})
            return
        if not new:
            self.server.deduplicated()
        if fault is Fault.DROP:
            self.close_connection = True
            return
        if fault is Fault.LATE:
            self.server.pause(self.server.late_seconds)
        self._answer(HTTPStatus.CREATED if new else HTTPStatus.OK, line)

    def _answer(self, status: HTTPStatus, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
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


def _digest(body: Line) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_ledger(path: Path) -> list[Line]:
    """Return a ledger's whole lines, oldest first; none when the file is not there."""
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(text) for text in data[: data.rfind(b"\n") + 1].splitlines()]


def parse_faults(text: str, seed: str) -> SeededFaults:
    """Read `late=5,drop=3` (percent). Raises ValueError that names what it does not understand."""
    percent: dict[Fault, int] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        percent[Fault(name)] = int(number)
    if min(percent.values(), default=0) < 0 or sum(percent.values()) > 100:
        raise ValueError(f"faults: percentages from 0 to together 100, not {text!r}")
    return SeededFaults(seed, percent)


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM, or until standard input closes, which it does when the parent is gone."""
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
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    print(json.dumps({"service": service.name, "port": server.port, "pid": os.getpid()}), flush=True)
    _wait_for_the_end()
    server.stop()
    return 0


def _wait_for_the_end() -> None:
    end = threading.Event()

    def until_input_closes() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        end.set()

    signal.signal(signal.SIGTERM, lambda *_: end.set())
    signal.signal(signal.SIGINT, lambda *_: end.set())
    threading.Thread(target=until_input_closes, daemon=True).start()
    end.wait()


if __name__ == "__main__":
    sys.exit(main())
