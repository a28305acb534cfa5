"""The example's servers: what they did is on disk, whatever they say."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ledger as ledger_module
import pytest
from faults import Fault, SeededFaults, parse_faults
from ledger import MAIL, PAYMENT, KeyReusedError, Ledger, read_ledger
from servers import BODY_BYTES_MAX, EffectServer
from wire import Answer, LostError, NotReachedError, get, post, post_async

from tests.examples.conftest import ORDERS, Serve

CHARGE = {"reference": "TS-1", "amount": 995, "currency": "EUR"}


def ask(
    server: EffectServer,
    key: str = "k1",
    body: dict[str, object] | None = None,
    *,
    timeout_seconds: float = 5.0,
) -> Answer:
    url = f"http://127.0.0.1:{server.port}{server.service.path}"
    headers = {"Idempotency-Key": key, "X-Attempt": "1.1"}
    return post(url, CHARGE if body is None else body, headers, timeout_seconds=timeout_seconds)


def look(server: EffectServer, what: str) -> Answer:
    return get(f"http://127.0.0.1:{server.port}/{what}", timeout_seconds=5.0)


def lines(tmp_path: Path, name: str = "payment") -> list[dict[str, object]]:
    return read_ledger(tmp_path / f"{name}.jsonl")


# ---- one effect for each key, or for each request ----


def test_a_repeated_key_is_charged_once_and_answered_alike(serve: Serve, tmp_path: Path):
    server = serve(PAYMENT)
    first, second = ask(server), ask(server)
    assert (first.status, second.status) == (201, 200)
    assert first.body == second.body
    assert [line["id"] for line in lines(tmp_path)] == [first.body["id"]]
    assert look(server, "counters").body["deduplicated"] == 1


def test_clients_that_race_with_one_key_are_charged_once(serve: Serve, tmp_path: Path):
    server = serve(PAYMENT)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: ask(server), range(32)))
    assert len({answer.body["id"] for answer in answers}) == 1
    assert len(lines(tmp_path)) == 1


def test_a_key_that_comes_with_another_body_is_refused(serve: Serve, tmp_path: Path):
    server = serve(PAYMENT)
    ask(server)
    assert ask(server, body={**CHARGE, "amount": 1}).status == 422
    assert len(lines(tmp_path)) == 1


def test_the_mail_server_sends_what_comes_twice_twice(serve: Serve, tmp_path: Path):
    server = serve(MAIL)
    assert (ask(server).status, ask(server).status) == (201, 201)
    assert [line["key"] for line in lines(tmp_path, "mail")] == ["k1", "k1"]


def test_the_ledger_tells_what_was_done_about_a_reference(serve: Serve, tmp_path: Path):
    server = serve(PAYMENT)
    ask(server)
    ask(server, "k2", {**CHARGE, "reference": "TS-2"})
    assert look(server, "effects?reference=TS-2").body["effects"] == lines(tmp_path)[1:]
    assert look(server, "effects?reference=TS-3").body["effects"] == []


# ---- faults ----


@pytest.mark.parametrize(
    ("fault", "status", "effects"),
    [
        (Fault.NONE, 201, 1),
        (Fault.LATE, 201, 1),
        (Fault.STALL, 201, 1),
        (Fault.DROP, None, 1),
        (Fault.HANG, None, 0),
        (Fault.ERROR, 500, 0),
        (Fault.BUSY, 429, 0),
    ],
)
def test_a_fault_does_its_work_or_not_as_it_says(
    serve: Serve, tmp_path: Path, fault: Fault, status: int | None, effects: int
):
    server = serve(PAYMENT, {("TS-1", 1): fault})
    if status is None:
        with pytest.raises(LostError):
            ask(server)
    else:
        assert ask(server).status == status
    assert len(lines(tmp_path)) == effects
    assert ask(server).status in {200, 201}, "the second arrival is served"
    assert len(lines(tmp_path)) == 1


def test_absence_proves_nothing_before_the_server_is_quiet(serve: Serve, tmp_path: Path):
    """The client gave up, the ledger is empty, and yet the message goes out."""
    server = serve(MAIL, {("TS-1", 1): Fault.STALL}, hang_ms=200)
    with pytest.raises(LostError):
        ask(server, timeout_seconds=0.02)
    assert lines(tmp_path, "mail") == []
    hasty = look(server, "quiet?within_ms=1")
    assert (hasty.status, hasty.body) == (503, {"quiet": False})
    assert look(server, "quiet?within_ms=5000").body == {"quiet": True}
    assert len(lines(tmp_path, "mail")) == 1


def test_what_a_dead_client_had_sent_is_worked_off_before_quiet(serve: Serve, tmp_path: Path):
    """Its request may still lie in the kernel, unread, when its process is gone."""
    server = serve(MAIL)
    body = json.dumps(CHARGE).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("POST", "/invoices", body, {"Idempotency-Key": "k1"})
    connection.close()
    assert look(server, "quiet?within_ms=5000").body == {"quiet": True}
    assert len(lines(tmp_path, "mail")) == 1


def test_seeded_faults_repeat_and_end():
    one, two = (SeededFaults("7", dict.fromkeys(Fault, 14)) for _ in range(2))
    lots = [(f"TS-{number}", arrival) for number in range(60) for arrival in (1, 2, 3)]
    chosen = [one.choose(*lot) for lot in lots]
    assert chosen == [two.choose(*lot) for lot in lots]
    assert set(chosen) == set(Fault)
    assert {fault for fault, (_, n) in zip(chosen, lots, strict=True) if n == 3} == {Fault.NONE}


@pytest.mark.parametrize("text", ["late=60,drop=41", "late=-1", "late", "nap=3", "late=x"])
def test_a_fault_plan_that_makes_no_sense_is_refused(text: str):
    with pytest.raises(ValueError, match=r".+"):
        parse_faults(text, "1")


# ---- the protocol ----


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("/refunds", {"Idempotency-Key": "k"}, b"{}", 404),
        ("/charges", {}, b"{}", 400),
        ("/charges", {"Idempotency-Key": "k" * 256}, b"{}", 400),
        ("/charges", {"Idempotency-Key": "k", "Content-Length": "many"}, b"", 411),
        ("/charges", {"Idempotency-Key": "k", "Content-Length": str(BODY_BYTES_MAX + 1)}, b"", 413),
        ("/charges", {"Idempotency-Key": "k"}, b"{", 400),
        ("/charges", {"Idempotency-Key": "k"}, b"[" * 60_000, 400),
        ("/charges", {"Idempotency-Key": "k"}, b"[]", 400),
        ("/charges", {"Idempotency-Key": "k"}, b'{"reference":7}', 400),
    ],
)
def test_a_request_that_makes_no_sense_does_nothing(
    serve: Serve, tmp_path: Path, path: str, headers: dict[str, str], body: bytes, status: int
):
    server = serve(PAYMENT)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("POST", path, body, headers)
    assert connection.getresponse().status == status
    connection.close()
    assert lines(tmp_path) == []


def test_one_connection_carries_many_requests(serve: Serve, tmp_path: Path):
    server = serve(PAYMENT)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    for key in ("k1", "k2", "k3"):
        connection.request("POST", "/charges", json.dumps(CHARGE), {"Idempotency-Key": key})
        response = connection.getresponse()
        assert (response.status, response.will_close) == (201, False)
        response.read()
    connection.close()
    assert len(lines(tmp_path)) == 3


def test_nobody_but_this_machine_is_served(serve: Serve):
    assert serve(PAYMENT).server_address[0] == "127.0.0.1"


@pytest.fixture
def nobody() -> Iterator[str]:
    """A URL at which nobody listens, and nobody else can while the test runs."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/charges"


