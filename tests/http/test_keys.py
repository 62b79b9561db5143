"""Keys with a running appliance: made, used and removed while it runs; what each scope opens."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.keys import KeyFile
from tests.http.conftest import fake
from tests.http.helpers import connect, entry, infer, outputs, patiently, read_answer, refused
from tests.support.server import ROOT, Server

Start = Callable[..., Server]
PATH = "/v2/models/double/infer"


def double(server: Server) -> None:
    fake(server, "double")


def command(server: Server, *args: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "appliance", "--port", "0", *args]
    return subprocess.run(line, cwd=ROOT, env=server.env, capture_output=True, text=True, timeout=60)


def make(server: Server, *args: str) -> str:
    done = command(server, "key", "create", *args)
    assert done.returncode == 0 and f"{server.url} has taken it up." in done.stderr, done.stderr
    return done.stdout.strip()


def code(server: Server, method: str, path: str, key: str | None = None, **more: Any) -> int:
    headers = {"X-API-Key": key} if key else {}
    return server.client.request(method, path, headers=headers, **more).status_code


def raw(key: str) -> bytes:
    """The bytes of a whole request: what comes a second time with the same head goes the shortest way."""
    body = json.dumps({"inputs": [entry([3], [1, 1])]}).encode()
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def statuses(sock: socket.socket, data: bytes, count: int) -> list[int]:
    found = []
    for _ in range(count):
        sock.sendall(data)
        found.append(read_answer(sock)[0])
    return found


def test_a_key_counts_from_when_it_is_made_to_when_it_is_removed(start: Start) -> None:
    server = start(double)
    assert code(server, "POST", "/api/pause") == code(server, "POST", "/api/resume") == 200
    key = make(server, "--name", "camera")
    refused(server.client.get("/v2"), 401, "unauthorized")
    with connect(server) as sock:
        assert statuses(sock, raw(key), 5) == [200] * 5  # its head is known by now
        assert command(server, "key", "remove", "camera").returncode == 0
        other = make(server)  # without any key it would need none
        assert statuses(sock, raw(key), 1) == [401]
    with connect(server) as sock:
        assert statuses(sock, raw(other), 3) == [200] * 3
    assert command(server, "key", "remove", "infer-1").returncode == 0
    assert outputs(infer(server, "double", entry([1], [1, 1]))) == {"y": [2]}  # all is open again


def test_a_key_that_is_written_or_deleted_by_hand_is_seen(start: Start) -> None:
    server = start(double)
    keys = KeyFile(server.state)
    _, secret = keys.create("infer")
    patiently(lambda: code(server, "GET", "/v2") == 401)
    assert code(server, "GET", "/v2", secret) == 200
    keys.path.write_text("damaged")
    patiently(lambda: "keys stay as they were: keys.json is damaged" in str(status(server)["notes"]))
    assert (code(server, "GET", "/v2"), code(server, "GET", "/v2", secret)) == (401, 200)
    keys.path.unlink()
    patiently(lambda: code(server, "GET", "/v2") == 200)
    assert status(server)["notes"] == []


def status(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.client.get("/api/status", headers={"X-API-Key": local(server)}).json()
    return found


def local(server: Server) -> str:
    return str(json.loads(server.port_file.read_text())["key"])


def test_what_the_scopes_open(start: Start) -> None:
    server = start(double)
    infer_key, admin = make(server, "--scope", "infer"), make(server, "--scope", "admin")
    body = {"inputs": [entry([1], [1, 1])]}
    for key in (infer_key, admin, local(server)):
        assert code(server, "POST", PATH, key, json=body) == 200
        assert code(server, "POST", "/predict/double", key, json={"inputs": {"x": [[1]]}}) == 200
        for path in ("/v2", "/api/status", "/api/history", "/metrics", "/docs", "/openapi.json"):
            assert code(server, "GET", path, key) == 200, path
        assert code(server, "POST", "/v2/repository/index", key) == 200
    steps = ["/api/pause", "/api/resume", "/api/settings/reload"]
    steps += [f"/v2/repository/models/double/{what}" for what in ("unload", "load")]
    steps += [f"/api/models/double/{what}" for what in ("pin", "unpin")]
    steps += ["/api/engine/restart"]
    for path in steps:
        answer = server.client.post(path, headers={"X-API-Key": infer_key})
        refused(answer, 403, "forbidden", "scope 'infer'", "'admin' is needed")
        assert code(server, "POST", path, admin) == 200, path
        assert code(server, "POST", path, "ia-wrong") == code(server, "POST", path) == 401
    assert code(server, "POST", "/api/models", infer_key) == code(server, "GET", "/nothing", infer_key) == 403
    assert code(server, "POST", "/api/shutdown", infer_key) == 403
    assert code(server, "GET", "/nothing", admin) == 404


def test_the_commands_of_the_same_user_go_on_working(start: Start) -> None:
    server = start(double)
    make(server)
    assert "double" in command(server, "status").stdout
    assert command(server, "pause").returncode == command(server, "resume").returncode == 0
    assert json.loads(command(server, "models", "show", "double", "--json").stdout)["name"] == "double"
    assert command(server, "stop").returncode == 0
    assert server.process is not None and server.process.wait(20) == 0


def test_the_local_key_is_new_with_each_start_and_for_its_user_only(start: Start) -> None:
    server = start(double)
    make(server)
    first = local(server)
    if sys.platform != "win32":
        assert server.port_file.stat().st_mode & 0o777 == 0o600
    server.stop()
    server.start(ready=False)
    assert local(server) != first
    assert (code(server, "GET", "/v2", first), code(server, "GET", "/v2", local(server))) == (401, 200)


def test_streams_end_when_keys_change(start: Start) -> None:
    server = start(double)
    key = make(server, "--name", "one")
    with server.client.stream("GET", "/api/events", headers={"X-API-Key": key}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: status"
        assert command(server, "key", "remove", "one").returncode == 0
        assert "event: settings" not in list(lines)  # it ends, and tells the stranger nothing more


def test_listening_for_others_needs_a_key_and_keeps_needing_one(tmp_path: Path) -> None:
    server = Server(tmp_path, host="0.0.0.0")  # noqa: S104 - with a key it may
    double(server)
    KeyFile(server.state).create("infer", "only")
    with server:
        refused(server.client.get("/v2"), 401, "unauthorized")
        assert command(server, "key", "remove", "only").returncode == 0
        refused(server.client.get("/v2"), 401, "unauthorized")  # others reach it still
        assert command(server, "status").returncode == 0


@pytest.mark.parametrize("text", ["{", '[{"name": "x"}]'])
def test_a_damaged_file_is_no_open_door(tmp_path: Path, text: str) -> None:
    server = Server(tmp_path)
    (server.state / "keys.json").write_text(text)
    with pytest.raises(AssertionError, match=r"keys\.json is damaged"):
        server.start()
    assert server.process is not None and server.process.wait(10) == 2
    server.client.close()
