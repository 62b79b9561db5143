"""A caller that goes away leaves the queue, and its run is ended."""

import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.server import Server

SLOW = """
backend = "fake"
[backend_options]
run_ms = 3000

[warmup]
enabled = false
"""
BODY = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}'


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("disconnect"))
    folder = server.models / "slow"
    folder.mkdir()
    (folder / "model.toml").write_text(SLOW)
    with server:
        yield server


def ask(server: Server, request_id: str) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: {host}\r\nX-Request-ID: {request_id}\r\n"
    connection.sendall(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
    return connection


def state(server: Server, request_id: str) -> str:
    return str(server.client.get(f"/api/requests/{request_id}").json().get("state"))


def test_waiting_and_running_requests_of_callers_who_left_cost_nothing(slow: Server) -> None:
    running, waiting, patient = (ask(slow, name) for name in ("running", "waiting", "patient"))
    slow.wait_for(lambda: state(slow, "patient") == "queued", what="the queue")
    time.sleep(0.2)  # only requests that last are watched
    waiting.close()
    slow.wait_for(lambda: state(slow, "waiting") == "failed", 2, "the waiting one to leave")
    assert state(slow, "running") == "running"
    running.close()
    slow.wait_for(lambda: state(slow, "patient") == "running", 2, "the run to be ended")
    assert slow.client.get("/api/requests/running").json()["error"]["code"] == "cancelled"
    assert patient.recv(65536).startswith(b"HTTP/1.1 200")
    patient.close()
    assert slow.status()["queue"] == {"waiting": 0, "running": 0, "paused": False}


def test_head_is_get_without_a_body(slow: Server) -> None:
    answer = slow.client.head("/health")
    assert answer.status_code == 200 and answer.content == b""