def test_a_server_that_is_not_there_was_not_reached(nobody: str):
    with pytest.raises(NotReachedError):
        post(nobody, CHARGE, {}, timeout_seconds=5)


async def test_a_coroutine_tells_the_same_three_ends_apart(serve: Serve, nobody: str):
    server = serve(PAYMENT, {("TS-1", 1): Fault.DROP})
    url, headers = f"http://127.0.0.1:{server.port}/charges", {"Idempotency-Key": "k1"}
    with pytest.raises(LostError):
        await post_async(url, CHARGE, headers)
    assert (await post_async(url, CHARGE, headers)).status == 200
    with pytest.raises(NotReachedError):
        await post_async(nobody, CHARGE, headers)


# ---- the ledger ----


def test_an_effect_is_on_disk_before_it_is_answered(tmp_path: Path, monkeypatch):
    path, synced = tmp_path / "payment.jsonl", []
    ledger = Ledger(path, PAYMENT)
    monkeypatch.setattr(ledger_module.os, "fsync", lambda _: synced.append(path.read_bytes()))
    line, _ = ledger.record(key="k1", attempt="1.1", body=CHARGE)
    assert [json.loads(data) for data in synced] == [line]
    ledger.close()


def test_an_effect_that_the_disk_refused_did_not_happen(tmp_path: Path, monkeypatch):
    path = tmp_path / "payment.jsonl"
    ledger = Ledger(path, PAYMENT)

    def refuse(_: int) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(ledger_module.os, "fsync", refuse)
        with pytest.raises(OSError, match="no space"):
            ledger.record(key="k1", attempt="1.1", body=CHARGE)
    assert path.read_bytes() == b""
    assert ledger.record(key="k1", attempt="1.2", body=CHARGE)[1]
    ledger.close()


def test_a_torn_line_is_cut_off_and_the_rest_is_known(tmp_path: Path):
    path = tmp_path / "payment.jsonl"
    ledger = Ledger(path, PAYMENT)
    whole, _ = ledger.record(key="k1", attempt="1.1", body=CHARGE)
    ledger.close()
    with path.open("ab") as file:
        file.write(b'{"n":2,"id":"ch_0000')
    assert read_ledger(path) == [whole]
    again = Ledger(path, PAYMENT)
    assert again.record(key="k1", attempt="1.2", body=CHARGE) == (whole, False)
    with pytest.raises(KeyReusedError):
        again.record(key="k1", attempt="1.2", body={**CHARGE, "amount": 1})
    assert again.record(key="k2", attempt="1.1", body=CHARGE)[0]["n"] == 2
    again.close()
    assert len(read_ledger(path)) == 2


# ---- the process ----


def start(tmp_path: Path) -> tuple[subprocess.Popen[bytes], str]:
    process = subprocess.Popen(
        [sys.executable, str(ORDERS / "servers.py"), "payment", str(tmp_path / "payment.jsonl")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    told = json.loads(process.stdout.readline())
    assert told["pid"] == process.pid
    return process, f"http://127.0.0.1:{told['port']}/charges"


@pytest.mark.slow
def test_a_killed_server_knows_its_keys_again(tmp_path: Path):
    ids = []
    for _ in range(2):
        process, url = start(tmp_path)
        with process:
            ids.append(post(url, CHARGE, {"Idempotency-Key": "k1"}, timeout_seconds=5).body["id"])
            process.kill()
    assert ids[0] == ids[1]
    assert len(lines(tmp_path)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["its parent is gone", "SIGTERM"])
def test_a_server_ends_by_itself(tmp_path: Path, how: str):
    process, _ = start(tmp_path)
    with process:
        if how == "SIGTERM":
            os.kill(process.pid, signal.SIGTERM)
        else:
            assert process.stdin
            process.stdin.close()
        assert process.wait(timeout=10) == 0
