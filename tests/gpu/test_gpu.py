"""The script on this machine's GPU; and that it works at all, on the CPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import ROOT


def _no_gpu() -> str | None:
    """Why there is none to be had, by the driver's own word."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"no NVIDIA driver ({error})"
    return None if count else "no NVIDIA GPU"


def _run(*arguments: str, limit_s: float) -> None:
    command = [sys.executable, "-m", "tests.gpu", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode == 2:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.timeout(600)
def test_on_the_gpu() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch (extra `torch`) is not installed")
    if why := _no_gpu():
        pytest.skip(why)
    _run(limit_s=590)


@pytest.mark.timeout(120)
def test_the_script_goes_through_on_the_cpu(tmp_path: Path) -> None:
    """The group in which an engine dies: each request but the one that did it gets its answer."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch (extra `torch`) is not installed")
    _run("--device", "cpu", "--only", "death", "--out", str(tmp_path), limit_s=110)
    rows = {row["check"]: row["verdict"] for row in json.loads((tmp_path / "rows.json").read_text())}
    assert rows["engine killed: nothing else is lost"] == "ok"
