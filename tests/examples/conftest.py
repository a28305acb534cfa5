"""Puts the folder of the orders example on the path, where its modules find each other."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ORDERS = Path(__file__).parents[2] / "examples" / "orders"
sys.path.insert(0, str(ORDERS))

from faults import Fault, ScriptedFaults  # noqa: E402 - not before the path
from ledger import Service  # noqa: E402 - not before the path
from servers import EffectServer  # noqa: E402 - not before the path

Serve = Callable[..., EffectServer]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start servers in this process: `serve(service, {(reference, arrival): fault})`."""
    servers: list[EffectServer] = []

    def start(
        service: Service, script: dict[tuple[str, int], Fault] | None = None, *, hang_ms: int = 100
    ) -> EffectServer:
        server = EffectServer(
            service,
            tmp_path / f"{service.name}.jsonl",
            faults=ScriptedFaults(script or {}),
            late_ms=10,
            hang_ms=hang_ms,
        )
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.stop()
