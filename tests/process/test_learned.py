"""What runs teach about their memory outlives the program: events, and peaks seen between heartbeats."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.process.helpers import answer, fake, infer
from tests.support.server import Server

MIB = 1 << 20
DEVICE = "fake:0"
ALL = {"memory_fraction": 1.0, "memory_reserve_bytes": 0}


def ledger(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.status()["memory"].get(DEVICE, {})
    return found


def ask(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        assert answer(infer(client, "m", 1.0)) == [2.0] * 4


def booked(server: Server) -> int:
    """What is booked for one request while it runs."""
    asked = threading.Thread(target=ask, args=(server,))
    asked.start()
    try:
        return int(server.wait_for(lambda: ledger(server).get("in_flight"), 20, "the run"))
    finally:
        asked.join()


def again(server: Server) -> None:
    """Another start of the program, on the same folders."""
    server.start()
    server.wait_for(lambda: ledger(server).get("known"), 20, "a reading")


@pytest.mark.parametrize("damaged", [False, True])
def test_out_of_memory_events_are_remembered(folder: Path, damaged: bool) -> None:
    """It says 50 MiB and takes 300 of 1024: six at once run out, and the cost is raised."""
    server = Server(folder, **ALL)
    top = f"instances = 6\n[batching]\nmax = 1\n[memory]\nrun_bytes = {50 * MIB}"
    fake(server.models, "m", top, device_bytes=1024 * MIB, run_bytes=300 * MIB, run_ms=400)
    with server:
        server.wait_for(lambda: ledger(server).get("known"), 20, "a reading")
        assert booked(server) == 50 * MIB
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(ask, [server] * 6))
        assert ledger(server)["out_of_memory"] > 0
        raised = booked(server)
        assert raised >= 75 * MIB
        server.stop()
        (file,) = (server.state / "profiles" / "learned").glob("*.json")
        assert json.loads(file.read_text())["learned"]["device"] == DEVICE
        if damaged:
            file.write_bytes(file.read_bytes()[:-9])
        again(server)
        assert booked(server) == (50 * MIB if damaged else raised)
        log = (server.state / "logs" / "appliance.log").read_text()
        assert ("a profile cannot be read and is not used" in log) == damaged


def test_a_peak_that_is_seen_raises_the_cost(folder: Path) -> None:
    """Nothing was measured: a run is thought to take 1 MiB, and takes 300."""
    server = Server(folder, **ALL)
    top = "[batching]\nmax = 1\n[warmup]\nenabled = false"
    fake(server.models, "m", top, device_bytes=1024 * MIB, run_bytes=300 * MIB, run_ms=1200)
    with server:
        server.wait_for(lambda: ledger(server).get("known"), 20, "a reading")
        for _ in range(30):
            if (now := booked(server)) != MIB:
                break
        assert now == 390 * MIB, "300 MiB and 30 %"
        server.stop()
        again(server)
        assert booked(server) == 390 * MIB
