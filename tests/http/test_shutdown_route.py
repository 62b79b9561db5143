"""``POST /api/shutdown``: nothing new is taken, what is here is answered, then the program ends."""

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.http.conftest import fake
from tests.http.helpers import entry, infer, outputs, refused, wait_for_state
from tests.support.server import PHOTOS, Server

Start = Callable[..., Server]
ALONE = "[warmup]\nenabled = false\n[batching]\nmax = 1"


def one_second(server: Server) -> None:
    fake(server, "slow", "run_ms = 1000", ALONE)


def ask(server: Server, *names: str) -> tuple[dict[str, httpx.Response], list[threading.Thread]]:
    """Requests in threads, one after the other: the first runs, the others wait."""
    got: dict[str, httpx.Response] = {}

    def call(name: str) -> None:
        got[name] = infer(server, "slow", entry([3], [1, 1]), headers={"X-Request-ID": name})

    threads = [threading.Thread(target=call, args=(name,)) for name in names]
    for thread, name in zip(threads, names, strict=True):
        thread.start()
        wait_for_state(server, name, ["running" if name == names[0] else "queued"])
    return got, threads


def begin(server: Server, **parameters: Any) -> dict[str, Any]:
    answer = server.client.post("/api/shutdown", params=parameters)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["stopping"] is True
    return found


def ended(server: Server) -> int:
    assert server.process is not None
    return server.process.wait(15)


def test_what_waits_is_answered_and_what_comes_is_refused(start: Start) -> None:
    server = start(one_second)
    got, threads = ask(server, "first", "second", "third")
    found = begin(server, timeout_ms=20_000)
    assert server.process is not None
    assert found["pid"] == server.process.pid
    assert (found["running"], found["waiting"], found["timeout_ms"]) == (1, 2, 20_000)
    for path in ("/v2/models/slow/infer", "/predict/slow"):
        answer = server.client.post(path, json={"inputs": [entry([3], [1, 1])]})
        refused(answer, 503, "paused")
        assert int(answer.headers["retry-after"]) >= 1
    assert server.client.get("/ready").status_code == 503
    assert server.client.get("/v2/health/ready").status_code == 503
    assert server.client.get("/health").status_code == 200
    assert server.status()["state"] == "stopped"
    for thread in threads:
        thread.join(30)
    assert [outputs(got[name]) for name in ("first", "second", "third")] == [{"y": [6.0]}] * 3
    assert ended(server) == 0
    assert not server.port_file.exists()


def test_a_task_of_several_runs_is_finished(start: Start) -> None:
    """Between two of its runs nothing waits and nothing runs, and still it is not over."""
    server = start(embedded_models=True)
    picture = (PHOTOS / "page.png").read_bytes()
    got: list[httpx.Response] = []
    headers = {"content-type": "image/png"}
    asking = threading.Thread(
        target=lambda: got.append(server.client.post("/predict/ocr", content=picture, headers=headers))
    )
    asking.start()
    server.wait_for(lambda: server.status()["queue"]["running"], 20, "the first run")
    begin(server)
    asking.join(30)
    assert got[0].status_code == 200, got[0].text
    assert got[0].json()["lines"]
    assert ended(server) == 0


def test_the_time_is_bounded(start: Start) -> None:
    server = start(lambda s: fake(s, "slow", "run_ms = 600000", ALONE), shutdown_ms=300)
    got, threads = ask(server, "first", "second")
    began = time.monotonic()
    begin(server, timeout_ms=600_000)
    begin(server, timeout_ms=500)
    assert ended(server) == 0
    assert time.monotonic() - began < 10
    for thread in threads:
        thread.join(10)
    for name in ("first", "second"):
        refused(got[name], 503, "paused")


def test_it_ends_a_pause(start: Start) -> None:
    server = start(lambda s: fake(s, "slow", "run_ms = 50", ALONE))
    server.client.post("/api/pause")
    got: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: got.append(infer(server, "slow", entry([3], [1, 1]))))
    asking.start()
    server.wait_for(lambda: server.status()["queue"]["waiting"] == 1, 10, "the request to wait")
    begin(server)
    asking.join(10)
    assert outputs(got[0]) == {"y": [6.0]}
    assert ended(server) == 0


@pytest.mark.parametrize("timeout_ms", [-1, 600_001, "soon"])
def test_wrong_times(tensors: Server, timeout_ms: Any) -> None:
    answer = tensors.client.post("/api/shutdown", params={"timeout_ms": timeout_ms})
    refused(answer, 400, "invalid_input", "timeout_ms")
    assert tensors.client.get("/ready").status_code == 200


def test_the_guard_holds(start: Start) -> None:
    server = start(one_second, api_key="a-key-of-mine")
    path, key = "/api/shutdown", {"X-API-Key": "a-key-of-mine"}
    refused(server.client.post(path), 401, "unauthorized")
    refused(server.client.post(path, headers={**key, "Origin": "https://evil.example"}), 403, "forbidden")
    refused(server.client.post(path, headers={**key, "Host": "evil.example"}), 403, "forbidden")
    refused(server.client.get(path, headers=key), 405, "method_not_allowed")
    # A reverse proxy on this machine says for whom it asks.
    refused(server.client.post(path, headers={**key, "X-Forwarded-For": "192.0.2.7"}), 403, "forbidden", "machine")
    server.client.headers.update(key)
    assert server.status()["state"] == "ready"
    begin(server, timeout_ms=0)
    assert ended(server) == 0
