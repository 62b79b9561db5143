"""``Idempotency-Key`` over HTTP: repeating a request never doubles the load."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import Server

SLOW = """
backend = "fake"

[backend_options]
run_ms = 1500
fail_on = 13.0

[warmup]
enabled = false
"""
URL = "/v2/models/slow/infer"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("once"), idempotency_keep_ms=3000)
    (server.models / "slow").mkdir()
    (server.models / "slow" / "model.toml").write_text(SLOW)
    with server:
        yield server


def body(value: float) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}]}).encode()


def ask(server: Server, key: str, value: float) -> httpx.Response:
    return server.client.post(URL, content=body(value), headers={"Idempotency-Key": key})


def runs(server: Server) -> int:
    found = server.client.get("/v2/models/slow/stats").json()["model_stats"]
    return int(found[0]["execution_count"]) if found else 0


def together(server: Server, key: str, count: int) -> list[httpx.Response]:
    answers: list[httpx.Response] = []

    def one() -> None:
        answers.append(ask(server, key, 21))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_the_same_key_at_once_and_afterwards_runs_once(slow: Server) -> None:
    before = runs(slow)
    answers = together(slow, "one", 5)
    assert [a.json()["outputs"][0]["data"] for a in answers] == [[42.0]] * 5
    assert sum("idempotent-replayed" in a.headers for a in answers) == 4
    assert len({a.headers["x-request-id"] for a in answers}) == 5
    again = ask(slow, "one", 21)
    assert again.json() == answers[0].json() and again.headers["idempotent-replayed"] == "true"
    assert runs(slow) == before + 1


def test_the_same_key_with_another_body_is_a_conflict(slow: Server) -> None:
    assert ask(slow, "two", 1).status_code == 200
    answer = ask(slow, "two", 2)
    assert answer.status_code == 409 and answer.json()["code"] == "idempotency_conflict"


def test_the_answer_is_kept_for_its_time_only(slow: Server) -> None:
    before = runs(slow)
    ask(slow, "three", 1)
    time.sleep(3.2)
    assert "idempotent-replayed" not in ask(slow, "three", 1).headers
    assert runs(slow) == before + 2


def test_a_failure_may_be_tried_again(slow: Server) -> None:
    first, second = ask(slow, "four", 13), ask(slow, "four", 13)
    assert first.status_code == second.status_code == 500
    assert "idempotent-replayed" not in second.headers


@pytest.mark.parametrize("key", ["", "a" * 256])
def test_a_key_has_a_form(slow: Server, key: str) -> None:
    assert ask(slow, key, 1).status_code == 400


def leaver(server: Server, key: str) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    data = body(21)
    same = "".join(f"{name}: {server.client.headers[name]}\r\n" for name in ("accept", "accept-encoding"))
    own = f"Host: {host}\r\nIdempotency-Key: {key}\r\nContent-Length: {len(data)}\r\n"
    head = f"POST {URL} HTTP/1.1\r\n{own}{same}\r\n"
    connection.sendall(head.encode() + data)
    return connection


def test_the_first_caller_may_go_while_others_wait(slow: Server) -> None:
    before = runs(slow)
    first = leaver(slow, "five")
    time.sleep(0.3)
    got: dict[str, Any] = {}
    second = threading.Thread(target=lambda: got.update(ask(slow, "five", 21).json()))
    second.start()
    time.sleep(0.3)
    first.close()
    second.join()
    assert got.get("outputs", [got])[0].get("data") == [42.0], got
    assert runs(slow) == before + 1


def test_when_all_have_gone_the_work_is_dropped(slow: Server) -> None:
    before = runs(slow)
    callers = [leaver(slow, "six") for _ in range(2)]
    time.sleep(0.4)
    for caller in callers:
        caller.close()
    slow.wait_for(lambda: slow.status()["queue"]["running"] == 0, 1, "the run to be ended")
    assert runs(slow) == before
