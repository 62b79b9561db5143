"""Requests are merged where that is right, and nowhere else: a wrong guess never becomes a wrong answer."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from tests.support import nets
from tests.support.server import Server


def _net(path: Path, nodes: list[Any], first: Any = "N", out: tuple[Any, ...] = ("N", 4), **weights: Any) -> Path:
    return nets.save(path, nodes, [("x", T.FLOAT, [first, 4])], [("y", T.FLOAT, list(out))], weights)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=0))
    return np.asarray(e / e.sum(axis=0))


NEVER: dict[str, tuple[Callable[[Path], Path], Callable[[np.ndarray], np.ndarray]]] = {
    "fixed": (
        lambda p: _net(p, [h.make_node("Add", ["x", "x"], ["y"])], 2, (2, 4)),
        lambda x: x + x,
    ),
    "summed": (
        lambda p: _net(p, [h.make_node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], out=(4,), a=np.array([0])),
        lambda x: x.sum(axis=0),
    ),
    "softmax": (lambda p: _net(p, [h.make_node("Softmax", ["x"], ["y"], axis=0)]), _softmax),
    "centred": (
        lambda p: _net(p, [h.make_node("ReduceMean", ["x"], ["m"], axes=[0]), h.make_node("Sub", ["x", "m"], ["y"])]),
        lambda x: x - x.mean(axis=0),
    ),
    "flattened": (
        lambda p: _net(p, [h.make_node("Reshape", ["x", "s"], ["y"])], out=("M",), s=np.array([-1])),
        lambda x: x.reshape(-1),
    ),
    "turned": (
        lambda p: _net(p, [h.make_node("Transpose", ["x"], ["y"], perm=[1, 0])], out=(4, "N")),
        lambda x: x.T,
    ),
    "counted": (
        lambda p: _net(p, [h.make_node("CumSum", ["x", "a"], ["y"])], a=np.array(0, np.int64)),
        lambda x: x.cumsum(axis=0),
    ),
}


@pytest.fixture(scope="module")
def lying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Nets whose first axis looks like a batch, or does not, and is none."""
    folder = tmp_path_factory.mktemp("lying")
    for name, (make, _) in NEVER.items():
        make(folder / f"models/{name}.onnx")
    _net(folder / "models/random.onnx", [h.make_node("RandomNormalLike", ["x"], ["y"])])
    # It only looks at its own item, but at 20 ms a run: what waits meanwhile can be merged.
    size = np.eye(4, dtype=np.float32)
    chain = [h.make_node("MatMul", ["x", "big"], ["a0"])]
    chain += [h.make_node("MatMul", [f"a{i}", "wide"], [f"a{i + 1}"]) for i in range(6)]
    chain += [h.make_node("MatMul", ["a6", "back"], ["z"]), h.make_node("Mul", ["z", "two"], ["y"])]
    wide = 1500
    _net(
        folder / "models/true.onnx",
        chain,
        big=np.concatenate([size, np.zeros((4, wide - 4), np.float32)], axis=1),
        wide=np.eye(wide, dtype=np.float32),
        back=np.concatenate([size, np.zeros((wide - 4, 4), np.float32)], axis=0),
        two=np.float32(2),
    )
    with Server(folder, threads=1) as running:
        yield running


def _at_once(server: Server, name: str, rows: int, count: int = 24) -> list[tuple[np.ndarray, np.ndarray]]:
    """(input, output) of requests that come all at the same time, each with values of its own."""
    random = np.random.default_rng(7)
    asked = [random.random((rows, 4), dtype=np.float32) + i for i in range(count)]
    found: dict[int, np.ndarray] = {}

    def ask(i: int) -> None:
        x = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": asked[i].reshape(-1).tolist()}
        got = server.client.post(f"/v2/models/{name}/infer", json={"inputs": [x]})
        assert got.status_code == 200, got.text
        out = got.json()["outputs"][0]
        found[i] = np.array(out["data"], np.float32).reshape(out["shape"])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == count
    return [(asked[i], found[i]) for i in range(count)]


@pytest.mark.parametrize("name", NEVER)
def test_never_merged(lying: Server, name: str) -> None:
    assert lying.client.get(f"/v2/models/{name}/config").json()["max_batch_size"] == 0
    for x, y in _at_once(lying, name, 2):
        np.testing.assert_allclose(y, NEVER[name][1](x), rtol=1e-4, atol=1e-5)
    stats = lying.client.get(f"/v2/models/{name}/stats").json()["model_stats"][0]
    assert stats["execution_count"] == 24


def test_random_is_never_merged(lying: Server) -> None:
    config = lying.client.get("/v2/models/random/config").json()
    assert config["max_batch_size"] == 0


def test_a_true_batch_is_merged_and_each_answer_is_its_own(lying: Server) -> None:
    assert lying.client.get("/v2/models/true/config").json()["max_batch_size"] == 16
    for x, y in _at_once(lying, "true", 1):
        np.testing.assert_allclose(y, 2 * x, rtol=1e-5)
    for x, y in _at_once(lying, "true", 3, 12):
        np.testing.assert_allclose(y, 2 * x, rtol=1e-5)
    stats = lying.client.get("/v2/models/true/stats").json()["model_stats"][0]
    sizes = [entry["batch_size"] for entry in stats["batch_stats"]]
    assert max(sizes) > 3 and stats["execution_count"] < 36
    assert stats["inference_count"] == 24 + 36
