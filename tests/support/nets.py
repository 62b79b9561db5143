"""Tiny ONNX models for tests, made with the ``onnx`` package."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh


def save(path: Path, nodes: list, inputs: list, outputs: list, weights: dict | None = None, opset: int = 17) -> Path:
    """A model of the given nodes. ``inputs``/``outputs``: (name, element type, shape)."""
    graph = h.make_graph(
        nodes,
        "net",
        [h.make_tensor_value_info(*i) for i in inputs],
        [h.make_tensor_value_info(*o) for o in outputs],
        [nh.from_array(np.asarray(a), n) for n, a in (weights or {}).items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8), path)
    return path


def scale(path: Path, factor: float = 2.0, width: int = 4) -> Path:
    """``y = factor * x``: x FP32 [N, width], a true batch axis."""
    return save(
        path,
        [h.make_node("Mul", ["x", "f"], ["y"])],
        [("x", T.FLOAT, ["N", width])],
        [("y", T.FLOAT, ["N", width])],
        {"f": np.float32(factor)},
    )


def mlp(path: Path) -> Path:
    """784 → 256 → 10, the small model of the speed table; x FP32 [N,784] → y [N,10]."""
    r = np.random.default_rng(0)
    w1 = r.standard_normal((784, 256), dtype=np.float32) * 0.05
    w2 = r.standard_normal((256, 10), dtype=np.float32) * 0.05
    nodes = [
        h.make_node("MatMul", ["x", "w1"], ["a"]),
        h.make_node("Relu", ["a"], ["b"]),
        h.make_node("MatMul", ["b", "w2"], ["y"]),
    ]
    return save(path, nodes, [("x", T.FLOAT, ["N", 784])], [("y", T.FLOAT, ["N", 10])], {"w1": w1, "w2": w2})
