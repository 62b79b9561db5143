"""What this machine has of what the checks need. Each runtime is looked at in a process of its own: the libraries of
CUDA that they bring break each other in one. Only the standard library is imported here."""

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0

_TORCH = """
import json, torch
told = {"version": torch.__version__, "cuda": torch.version.cuda, "devices": [], "why": None}
try:
    torch.cuda.init()
    for n in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(n)
        told["devices"].append({"name": p.name, "total": p.total_memory, "capability": f"{p.major}.{p.minor}"})
except (RuntimeError, AssertionError) as error:
    told["why"] = str(error).splitlines()[0]
print(json.dumps(told))
"""
_ONNX = """
import json, onnxruntime as ort
print(json.dumps({"version": ort.__version__, "providers": ort.get_available_providers()}))
"""
_GENAI = """
import json, onnxruntime_genai as og
print(json.dumps({"version": og.__version__, "cuda": og.is_cuda_available()}))
"""


class Runtime(NamedTuple):
    """``told``: what it says of itself, empty where it cannot be had, and then ``why``."""

    told: dict[str, Any]
    why: str = ""


class Machine(NamedTuple):
    torch: Runtime
    onnx: Runtime
    genai: Runtime


def look() -> Machine:
    return Machine(_ask("torch", _TORCH), _ask("onnxruntime", _ONNX), _ask("onnxruntime_genai", _GENAI))


def missing() -> list[str]:
    """The appliance's dependencies that are not installed, as its project file names them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [name for name in map(_name, project["dependencies"]) if name and not _installed(name)]


def fault() -> str | None:
    """Why the appliance, and with it the checks, cannot be started here at all, or None."""
    command = [sys.executable, "-c", "import appliance.cli, appliance.app, httpx, numpy, psutil, rich"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]


def _name(requirement: str) -> str:
    """The distribution's name; "" for one that is not for this system."""
    wanted, _, marker = requirement.partition(";")
    if "sys_platform != 'win32'" in marker and sys.platform == "win32":
        return ""
    found = re.match(r"[\w.-]+", wanted.strip())
    return found[0] if found else ""


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _ask(package: str, code: str) -> Runtime:
    command = [sys.executable, "-W", "ignore", "-c", code]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Runtime({}, f"{package} was not imported within {LIMIT_S:g} s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return Runtime({}, f"{package} is not installed" if "No module named" in last else f"{package}: {last}"[:200])
    return Runtime(json.loads(done.stdout.splitlines()[-1]))
