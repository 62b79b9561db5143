"""``POST /api/engine/restart``: another engine, and no request is lost."""

import threading
from collections.abc import Callable

from tests.http.conftest import fake
from tests.http.helpers import entry, infer, outputs, wait_for_state
from tests.support.server import Server

Start = Callable[..., Server]


def slow(server: Server) -> None:
    fake(server, "slow", "run_ms = 1000", "[warmup]\nenabled = false")


def test_what_runs_is_run_again_by_the_next_engine(start: Start) -> None:
    server = start(slow)
    before = server.engine_pid
    found: list[object] = []

    def ask() -> None:
        found.append(outputs(infer(server, "slow", entry([3], [1, 1]), headers={"X-Request-ID": "one"})))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for_state(server, "one", ["running"])
    answer = server.client.post("/api/engine/restart")
    assert (answer.status_code, answer.json()) == (200, {"restarting": True})
    thread.join(30)
    assert found == [{"y": [6]}]
    engine = server.status()["engine"]
    assert (engine["restarts"], engine["pid"] != before) == (1, True)
    assert engine["deaths"][-1]["reason"].startswith("asked for by POST /api/engine/restart")
