"""One appliance per port and user; settings from all their places; a start that cannot work says why."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.process.helpers import answer, ending, infer
from tests.support import nets
from tests.support.server import ROOT, Server


def start(server: Server, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A start that is expected to end by itself, with the folders of ``server``."""
    command = [sys.executable, "-m", "appliance", "serve", *more]
    return subprocess.run(command, cwd=ROOT, env={**server.env, **env}, capture_output=True, text=True, timeout=60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_second_start_finds_the_first(folder: Path) -> None:
    port = free_port()
    server = Server(folder, port=port)
    with ending(server):
        server.start(ready=False)
        assert server.process is not None
        said = json.loads(server.port_file.read_text())
        assert said["url"] == server.url == f"http://127.0.0.1:{port}"
        assert (said["host"], said["port"], said["pid"]) == ("127.0.0.1", port, server.process.pid)
        assert said["version"] and said["started"] > 0
        assert server.port_file.stat().st_mode & 0o077 == 0
        second = start(server)
        assert second.returncode == 0
        assert second.stdout == f"the appliance is running already: {server.url} (process {said['pid']})\n"
        # Of another user: the state folder is another one, so only the port tells.
        other = start(server, APPLIANCE_STATE=str(folder / "other"))
        assert other.returncode == 0 and f"running already: {server.url}" in other.stdout
        assert server.client.get("/health").status_code == 200
        assert json.loads(server.port_file.read_text()) == said


def test_of_two_starts_at_once_one_wins(folder: Path) -> None:
    server = Server(folder, port=free_port())
    command = [sys.executable, "-m", "appliance", "serve"]
    starts = [
        subprocess.Popen(command, cwd=ROOT, env=server.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(3)
    ]
    try:
        server.wait_for(server.port_file.exists, 30, "the first")
        server.wait_for(lambda: sum(one.poll() is not None for one in starts) == 2, 30, "the others")
        lost = [one for one in starts if one.poll() is not None]
        assert [one.returncode for one in lost] == [0, 0]
        assert all(b"running already" in one.stdout.read() for one in lost if one.stdout)
    finally:
        server.client.close()
        for one in starts:
            one.terminate()
            one.wait(15)
            assert one.stdout is not None
            one.stdout.close()


def test_a_foreign_program_on_the_port(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        port = foreign.getsockname()[1]
        server = Server(folder, port=port)
        server.client.close()
        done = start(server)
        assert done.returncode == 1
        assert f"port {port}" in done.stdout
        assert f"pid {os.getpid()}" in done.stdout
        assert "--port" in done.stdout
        assert "Traceback" not in done.stdout + done.stderr
        assert not server.port_file.exists()


def test_what_a_killed_one_leaves_behind_is_no_hindrance(folder: Path) -> None:
    nets.scale(folder / "models/scale.onnx")
    server = Server(folder, port=free_port())
    server.start(ready=False)
    assert server.process is not None
    first = server.process.pid
    server.process.kill()
    server.process.wait()
    assert server.port_file.exists()
    status = subprocess.run(
        [sys.executable, "-m", "appliance", "status"], cwd=ROOT, env=server.env, capture_output=True, text=True
    )
    assert status.returncode == 1 and "not running" in status.stdout
    with ending(server):
        server.start(ready=False)
        server.wait_for(lambda: json.loads(server.port_file.read_text())["pid"] != first, 30, "the new port file")
        server.wait_ready()
        assert answer(infer(server.client, "scale", 1)) == [2.0] * 4


def test_a_state_folder_that_cannot_be_written(folder: Path) -> None:
    """A file lies in its place: no logs, no port file, but it serves and tells of it."""
    nets.scale(folder / "models/scale.onnx")
    port = free_port()
    server = Server(folder, port=port, state=folder / "file")
    (folder / "file").write_text("in the way")
    server.url = f"http://127.0.0.1:{port}"
    server.client.base_url = httpx.URL(server.url)
    with server.log.open("wb") as out:
        server.process = subprocess.Popen(
            [sys.executable, "-m", "appliance", "serve"], cwd=ROOT, env=server.env, stdout=out, stderr=out
        )
    try:
        server.wait_ready()
        assert answer(infer(server.client, "scale", 1)) == [2.0] * 4
        notes = " ".join(server.status()["notes"])
        assert "log folder" in notes and "port file" in notes
        assert str(folder) not in notes
        assert "the state folder cannot be written" in server.log.read_text()
    finally:
        assert server.stop(signal.SIGTERM) == 0
        server.client.close()


def test_other_machines_need_a_key(folder: Path) -> None:
    server = Server(folder)
    server.client.close()
    done = start(server, "--host", "0.0.0.0")  # noqa: S104 - refused, which is the point
    assert done.returncode == 2
    assert "api_key" in done.stdout + done.stderr and "APPLIANCE_API_KEY" in done.stdout + done.stderr
    assert not server.port_file.exists()


@pytest.mark.parametrize(
    ("more", "env", "words"),
    [
        (["--port", "70000"], {}, ["port", "65535"]),
        (["--device", "gpu"], {}, ["device"]),
        ([], {"APPLIANCE_LOG_LEVEL": "loud"}, ["log_level", "debug"]),
        ([], {"APPLIANCE_QUEUE_TOTAL": "many"}, ["queue_total", "integer"]),
        ([], {"APPLIANCE_ALLOWED_HOSTS": "not json"}, ["allowed_hosts"]),
    ],
)
def test_wrong_settings(folder: Path, more: list[str], env: dict[str, str], words: list[str]) -> None:
    server = Server(folder)
    server.client.close()
    done = start(server, *more, **env)
    assert done.returncode == 2, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [("port = \n", ["settings.toml", "line 1"]), ("prot = 1\n", ["prot"]), ("port = 'x'\n", ["port", "integer"])],
)
def test_wrong_settings_file(folder: Path, text: str, words: list[str]) -> None:
    server = Server(folder)
    server.client.close()
    del server.env["APPLIANCE_PORT"]
    file = folder / "config/inference-appliance/settings.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    done = start(server, XDG_CONFIG_HOME=str(folder / "config"))
    assert done.returncode == 2, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_the_stronger_place_wins(folder: Path) -> None:
    """Built-in < the machine's file < the user's file < environment < flags."""
    places = {"system": folder / "xdg/inference-appliance", "user": folder / "config/inference-appliance"}
    for place in places.values():
        place.mkdir(parents=True)
    (places["system"] / "settings.toml").write_text(
        "queue_total = 11\nqueue_per_model = 11\nmax_batch = 11\nmax_items = 11\n"
    )
    (places["user"] / "settings.toml").write_text("queue_per_model = 12\nmax_batch = 12\nmax_items = 12\nport = 12\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
    env |= {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_CONFIG_DIRS": str(folder / "xdg")}
    env |= {"APPLIANCE_MAX_BATCH": "13", "APPLIANCE_MAX_ITEMS": "13", "APPLIANCE_PORT": "13"}
    show = (
        "from appliance.settings import load; s = load(port=14, host=None);"
        "print(s.max_pixels, s.queue_total, s.queue_per_model, s.max_batch, s.port, s.host)"
    )
    done = subprocess.run([sys.executable, "-c", show], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["50000000", "11", "12", "13", "14", "127.0.0.1"], done.stderr


def test_without_a_display_it_goes_on_headless(folder: Path) -> None:
    server = Server(folder, command="run")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        server.env.pop(name, None)
    with server:
        server.wait_for(lambda: "no tray icon" in server.log.read_text(), 20, "the line")
        told = [line for line in server.log.read_text().splitlines() if "tray" in line]
        assert len(told) == 1 and "going on without one" in told[0]
        assert server.client.get("/health").status_code == 200
