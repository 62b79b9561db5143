"""``appliance selftest`` and ``appliance autostart`` as a person or a script types them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ROOT, Server

CHECKS = [
    "settings",
    "streams",
    "folders",
    "paths",
    "autostart",
    "libraries",
    "engine",
    "server",
    "classify",
    "detect",
    "segment",
    "ocr",
    "tensors",
    "long path",
    "device",
    "port file",
    "instance",
    "tray",
    "stop",
]
WINDOWED = "import sys; sys.stdin = sys.stdout = sys.stderr = None; from appliance.cli import main; main()"


def call(env: dict[str, str], *arguments: str, program: tuple[str, ...] = ("-m", "appliance")) -> Any:
    """Run a command to its end, in a session without a display."""
    env = {name: value for name, value in env.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    command = [sys.executable, *program, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment with a home of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
    return env | {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "APPLIANCE_STATE": str(tmp_path / "state"),
        "APPLIANCE_MODELS": str(tmp_path / "models"),
        "TMPDIR": str(tmp_path / "tmp"),
        "APPLIANCE_DEVICE": "cpu",
    }


def test_beside_a_running_appliance(embedded: Server, tmp_path: Path, home: dict[str, str]) -> None:
    """All is well, and the running one does not notice."""
    (tmp_path / "tmp").mkdir()
    pid, said = embedded.engine_pid, embedded.port_file.read_bytes()
    env = {**home, "APPLIANCE_STATE": str(embedded.state), "APPLIANCE_PORT": "0"}
    done = call(env, "selftest", "--json", "--report", str(tmp_path / "report"))
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert [line["check"] for line in found["checks"]] == CHECKS
    verdicts = {line["check"]: line["verdict"] for line in found["checks"]}
    assert verdicts.pop("tray") == "warning"  # there is no display
    assert set(verdicts.values()) == {"ok"}, found["checks"]
    assert found["passed"] is True and found["logs"] == {} and found["frozen"] is False
    words = {line["check"]: line["found"] for line in found["checks"]}
    assert "Egyptian cat" in words["classify"] and "The answer is ready" in words["ocr"]
    assert "DISPLAY" in words["tray"]
    # The same in files, and one line a check for the person who waits.
    assert json.loads((tmp_path / "report/selftest.json").read_text("utf-8")) == found
    text = (tmp_path / "report/selftest.txt").read_text("utf-8")
    for check in CHECKS:
        assert f" {check} " in text and f" {check} " in done.stderr
    assert text.rstrip().splitlines()[-1].startswith("passed: ok 18, warning 1, failed 0")
    # Nothing is left, and nobody was disturbed.
    assert not list((tmp_path / "tmp").glob("appliance*"))
    assert not list((tmp_path / "config").rglob("*.desktop"))
    assert embedded.engine_pid == pid and embedded.status()["engine"]["restarts"] == 0
    assert embedded.port_file.read_bytes() == said
    assert embedded.client.get("/ready").status_code == 200


def test_where_something_is_wrong(tmp_path: Path, home: dict[str, str]) -> None:
    """A state folder that cannot be written and a setting that cannot be read: told, and all else is looked at."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "state").write_text("in the way")
    done = call(home, "selftest", "--report", str(tmp_path / "state"))
    assert done.returncode == 1
    assert f"the report cannot be written to {tmp_path / 'state'}" in done.stdout
    lines = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines() if line[:1] in "owf"}
    assert lines["folders"] == "failed" and lines["classify"] == lines["stop"] == "ok"
    assert "FAILED: ok 17, warning 1, failed 1" in done.stdout
    (tmp_path / "state").unlink()
    done = call({**home, "APPLIANCE_PORT": "none"}, "selftest", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert {c["check"] for c in found["checks"] if c["verdict"] == "failed"} == {"settings"}
    assert "port" in found["checks"][0]["found"]


def test_without_a_console(tmp_path: Path, home: dict[str, str]) -> None:
    """What the windowed program does: the report is a file."""
    (tmp_path / "tmp").mkdir()
    done = call(home, "selftest", program=("-c", WINDOWED))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = json.loads((tmp_path / "state/selftest/selftest.json").read_text("utf-8"))
    assert found["console"] is False
    assert found["checks"][1]["found"] == "stdin, stdout, stderr: None (a windowed program)"
    assert (tmp_path / "state/selftest/selftest.txt").exists()
    done = call(home, "models", "remove", "yolo", program=("-c", WINDOWED))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    assert "there is nobody to ask" in (tmp_path / "state/logs/appliance.log").read_text("utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="about Linux desktops")
def test_autostart(tmp_path: Path, home: dict[str, str]) -> None:
    file = tmp_path / "config/autostart/inference-appliance.desktop"
    done = call(home, "autostart", "status")
    assert (done.returncode, done.stdout) == (1, "start at login: off\n")
    done = call(home, "autostart", "on")
    assert done.returncode == 0 and done.stdout.startswith("start at login: on (") and file.exists()
    assert call(home, "autostart", "status").returncode == 0
    file.write_text("[Desktop Entry]\nType=Application\nExec=/old/appliance run\n")
    done = call(home, "autostart", "status")
    assert done.returncode == 0 and "that is another copy" in done.stdout
    done = call(home, "autostart", "off")
    assert (done.returncode, done.stdout) == (0, "start at login: off\n") and not file.exists()
    file.parent.rmdir()
    file.parent.write_text("in the way")
    done = call(home, "autostart", "on")
    assert done.returncode == 1 and "cannot be written" in done.stdout
