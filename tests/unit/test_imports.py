"""Importing is free: no runtime, no environment, no logging, no files, no threads."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import builtins, json, logging, os, pkgutil, sys, threading
asked = []
original = os.environ.__class__.__getitem__
def note(self, name):
    asked.append(name)
    return original(self, name)
os.environ.__class__.__getitem__ = note
import wsgiref.handlers  # the standard library's own look at the environment is none of ours
asked.clear()
import appliance
names = [m.name for m in pkgutil.walk_packages(appliance.__path__, "appliance.")]
names = [n for n in names if not n.startswith(SKIPPED) and not n.endswith("__main__")]
for name in names:
    __import__(name)
print(json.dumps({
    "imported": len(names),
    "heavy": sorted({m.partition(".")[0] for m in sys.modules} & {"onnxruntime", "torch", "tensorflow", "cv2"}),
    "settings": sorted({n for n in asked if n.startswith("APPLIANCE_")}),
    "handlers": len(logging.getLogger().handlers),
    "threads": threading.active_count(),
}))
"""
BACKENDS = ("appliance.backends.onnx", "appliance.backends.pytorch", "appliance.backends.genai")


def test_importing_is_free() -> None:
    program = PROGRAM.replace("SKIPPED", repr(BACKENDS))
    env = {"APPLIANCE_PORT": "not a number", "PATH": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert found.pop("imported") > 80
    assert found == {"heavy": [], "settings": [], "handlers": 0, "threads": 1}


@pytest.mark.parametrize("module", ["main", "appliance", "appliance.engine.worker", "appliance.cli"])
def test_an_entry_point_brings_no_runtime(module: str) -> None:
    program = f"import sys, {module}; print('onnxruntime' in sys.modules or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60)
    assert done.stdout.strip() == b"False", done.stderr.decode()
