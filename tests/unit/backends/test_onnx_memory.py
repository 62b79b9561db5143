"""A real allocation failure: ONNX Runtime's CPU arena with a maximum, which is one for all of a process."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.server import ROOT

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
import onnxruntime as ort
from onnx import TensorProto as T, helper as h
from appliance.backends.base import LoadRequest
from appliance.backends.onnx import OnnxBackend
from appliance.errors import ApplianceError
from appliance.models.spec import ModelConfig
from tests.support import nets

MIB = 1 << 20
arena = ort.OrtArenaCfg({"max_mem": 64 * MIB, "arena_extend_strategy": 1})
cpu = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
ort.create_and_register_allocator(cpu, arena)
real = ort.InferenceSession

def bounded(path, options, **more):
    options.add_session_config_entry("session.use_env_allocators", "1")
    return real(path, options, **more)

ort.InferenceSession = bounded
file = nets.save(
    Path(sys.argv[1]) / "m.onnx",
    [h.make_node("Exp", ["x"], ["a"]), h.make_node("Log", ["a"], ["y"])],
    [("x", T.FLOAT, ["N", 1024])], [("y", T.FLOAT, ["N", 1024])],
)
session = OnnxBackend().open(LoadRequest("m", file, file.parent, "cpu", 1, ModelConfig()))
told = []
for mib in (1, 4, 100, 4, 100, 8):
    x = np.full((mib * 256, 1024), 0.5, np.float32)
    try:
        (y,) = session.run({"x": x}, ["y"], session.cancellation())
        told.append("right" if np.allclose(x, y, atol=1e-3) else "wrong")
    except ApplianceError as error:
        told.append([error.code, error.message])
print(json.dumps(told))
"""


def test_a_run_that_runs_out_is_told_as_such_and_smaller_ones_go_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [told[n] for n in (0, 1, 3, 5)] == ["right"] * 4
    for code, message in (told[2], told[4]):
        assert code == "insufficient_memory", message
        assert message.startswith("not enough memory for this run: ")
        assert ".cc" not in message and str(tmp_path) not in message, message
