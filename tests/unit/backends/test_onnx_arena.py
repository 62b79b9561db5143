"""After an unusually large run ONNX Runtime's arena gives memory back."""

from pathlib import Path

import numpy as np
import psutil
from onnx import TensorProto as T
from onnx import helper as h

from appliance.backends.base import LoadRequest
from appliance.backends.onnx import OnnxBackend, _Usual
from appliance.models.spec import ModelConfig
from tests.support.nets import save


def test_what_is_unusual() -> None:
    usual = _Usual()
    assert not usual.unusual(1 << 30)  # the first run is no surprise
    usual = _Usual()
    assert [usual.unusual(n) for n in (1000, 2000, 100_000, 40 << 20, 1000)] == [False, False, False, True, False]


def test_the_arena_shrinks_after_a_large_run(tmp_path: Path) -> None:
    nodes = [
        h.make_node("Add", ["x", "x"], ["a"]),
        h.make_node("Mul", ["a", "x"], ["b"]),
        h.make_node("ReduceSum", ["b"], ["y"], keepdims=0),
    ]
    path = save(tmp_path / "m.onnx", nodes, [("x", T.FLOAT, ["N"])], [("y", T.FLOAT, [])])
    request = LoadRequest(model="m", path=path, root=tmp_path, device="cpu", threads=1, config=ModelConfig())
    session = OnnxBackend().open(request)
    small, large = np.ones(1000, np.float32), np.ones(64 << 20, np.float32)
    session.run({"x": small}, ["y"], session.cancellation())
    before = psutil.Process().memory_info().rss
    assert session.run({"x": large}, ["y"], session.cancellation())[0] == 2 * (64 << 20)
    grown = psutil.Process().memory_info().rss - before
    assert grown < 128 << 20  # the run itself needed two tensors of 256 MiB
