"""Language models where things go wrong: engines that die, callers that leave or stall, deadlines, queues, keys."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.http.conftest import watched
from tests.http.helpers import connect, head
from tests.support import speech
from tests.support.server import Server

LETTERS = "abcdefghij" * 100
HI: Any = [{"role": "user", "content": "Hi"}]
COLD = "[warmup]\nenabled = false\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("faults"))
    bang, dollar, percent = (speech.ids(mark)[0] for mark in "!$%")
    folder = server.models
    speech.fake_model(
        folder / "fragile", LETTERS, token_ms=20, streams=2, crash_on=bang, fail_on=dollar, oom_on=percent
    )
    one = f"{COLD}[limits]\nqueue = 1\n"
    speech.fake_model(folder / "slow", LETTERS, token_ms=50, streams=1, toml=one)
    speech.fake_model(folder / "late", LETTERS, token_ms=1500, streams=1, toml=COLD)
    speech.fake_model(folder / "first", LETTERS, token_ms=60_000, toml=f"{COLD}[timeouts]\nfirst_token_ms = 300")
    speech.fake_model(folder / "short", LETTERS, token_ms=50, toml=f"{COLD}[timeouts]\nrun_ms = 400")
    speech.fake_model(folder / "flood", context=100_000, toml=f"{COLD}[timeouts]\nrun_ms = 4000")
    with watched(server):
        yield server


def ask(server: Server, model: str, text: str = "Hi", headers: Any = None, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": text, **fields}
    return server.client.post("/v1/completions", json=body, headers=headers)


def open_stream(server: Server, model: str, request_id: str, **fields: Any) -> socket.socket:
    """A stream that is asked for and not read."""
    path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
    asked = fields if "messages" in fields else {"prompt": "Hi", **fields}
    body = json.dumps({"model": model, "stream": True, **asked}).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((httpx.URL(server.url).host, httpx.URL(server.url).port or 80))
    headers = {"X-Request-ID": request_id, "Content-Length": str(len(body))}
    sock.sendall(head(server, "POST", path, headers) + body)
    return sock


def state(server: Server, request_id: str) -> Any:
    return server.client.get(f"/api/requests/{request_id}").json()


def running(server: Server, request_id: str) -> bool:
    return bool(state(server, request_id).get("state") == "running")


def events(answer: httpx.Response) -> list[Any]:
    lines = [line for line in answer.text.split("\n\n") if line.startswith("data: ")]
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def refusals(server: Server) -> dict[str, int]:
    found: dict[str, int] = server.status()["traffic"]["errors"]
    return found


# --- the engine ------------------------------------------------------------------------------------------------


def test_an_engine_that_dies_in_mid_stream_ends_it_with_an_error_event(server: Server) -> None:
    told = events(ask(server, "fragile", "!", stream=True))
    assert told[0]["choices"][0]["text"] == "a"
    assert told[-1]["error"]["code"] == "model_error" and told[-1]["error"]["type"] == "server_error"
    assert "[DONE]" not in told
    assert not any(event["choices"][0]["finish_reason"] for event in told[:-1])
    server.wait_ready()


def test_the_client_raises_what_happened_in_mid_stream(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="fragile", messages=[{"role": "user", "content": "!"}], stream=True
        )
        with pytest.raises(openai.APIError, match="engine ended") as caught:
            for _ in stream:
                pass
    assert caught.value.code == "model_error"
    server.wait_ready()


def test_an_answer_that_is_not_streamed_has_a_status(server: Server) -> None:
    answer = ask(server, "fragile", "!")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "model_error")
    server.wait_ready()


def test_one_that_has_told_nothing_yet_begins_anew(server: Server) -> None:
    def kill() -> None:
        server.wait_for(lambda: running(server, "anew"))
        os.kill(server.engine_pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    answer = ask(server, "late", stream=True, max_tokens=1, headers={"X-Request-ID": "anew"})
    killer.join()
    told = events(answer)
    assert told[0]["choices"][0]["text"] == "a" and told[-1] == "[DONE]"
    server.wait_ready()


@pytest.mark.parametrize(("mark", "status", "code"), [("$", 500, "model_error"), ("%", 503, "overloaded")])
def test_what_fails_before_the_first_token_has_a_status_of_its_own(
    server: Server, mark: str, status: int, code: str
) -> None:
    answer = ask(server, "fragile", mark, stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert ("retry-after" in answer.headers) == (status == 503)


# --- callers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_leaves_ends_its_answer(server: Server, stream: bool) -> None:
    name = f"leaves-{stream}"
    caller = open_stream(server, "slow", name, stream=stream)
    server.wait_for(lambda: running(server, name))
    time.sleep(0.2)  # only requests that last are watched
    caller.close()
    server.wait_for(lambda: state(server, name).get("error"), 2)
    assert state(server, name)["error"]["code"] == "cancelled"
    server.wait_for(lambda: server.status()["queue"]["running"] == 0, 2)


def test_a_caller_that_leaves_the_queue(server: Server) -> None:
    first = open_stream(server, "slow", "q-1")
    server.wait_for(lambda: running(server, "q-1"))
    second = open_stream(server, "slow", "q-2")
    server.wait_for(lambda: state(server, "q-2").get("state") == "queued")
    full = ask(server, "slow", stream=True)
    assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    time.sleep(0.2)
    second.close()
    server.wait_for(lambda: state(server, "q-2").get("error"), 2)
    assert running(server, "q-1")
    first.close()


def test_a_caller_that_does_not_read_is_given_up_at_the_deadline(server: Server) -> None:
    before = refusals(server).get("inference_timeout", 0)
    # With what is told of each token it is more than the system keeps for who does not read.
    caller = open_stream(server, "flood", "flood", messages=HI, logprobs=True, max_tokens=90_000)
    server.wait_for(lambda: refusals(server).get("inference_timeout", 0) == before + 1, 20)
    assert server.status()["queue"]["running"] == 0
    caller.close()


# --- deadlines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_the_first_token_has_a_deadline(server: Server, stream: bool) -> None:
    answer = ask(server, "first", stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "inference_timeout")
    assert "no token within 0.3 s" in answer.json()["error"]["message"]
    server.wait_for(lambda: server.status()["queue"]["running"] == 0, 5)


def test_the_whole_answer_has_a_deadline(server: Server) -> None:
    told = events(ask(server, "short", stream=True))
    assert told[0]["choices"][0]["text"] == "a" and "[DONE]" not in told
    assert told[-1]["error"]["code"] == "inference_timeout"
    whole = ask(server, "short")
    assert (whole.status_code, whole.json()["error"]["code"]) == (504, "inference_timeout")
    assert ask(server, "short", max_tokens=2).status_code == 200


def test_a_caller_may_shorten_both(server: Server) -> None:
    answer = ask(server, "late", headers={"X-Timeout-Ms": "200"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "inference_timeout")
    wrong = ask(server, "late", headers={"X-Timeout-Ms": "soon"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "X-Timeout-Ms")


# --- the door --------------------------------------------------------------------------------------------------

Start = Callable[..., Server]


def test_a_key_is_given_as_openai_s_clients_do(start: Start) -> None:
    server = start(lambda s: speech.fake_model(s.models / "m", "Hi."), api_key="a-key-of-mine")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="a-key-of-mine", max_retries=0) as client:
        assert client.chat.completions.create(model="m", messages=HI).choices[0].message.content == "Hi."
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="another", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()
    assert caught.value.code == "unauthorized"


def test_rates_hold_for_the_model_that_the_body_names(start: Start) -> None:
    def prepare(server: Server) -> None:
        speech.fake_model(server.models / "m", "Hi.", toml='[limits]\nrate = "1/minute"\n')
        speech.fake_model(server.models / "free", "Hi.")

    server = start(prepare)
    assert ask(server, "m").status_code == 200
    again = ask(server, "m")
    assert (again.status_code, again.json()["error"]["code"]) == (429, "rate_limited")
    assert int(again.headers["retry-after"]) >= 1
    assert ask(server, "free").status_code == 200


def test_a_paused_appliance_lets_streams_wait(start: Start) -> None:
    server = start(lambda s: speech.fake_model(s.models / "m", "Hi."), queue_timeout_ms=500)
    server.client.post("/api/pause")
    answer = ask(server, "m", stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "paused")
    assert "retry-after" in answer.headers


def test_more_than_the_memory_can_ever_hold(start: Start) -> None:
    def prepare(server: Server) -> None:
        toml = "[warmup]\nenabled = false\n[backend_options]\ndevice_bytes = 1000000\n"
        path = speech.fake_model(server.models / "m", "Hi.", token_bytes=1000)
        text = path.joinpath("model.toml").read_text().replace("[backend_options]\n", toml)
        path.joinpath("model.toml").write_text(text)

    server = start(prepare, memory_reserve_bytes=0, memory_fraction=1.0)
    assert ask(server, "m", max_tokens=100).status_code == 200
    answer = ask(server, "m", max_tokens=1500)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "insufficient_memory")


def test_connections_are_kept_after_a_stream(server: Server) -> None:
    with connect(server) as sock:
        for _ in range(2):
            body = json.dumps({"model": "fragile", "prompt": "Hi", "stream": True, "max_tokens": 2}).encode()
            sock.sendall(head(server, "POST", "/v1/completions", {"Content-Length": str(len(body))}) + body)
            data = b""
            while not data.endswith(b"0\r\n\r\n"):
                more = sock.recv(65536)
                assert more, data
                data += more
            assert data.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in data
