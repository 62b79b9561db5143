"""``appliance doctor`` and ``GET /api/doctor``: on this machine, alone and beside a running appliance."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ROOT, Server


def call(env: dict[str, str], *arguments: str) -> Any:
    command = [sys.executable, "-m", "appliance", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=150, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with folders of its own, for a build that is told to use the CPU."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
    (tmp_path / "tmp").mkdir()
    return env | {
        "APPLIANCE_STATE": str(tmp_path / "state"),
        "APPLIANCE_MODELS": str(tmp_path / "models"),
        "APPLIANCE_DEVICE": "cpu",
        "APPLIANCE_PORT": "0",
        "TMPDIR": str(tmp_path / "tmp"),
    }


def lines(found: dict[str, Any], check: str) -> list[dict[str, str]]:
    return [line for line in found["checks"] if line["check"] == check]


def test_alone(home: dict[str, str], tmp_path: Path) -> None:
    """The model of one node really runs; nothing is left."""
    done = call(home, "doctor", "--json")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    assert found["passed"] is True
    assert all(line["verdict"] != "failed" for line in found["checks"])
    cpu, *_ = lines(found, "provider")
    assert cpu["found"].startswith("CPUExecutionProvider ran a model of one node on cpu in ")
    assert {line["found"].partition(":")[0] for line in lines(found, "folder")} == {"state", "logs", "models"}
    assert lines(found, "port") == [{"check": "port", "verdict": "ok", "found": "a free one is taken", "cure": ""}]
    assert not (tmp_path / "state").exists() and not (tmp_path / "models").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_without_a_terminal_it_is_plain_text(home: dict[str, str]) -> None:
    done = call(home, "doctor")
    assert done.returncode == 0
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("ok       system       ") and last.startswith("passed: ok ")
    assert "\x1b" not in done.stdout


def test_what_is_wrong_here(home: dict[str, str], tmp_path: Path) -> None:
    """A port that another program has, a folder that cannot be written, CUDA that this build has not."""
    (tmp_path / "models").write_text("in the way")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {**home, "APPLIANCE_PORT": str(port)}
        done = call(env, "--device", "cuda", "doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["passed"] is False
    (held,) = lines(found, "port")
    assert held["verdict"] == "failed" and f"held by {_name()} (pid {os.getpid()})" in held["found"]
    assert [line["verdict"] for line in lines(found, "folder")] == ["ok", "ok", "failed"]
    assert "failed" in [line["verdict"] for line in lines(found, "provider")]


def _name() -> str:
    import psutil

    return psutil.Process().name()


def test_settings_that_cannot_be_read(home: dict[str, str]) -> None:
    done = call({**home, "APPLIANCE_THREADS": "many"}, "doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    (line,) = lines(found, "settings")
    assert line["verdict"] == "failed" and "threads" in line["found"]
    assert lines(found, "provider")


def test_beside_a_running_appliance(embedded: Server) -> None:
    """By the command and by HTTP; the running one does not notice."""
    pid = embedded.engine_pid
    done = call(embedded.env, "doctor", "--json")
    assert done.returncode == 0, done.stdout
    by_http = embedded.client.get("/api/doctor", timeout=120)
    assert by_http.status_code == 200
    process = embedded.process
    assert process is not None
    for found in (json.loads(done.stdout), by_http.json()):
        assert set(found) == {"version", "started", "seconds", "passed", "checks"}
        (port,) = lines(found, "port")
        words = f"the appliance that runs has it ({embedded.url}, pid {process.pid})"
        assert port["verdict"] == "ok" and words in port["found"]
        assert lines(found, "provider")[0]["verdict"] == "ok"
    # Whoever asks again at once is given the same.
    assert embedded.client.get("/api/doctor").json() == by_http.json()
    assert embedded.engine_pid == pid and embedded.status()["engine"]["restarts"] == 0


def test_a_probe_alone_is_refused() -> None:
    done = call(dict(os.environ), "doctor-probe")
    assert done.returncode == 2 and "started by the host process only" in done.stderr
