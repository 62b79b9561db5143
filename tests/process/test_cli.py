"""The commands as a person or a script types them; importing the program does nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import appliance
from tests.process.helpers import ending, fake, launch
from tests.support import nets
from tests.support.server import ROOT, Server

COMMANDS = [
    (),
    ("run",),
    ("serve",),
    ("status",),
    ("pause",),
    ("resume",),
    ("stop",),
    ("selftest",),
    ("autostart", "on"),
    ("autostart", "off"),
    ("autostart", "status"),
    ("bench",),
    ("models", "list"),
    ("models", "show"),
    ("models", "add"),
    ("models", "remove"),
    ("models", "check"),
]


def call(env: dict[str, str], *arguments: str, program: tuple[str, ...] = ("-m", "appliance"), **more: Any) -> Any:
    """Run a command to its end; the finished process, with its output as text."""
    options = {"cwd": ROOT, "env": env, "capture_output": True, "text": True, "timeout": 120, **more}
    done = subprocess.run([sys.executable, *program, *arguments], check=False, **options)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_help_has_an_example_of_every_command() -> None:
    """In one process: a dozen starts would only measure the interpreter."""
    script = (
        "import sys\n"
        "from appliance.cli import app\n"
        f"for command in {COMMANDS!r}:\n"
        "    print('>>>', *command)\n"
        "    try:\n"
        "        app([*command, '--help'], prog_name='appliance')\n"
        "    except SystemExit as end:\n"
        "        assert not end.code\n"
    )
    done = call(dict(os.environ), script, program=("-c",))
    parts = done.stdout.split(">>>")[1:]
    assert len(parts) == len(COMMANDS), done.stderr
    for command, text in zip(COMMANDS, parts, strict=True):
        assert "Example:  " + " ".join(("appliance", *command)) in text, text
        if not command:
            assert not [line for line in text.splitlines() if line.strip(" │").startswith("engine")]


def test_without_a_running_appliance(folder: Path) -> None:
    server = Server(folder)
    server.client.close()
    env = server.env
    source = nets.scale(folder / "elsewhere/zoom.onnx")

    for command in ("status", "pause", "resume"):
        done = call(env, command)
        assert done.returncode == 1 and "not running" in done.stdout

    done = call(env, "models", "add", str(source))
    assert done.returncode == 0 and (server.models / "zoom/model.onnx").is_file()
    done = call(env, "models", "add", str(source))
    assert done.returncode == 1 and "already" in done.stdout
    done = call(env, "models", "add", str(source), "--name", "second")
    assert done.returncode == 0

    done = call(env, "models", "list", "--json")
    assert [(m["name"], m["versions"], m["error"]) for m in json.loads(done.stdout)] == [
        ("second", ["1"], None),
        ("zoom", ["1"], None),
    ]
    done = call(env, "models", "remove", "second", input="n\n")
    assert done.returncode != 0 and (server.models / "second").is_dir()
    done = call(env, "models", "remove", "second", "--yes")
    assert done.returncode == 0 and not (server.models / "second").exists()

    done = call(env, "models", "show", "zoom")
    assert done.returncode == 0 and "FP32[-1,4]" in done.stdout and "up to 16" in done.stdout


def test_check(folder: Path) -> None:
    server = Server(folder)
    server.client.close()
    nets.scale(server.models / "good/1/model.onnx")
    fake(server.models, "deadly", load_crash=True)
    fake(server.models, "moody", load_error="not today")
    nets.scale(server.models / "last/1/model.onnx")
    done = call(server.env, "models", "check", "--json")
    assert done.returncode == 1
    errors = {row["name"]: row["error"] for row in json.loads(done.stdout)}
    assert errors == {"good": None, "deadly": "it ends the engine process", "moody": "not today", "last": None}

    done = call(server.env, "models", "check", "good", str(server.models / "last"), "nothing")
    assert done.returncode == 1 and "no such model" in done.stdout
    assert done.stdout.count("fine") == 2


def test_with_a_running_appliance(folder: Path) -> None:
    nets.scale(folder / "models/scale/1/model.onnx")
    fake(folder / "models", "moody", load_error="not [today]")
    with Server(folder) as server:
        done = call(server.env, "status")
        assert done.returncode == 0
        assert server.url in done.stdout and "restarts: 0" in done.stdout and "scale" in done.stdout
        done = call(server.env, "models", "list", "--json")
        rows = {row["name"]: row for row in json.loads(done.stdout)}
        assert rows["scale"]["ready"] and rows["moody"]["error"] == "not [today]"
        for command, paused in (("pause", True), ("pause", True), ("resume", False)):
            assert call(server.env, command).returncode == 0
            assert server.status()["queue"]["paused"] is paused
        done = call({**server.env, "COLUMNS": "200"}, "models", "list")
        assert "READY" in done.stdout and "not [today]" in done.stdout
        done = call(server.env, "models", "show", "scale")
        assert done.returncode == 0 and "FP32[-1, 4]" in done.stdout and "max_batch" in done.stdout
        # What the command puts into the folder, the running appliance serves.
        done = call(server.env, "models", "add", str(folder / "models/scale"), "--name", "again")
        assert done.returncode == 0
        server.wait_for(lambda: server.index().get(("again", "1"), {}).get("state") == "READY", 20, "again")
        done = call(server.env, "models", "remove", "again", "--yes")
        server.wait_for(lambda: ("again", "1") not in server.index(), 20, "its removal")


def test_main_py_is_the_same_program(folder: Path) -> None:
    """From any folder, without being installed; the engine it starts is found too."""
    nets.scale(folder / "models/scale.onnx")
    (folder / "cwd").mkdir()
    # A program's folder is no place to import from, whatever lies in it.
    (folder / "cwd/onnxruntime.py").write_text("raise SystemExit('imported from the current folder')\n")
    server = Server(folder)
    done = call(server.env, "--version", program=(str(ROOT / "main.py"),), cwd=folder / "cwd")
    assert done.stdout.strip() == appliance.__version__
    with ending(server):
        launch(server, str(ROOT / "main.py"), "serve", cwd=folder / "cwd")
        server.wait_ready(30)
        assert server.index()["scale", "1"]["state"] == "READY"


def test_the_commands_start_light() -> None:
    """What ``--version`` and ``--help`` pay for: no web framework, no arrays, no model code."""
    script = (
        "import sys, appliance, appliance.cli\n"
        "heavy = ['numpy', 'fastapi', 'uvicorn', 'pydantic', 'msgspec', 'httpx', 'PIL', 'structlog', 'onnxruntime']\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert call(dict(os.environ), script, program=("-c",)).stdout.strip() == "[]"
