"""Settings that change while the appliance runs: what counts at once, what waits, and what is wrong."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.conftest import fake, watched
from tests.http.helpers import connect, entry, infer, outputs, patiently, read_answer, refused
from tests.support.server import Server

PATH = "/v2/models/double/infer"


class Settled:
    """An appliance with a settings file of its own."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(folder)
        fake(self.server, "double")
        self.server.env["XDG_CONFIG_HOME"] = str(folder / "config")
        self.server.env["LOCALAPPDATA"] = str(folder / "config")
        self.file = folder / "config" / "inference-appliance" / "settings.toml"
        self.file.parent.mkdir(parents=True)

    def say(self, text: str) -> None:
        """As editors do it: another file in its place."""
        draft = self.file.with_suffix(".new")
        draft.write_text(text)
        draft.replace(self.file)

    def reload(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.client.post("/api/settings/reload").json()
        return found

    @property
    def status(self) -> dict[str, Any]:
        return self.server.status()


@pytest.fixture
def settled(tmp_path: Path) -> Iterator[Settled]:
    if os.name == "nt":
        pytest.skip("the settings' folder cannot be moved by a variable")
    found = Settled(tmp_path)
    with watched(found.server):
        yield found


def test_a_change_is_seen_by_itself(settled: Settled) -> None:
    settled.say("max_items = 1\nthreads = 3\n")
    patiently(lambda: settled.status["restart_needed"] == ["threads"])
    assert settled.status["notes"] == ["changed, and counts after a restart: threads"]
    body = {"image": ["AAAA", "AAAA"]}
    refused(settled.server.client.post("/predict/double", json=body), 413, "input_too_large", "1")
    settled.say("max_items = 1\n")
    patiently(lambda: settled.status["restart_needed"] == [])
    assert settled.status["notes"] == []


def test_what_is_wrong_changes_nothing_and_is_told_without_paths(settled: Settled) -> None:
    settled.say("max_body_bytes = 2000\n")
    assert settled.reload() == {"applied": ["max_body_bytes"], "restart_needed": [], "faults": [], "keys": 0}
    settled.say("max_body_bytes = 1500\n\nqueue_totl = 1\n")
    words = (
        "settings are not taken up: the user's settings.toml, line 3: queue_totl: "
        "there is no such setting; did you mean queue_total?"
    )
    assert settled.reload()["faults"] == [words]
    assert settled.status["notes"] == [words]
    large = {"inputs": [entry([1.0] * 300, [1, 300])]}
    assert 1500 < len(json.dumps(large)) < 2000
    assert settled.server.client.post(PATH, content=json.dumps(large)).status_code == 200
    settled.say("max_body_bytes = 1500\n")
    assert settled.reload()["applied"] == ["max_body_bytes"]
    refused(settled.server.client.post(PATH, content=json.dumps(large)), 413, "input_too_large", "1500")
    settled.file.unlink()
    assert settled.reload()["applied"] == ["max_body_bytes"]
    assert settled.server.client.post(PATH, content=json.dumps(large)).status_code == 200


def known_head(settled: Settled) -> Callable[[], int]:
    """Sends the same bytes again and again on one connection, so that their head is known; gives the status."""
    body = json.dumps({"inputs": [entry([3], [1, 1])]}).encode()
    data = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def ask() -> int:
        with connect(settled.server) as sock:
            for _ in range(3):
                sock.sendall(data)
                found = read_answer(sock)[0]
            return found

    return ask


def test_who_may_call_changes_also_for_requests_that_are_known(settled: Settled) -> None:
    ask = known_head(settled)
    assert ask() == 200
    settled.say(
        'api_key = "a-new-secret"\nallowed_hosts = ["box.example"]\nallowed_origins = ["https://app.example"]\n'
    )
    patiently(lambda: ask() == 401)
    key = {"X-API-Key": "a-new-secret"}
    client = settled.server.client
    assert client.get("/v2", headers={**key, "Host": "box.example"}).status_code == 200
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    assert client.options(PATH, headers=asks).status_code == 204
    settled.say("")
    patiently(lambda: ask() == 200)
    refused(client.options(PATH, headers=asks), 403, "forbidden")
    refused(client.get("/v2", headers={"Host": "box.example"}), 403, "forbidden")


def test_a_rate_that_is_set_counts_also_for_requests_that_are_known(settled: Settled) -> None:
    ask = known_head(settled)
    assert ask() == 200
    settled.say('rate_limit_model = "2/hour"\n')
    assert settled.reload()["applied"] == ["rate_limit_model"]
    assert ask() == 429
    settled.say("")
    settled.reload()
    assert ask() == 200


def test_a_rate_of_the_model_counts_also_for_requests_that_are_known(settled: Settled) -> None:
    ask = known_head(settled)
    assert ask() == 200
    toml = settled.server.models / "double" / "model.toml"
    toml.write_text('backend = "fake"\n[limits]\nrate = "2/hour"\n')
    patiently(lambda: ask() == 429)


def test_memory_and_queues(settled: Settled) -> None:
    def capacity() -> int:
        found: int = settled.status["memory"]["cpu"]["capacity"]
        return found

    settled.server.wait_for(lambda: settled.status["memory"].get("cpu", {}).get("known"))
    before = capacity()
    settled.say("cpu_memory_fraction = 0.0001\nqueue_timeout_ms = 200\nlog_level = 'debug'\n")
    assert settled.reload()["applied"] == ["log_level", "queue_timeout_ms", "cpu_memory_fraction"]
    assert capacity() < before
    settled.say("queue_timeout_ms = 200\n")
    settled.reload()
    client = settled.server.client
    client.post("/api/pause")
    refused(infer(settled.server, "double", entry([1], [1, 1])), 503, "paused")
    client.post("/api/resume")
    assert outputs(infer(settled.server, "double", entry([1], [1, 1]))) == {"y": [2]}


def test_requests_are_logged_as_the_setting_says(settled: Settled) -> None:
    file = settled.server.state / "logs" / "requests.log"

    def codes() -> list[str]:
        return [json.loads(line)["code"] for line in file.read_text().splitlines()] if file.exists() else []

    def three() -> None:
        assert known_head(settled)() == 200
        settled.server.client.post(PATH, json={"inputs": []})
        settled.server.client.post("/predict/nobody", content=b"x")

    three()
    patiently(lambda: codes() == ["invalid_input", "model_not_found"])
    settled.say('log_requests = "all"\n')
    assert settled.reload()["applied"] == ["log_requests"]
    three()
    patiently(lambda: len(codes()) == 7)
    assert codes()[2:5] == ["ok"] * 3
    settled.say('log_requests = "off"\n')
    settled.reload()
    three()
    settled.say('log_requests = "errors"\n')
    settled.reload()
    settled.server.client.post(PATH, json={"inputs": []})
    patiently(lambda: len(codes()) == 8)
    line = json.loads(file.read_text().splitlines()[2])
    assert (line["model"], line["version"], line["batch"], line["device"]) == ("double", "1", 1, "cpu")


def test_events_tell_of_it(settled: Settled) -> None:
    with settled.server.client.stream("GET", "/api/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: status"
        settled.say("queue_total = 7\nthreads = 2\n")
        settled.reload()
        while next(lines) != "event: settings":
            pass
        told = json.loads(next(lines).removeprefix("data: "))
    assert told == {"applied": ["queue_total"], "restart_needed": ["threads"], "faults": []}
