"""The ledger of a service: what it did, one line for each effect, on disk before anybody is told.

So the file is the truth by which a client's own beliefs can be judged. It is only ever appended to.
A restart reads it again; a line torn by a crash was never answered for and is cut off.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

Line = dict[str, Any]  # a JSON object; what is in it depends on the service


@dataclass(frozen=True, slots=True)
class Service:
    """What one server offers.

    `keeps` names the fields of a request's body that the ledger repeats (the digest covers all of
    it).
    """

    name: str
    path: str
    prefix: str
    deduplicates: bool
    keeps: tuple[str, ...]


PAYMENT: Final = Service(
    "payment", "/charges", "ch", deduplicates=True, keeps=("amount", "currency")
)
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

        Only a service that deduplicates ever returns an old line. Raises `KeyReusedError` when it
        knows the key with another body, and OSError when the disk refused; then the effect did
        not happen.
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


def _digest(body: Line) -> str:
    return hashlib.sha256(
        json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


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
