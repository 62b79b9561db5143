"""The commands with a list of devices: each has to take one where it once was one device."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.tray.menu import items
from appliance.tray.state import from_status
from tests.process.helpers import fake
from tests.process.test_cli import call
from tests.support import nets
from tests.support.server import Server

TWO = "cpu:0,cpu:1"


@pytest.fixture
def env(folder: Path) -> Callable[[str], dict[str, str]]:
    """env(device): the variables for commands in folders of their own."""

    def make(device: str) -> dict[str, str]:
        server = Server(folder, device=device)
        server.client.close()
        return server.env

    return make


def errors(env: dict[str, str]) -> dict[str, str | None]:
    return {row["name"]: row["error"] for row in json.loads(call(env, "models", "check", "--json").stdout)}


def test_models_are_checked_where_they_would_live(folder: Path, env: Callable[[str], dict[str, str]]) -> None:
    nets.scale(folder / "models/any/1/model.onnx")
    fake(folder / "models", "both", 'devices = ["all"]')
    fake(folder / "models", "far", 'devices = ["cuda:7"]')
    fake(folder / "models", "deadly", load_crash=True)
    assert errors(env(TWO)) == {
        "any": None,
        "both": None,
        "deadly": "it ends the engine process",
        "far": "model.toml line 2: devices: 'cuda:7' is not used here (used: cpu:0, cpu:1; see the setting 'device')",
    }
    told = call(env("cuda:0,cuda:1"), "models", "check", "any").stdout
    assert "fine, cpu" in told, "no card is here"
    assert "CUDA" in told.partition("requests merged")[2], "and it says so"


def test_each_family_of_backends_is_checked_in_an_engine_of_its_own(
    folder: Path, env: Callable[[str], dict[str, str]]
) -> None:
    """PyTorch and ONNX Runtime never share a process; the end of one engine leaves the other's models well."""
    torch_nets = pytest.importorskip("tests.support.torch_nets", reason="PyTorch (extra `torch`) is not installed")
    for name in ("a", "c"):
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        torch_nets.export(version / "model.pt2")
    nets.scale(folder / "models/d/1/model.onnx")
    fake(folder / "models", "b", load_crash=True)
    assert errors(env(TWO)) == {"a": None, "b": "it ends the engine process", "c": None, "d": None}


def test_doctor_selftest_and_bench_take_a_list(folder: Path, env: Callable[[str], dict[str, str]]) -> None:
    nets.scale(folder / "models/scale/1/model.onnx")
    done = call(env(TWO), "doctor", "--json")
    assert done.returncode == 0, done.stdout
    checks = json.loads(done.stdout)["checks"]
    assert [c["check"] for c in checks if c["verdict"] == "failed"] == []
    done = call(env("cpu:0, cuda:1"), "doctor")
    assert done.returncode == 1 and "and device is cpu:0, cuda:1" in " ".join(done.stdout.split())
    shutil.rmtree(folder / "state")
    done = call(env(TWO), "selftest")
    assert done.returncode == 0, done.stdout
    told = " ".join(done.stdout.split())
    assert "device cpu:0, cpu:1 (" in told and "(unknown)" not in told
    assert "asked for: cpu:0,cpu:1: as the setting says" in told
    assert "server and 2 engines ended in" in told
    done = call(env(TWO), "bench", "scale", "--own", "--seconds", "1", "--clients", "1")
    assert done.returncode == 0, done.stdout
    assert "scale on cpu:" in done.stdout


def test_a_running_one_names_each_engine_and_the_tray_each_device(folder: Path) -> None:
    nets.scale(folder / "models/one/1/model.onnx")
    nets.scale(folder / "models/two/1/model.onnx")
    with Server(folder, device=TWO) as server:
        told = call(server.env, "status").stdout
        status = server.status()
        for engine in status["engines"]:
            assert f"engine {engine['id']}" in told and f"pid {engine['pid']}" in told
        state = from_status(status, server.url)
        assert [device.id for device in state.devices] == ["cpu:0", "cpu:1"]
        lines = {item.text: item for item in items(state)}
        assert "Ready: cpu:0, cpu:1" in lines and "Asked for by the setting device = cpu:0,cpu:1" in lines
        (second,) = [item for text, item in lines.items() if text.startswith("cpu:1 ")]
        assert " GiB" in second.text
        assert [one.text for one in second.items][-1] == "cpu:1: engine ready"
        os.kill(status["engines"][1]["pid"], signal.SIGKILL)
        server.wait_for(lambda: server.status()["engines"][1]["restarts"] == 1, what="the restart")
        again = from_status(server.status(), server.url)
        assert again.engine_last_end is not None and again.engine_last_end.startswith("cpu:1: ")
