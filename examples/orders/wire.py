"""One HTTP request to one of the shop's services, and the three ways a post can end.

    Answer          the server answered; the status says what
    NotReachedError no byte of the request left this machine: it certainly did not happen
    LostError       the request was sent, wholly or in part, and no answer came: nobody knows

Which of the two errors it is, is all that a durable engine needs to know of HTTP. Each request
has a connection of its own, closed whatever happens: so a server that sees no more connections
has seen everything.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

ANSWER_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is the JSON object that came with `status`."""

    status: int
    body: dict[str, Any]


class NotReachedError(Exception):
    """Nothing was sent. Trying again is safe for everybody."""


class LostError(Exception):
    """Something was sent and no answer came. The receiver may have acted on it, or may yet."""


def post(
    url: str, body: Mapping[str, Any], headers: Mapping[str, str], *, timeout_seconds: float
) -> Answer:
    """Post JSON from a thread; `timeout_seconds` is for each wait.

    Raises `NotReachedError` or `LostError`.
    """
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=timeout_seconds)
    try:
        _connect(connection)
        connection.request(
            "POST", address.path, json.dumps(body), {**headers, "Connection": "close"}
        )
        response = connection.getresponse()
        return _answer(response.status, response.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException) as error:
        raise LostError(_words(error)) from error
    finally:
        connection.close()


def get(url: str, *, timeout_seconds: float) -> Answer:
    """Get JSON from a thread.

    Raises `NotReachedError` or `LostError`; for what only reads they mean the same.
    """
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=timeout_seconds)
    try:
        _connect(connection)
        connection.request(
            "GET", f"{address.path}?{address.query}", headers={"Connection": "close"}
        )
        response = connection.getresponse()
        return _answer(response.status, response.read())
    except (OSError, http.client.HTTPException) as error:
        raise LostError(_words(error)) from error
    finally:
        connection.close()


def _connect(connection: http.client.HTTPConnection) -> None:
    try:
        connection.connect()
    except OSError as error:
        raise NotReachedError(_words(error)) from error


async def post_async(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
    """Post JSON from a coroutine, which may be cancelled at any time.

    It sets no time limit: the step's `timeout` in the definition is the one that counts. Raises
    `NotReachedError` or `LostError`.
    """
    return await _ask("POST", url, json.dumps(body).encode(), headers)


async def get_async(url: str) -> Answer:
    """Get JSON from a coroutine, without a time limit; raises as `get` does."""
    return await _ask("GET", url, b"", {})


async def _ask(method: str, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    address = urlsplit(url)
    try:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
    except OSError as error:
        raise NotReachedError(_words(error)) from error
    try:
        target = f"{address.path}?{address.query}" if address.query else address.path
        writer.write(_request(method, address.netloc, target, body, headers))
        await writer.drain()
        return _parse(await _read(reader))
    except OSError as error:
        raise LostError(_words(error)) from error
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    # The server closes after its answer, so the answer is everything that comes.
    data = b""
    while len(data) <= ANSWER_BYTES_MAX and (more := await reader.read(ANSWER_BYTES_MAX)):
        data += more
    return data


def _request(method: str, host: str, target: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    fields = {"Host": host, "Content-Length": str(len(body)), **headers, "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body


def _parse(data: bytes) -> Answer:
    head, separator, body = data.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if not separator or len(words) < 3 or not words[1].isdigit():
        raise LostError("the connection was closed without an answer")
    return _answer(int(words[1]), body)


def _answer(status: int, body: bytes) -> Answer:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise LostError("the answer was cut short") from error
    return Answer(status, value if isinstance(value, dict) else {})


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
