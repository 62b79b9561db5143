"""Pause and resume: requests wait, and none is lost."""

import threading
import time
from collections.abc import Callable

import httpx

from tests.http.conftest import fake
from tests.http.helpers import entry, infer, outputs, refused, state_of, wait_for_state
from tests.support.server import Server

Start = Callable[..., Server]


def double(server: Server) -> None:
    fake(server, "double", "run_ms = 5")


def pause(server: Server) -> None:
    answer = server.client.post("/api/pause")
    assert (answer.status_code, answer.json()) == (200, {"paused": True})


def resume(server: Server) -> None:
    answer = server.client.post("/api/resume")
    assert (answer.status_code, answer.json()) == (200, {"paused": False})


def test_under_load_nothing_is_lost(start: Start) -> None:
    server = start(double)
    found: dict[float, list[float]] = {}
    faults: list[BaseException] = []
    stop = threading.Event()

    def ask(client: int) -> None:
        n = 0
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as own:
            while not stop.is_set():
                value = client * 10_000.0 + n
                n += 1
                body = {"inputs": [entry([value], [1, 1])]}
                try:
                    found[value] = outputs(own.post("/v2/models/double/infer", json=body))["y"]
                except BaseException as fault:
                    faults.append(fault)
                    return

    threads = [threading.Thread(target=ask, args=(client,)) for client in range(12)]
    for thread in threads:
        thread.start()
    server.wait_for(lambda: len(found) > 50, 20, "answers")
    for _ in range(3):
        pause(server)
        server.wait_for(lambda: server.status()["queue"]["waiting"] == 12, 10, "all to wait")
        status = server.status()
        assert (status["state"], status["queue"]) == ("paused", {"waiting": 12, "running": 0, "paused": True})
        before = len(found)
        time.sleep(0.3)
        assert len(found) == before
        resume(server)
        server.wait_for(lambda before=before: len(found) >= before + 12, 10, "answers")
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not faults
    assert all(answer == [2 * value] for value, answer in found.items())
    assert server.status()["state"] == "ready"


def test_waits_stay_bounded(start: Start) -> None:
    server = start(double, queue_timeout_ms=700, queue_per_model=2)
    pause(server)
    pause(server)
    got: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: got.append(infer(server, "double", entry([1], [1, 1])))) for _ in range(2)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    server.wait_for(lambda: server.status()["queue"]["waiting"] == 2, 5, "both to wait")
    refused(infer(server, "double", entry([1], [1, 1])), 429, "queue_full")
    for thread in threads:
        thread.join()
    assert 0.6 < time.monotonic() - began < 3
    for answer in got:
        refused(answer, 503, "paused", "paused")
        assert int(answer.headers["retry-after"]) >= 1
    resume(server)
    resume(server)
    assert outputs(infer(server, "double", entry([1], [1, 1]))) == {"y": [2.0]}


def test_what_runs_goes_on_and_what_waits_says_so(start: Start) -> None:
    server = start(lambda s: fake(s, "slow", "run_ms = 800", "[warmup]\nenabled = false\n[batching]\nmax = 1"))
    got: dict[str, httpx.Response] = {}

    def ask(name: str) -> None:
        got[name] = infer(server, "slow", entry([3], [1, 1]), headers={"X-Request-ID": name})

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("first", "second")]
    threads[0].start()
    wait_for_state(server, "first", ["running"])
    pause(server)
    threads[1].start()
    wait_for_state(server, "first", ["done"])
    assert state_of(server, "second") == "queued"
    assert server.client.get("/ready").status_code == 200
    resume(server)
    for thread in threads:
        thread.join()
    assert outputs(got["first"]) == outputs(got["second"]) == {"y": [6.0]}


def test_the_guard_holds(start: Start) -> None:
    server = start(double, api_key="a-key-of-mine")
    for path in ("/api/pause", "/api/resume"):
        refused(server.client.post(path), 401, "unauthorized")
        refused(server.client.post(path, headers={"Origin": "https://evil.example"}), 403, "forbidden")
        refused(server.client.get(path, headers={"X-API-Key": "a-key-of-mine"}), 405, "method_not_allowed")
    server.client.headers["X-API-Key"] = "a-key-of-mine"
    assert not server.status()["queue"]["paused"]
    pause(server)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 5
