"""A real speech detector in two formats: PyTorch and ONNX Runtime give the same over a whole recording.

The TorchScript file keeps its state in itself, which is refused; the part of it that takes the state and gives it
back is served, and the client carries the state, as with the ONNX file.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance import backends
from appliance.backends.base import LoadRequest
from appliance.errors import ModelLoadError
from appliance.models.spec import ModelConfig, PyTorchConfig, TensorSpec
from appliance.models.tensors import Array
from tests.support import torch_nets  # noqa: F401 - without PyTorch this file is skipped

RATE, CHUNK, CONTEXT = 16000, 512, 64
FOLDER = Path(os.environ.get("APPLIANCE_TEST_MODELS", "")) / "vad"

pytestmark = pytest.mark.skipif(
    not (FOLDER / "silero_vad.jit").is_file(), reason="the folder APPLIANCE_TEST_MODELS has no vad/silero_vad.jit"
)

INPUTS = TensorSpec("x", "FP32", (-1, CHUNK + CONTEXT)), TensorSpec("state", "FP32", (2, -1, 128))
OUTPUTS = TensorSpec("output", "FP32", (-1, 1)), TensorSpec("stateN", "FP32", (2, -1, 128))


def opened(backend: str, name: str, **options: Any) -> Any:
    path = FOLDER / name
    specs = (INPUTS, OUTPUTS) if backend == "pytorch" else ((), ())
    config = ModelConfig(pytorch=PyTorchConfig(**options))
    request = LoadRequest("vad", path, path.parent, "cpu", 1, config, inputs=specs[0], outputs=specs[1])
    return backends.get(backend).open(request)


def recording() -> Array:
    """12 s: noise all through; hums of a voice's pitch with its overtones in bursts of syllables, and pauses."""
    r = np.random.default_rng(7)
    t = np.arange(12 * RATE) / RATE
    pitch = 2 * np.pi * np.cumsum(120 + 25 * np.sin(2 * np.pi * 0.7 * t)) / RATE
    voice = sum(np.sin(n * pitch) / n for n in range(1, 25))
    syllables = np.clip(np.sin(2 * np.pi * 3.1 * t), 0, 1) * (np.sin(2 * np.pi * 0.21 * t) > 0)
    sound = 0.25 * voice * syllables + 0.01 * r.standard_normal(t.size)
    return np.asarray(sound, np.float32)


def heard(session: Any, sound: Array, names: dict[str, str], **more: Array) -> list[float]:
    """The probability of speech of each chunk; state and context are the client's."""
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros((1, CONTEXT), np.float32)
    found = []
    for at in range(0, len(sound) - CHUNK + 1, CHUNK):
        x = np.concatenate([context, sound[None, at : at + CHUNK]], axis=1)
        inputs = {names["x"]: x, "state": state, **more}
        speech, state = session.run(inputs, ["output", "stateN"], session.cancellation())
        context = x[:, -CONTEXT:]
        found.append(float(speech[0, 0]))
    return found


def test_both_formats_hear_the_same() -> None:
    sound = recording()
    script = heard(opened("pytorch", "silero_vad.jit", module="_model"), sound, {"x": "x"})
    onnx = heard(opened("onnx", "silero_vad.onnx"), sound, {"x": "input"}, sr=np.array(RATE, np.int64))
    assert len(script) == len(onnx) == 375
    assert np.ptp(onnx) > 0.2  # it does hear a difference, and its state matters
    np.testing.assert_allclose(script, onnx, atol=1e-5, rtol=0)


def test_the_whole_file_keeps_its_state_and_says_so() -> None:
    with pytest.raises(ModelLoadError, match=r"keeps values in itself .*_state.*\(it has: _model, _model_8k\)"):
        opened("pytorch", "silero_vad.jit")
