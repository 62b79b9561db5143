"""Requests of different length share runs of a real model, and each gets the answer for its own, filled up."""

import random
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from tests.process.helpers import code
from tests.support import nets
from tests.support.server import Server

BUCKETS = (4, 8, 16)
FILLED_WITH = 0.25
PAD = f"""
[batching]
max = 8
max_delay_ms = 20
[batching.pad.length]
buckets = {list(BUCKETS)}
inputs = {{ x = 1, mask = 1 }}
outputs = {{ y = 1 }}
values = {{ x = {FILLED_WITH} }}
"""


def net(path: Path, width: Any = "L") -> None:
    """y = x + the sum of x where the mask is 0, s = that sum: places that were filled up count in it."""
    nodes = [
        h.make_node("Cast", ["mask"], ["m"], to=T.FLOAT),
        h.make_node("Sub", ["one", "m"], ["free"]),
        h.make_node("Mul", ["x", "free"], ["left"]),
        h.make_node("ReduceSum", ["left", "a"], ["s"], keepdims=1),
        h.make_node("Add", ["x", "s"], ["y"]),
    ]
    inputs = [("x", T.FLOAT, ["N", width]), ("mask", T.INT64, ["N", width])]
    outputs = [("y", T.FLOAT, ["N", width]), ("s", T.FLOAT, ["N", 1])]
    nets.save(path, nodes, inputs, outputs, {"a": np.array([1], np.int64), "one": np.float32(1)})


def expected(x: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Worked out by hand: what is filled up has mask 0, so each such place adds 0.25."""
    length = x.shape[1]
    bucket = next((b for b in BUCKETS if b >= length), length)
    s = (x * (1 - mask)).sum(axis=1, keepdims=True) + FILLED_WITH * (bucket - length)
    return x + s, s


def ask(client: httpx.Client, x: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    inputs = [
        {"name": name, "datatype": kind, "shape": list(a.shape), "data": a.reshape(-1).tolist()}
        for name, kind, a in (("x", "FP32", x), ("mask", "INT64", mask))
    ]
    got = client.post("/v2/models/m/infer", json={"inputs": inputs})
    assert got.status_code == 200, got.text
    return {o["name"]: np.array(o["data"]).reshape(o["shape"]) for o in got.json()["outputs"]}


def test_marked_inputs_under_random_load(folder: Path) -> None:
    server = Server(folder)
    net(server.models / "m" / "1" / "model.onnx")
    (server.models / "m" / "model.toml").write_text(PAD)
    faults: list[str] = []
    with server:

        def load(seed: int) -> None:
            roll, values = random.Random(seed), np.random.default_rng(seed)  # noqa: S311
            with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
                for _ in range(40):
                    rows, length = roll.choice([1, 1, 2]), roll.randint(1, 18)
                    x = values.random((rows, length)).astype(np.float32) + 10 * seed
                    mask = values.integers(0, 2, (rows, length))
                    found = ask(client, x, mask)
                    y, s = expected(x, mask)
                    if found["y"].shape != y.shape or not np.allclose(found["y"], y, rtol=1e-5):
                        faults.append(f"{x.shape}: {found['y']} is not {y}")
                    if found["s"].shape != s.shape or not np.allclose(found["s"], s, rtol=1e-5):
                        faults.append(f"{x.shape}: {found['s']} is not {s}")

        threads = [threading.Thread(target=load, args=(seed,)) for seed in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        assert not faults, faults[:3]
        stats = server.client.get("/v2/models/m/stats").json()["model_stats"][0]
        assert stats["execution_count"] < 8 * 40, "some shared a run"
        assert max(entry["batch_size"] for entry in stats["batch_stats"]) > 2
        notes = server.status()["models"][0]["versions"][0]["notes"]
        assert "output 'y' changes when its inputs are filled up (batching.pad declares that safe)" in notes


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "outputs = { y = 1 }",
            "outputs = { z = 1 }",
            "line 8: batching.pad.length.outputs: the model has no output 'z'",
        ),
        ("mask = 1", "mask = 2", "line 7: batching.pad.length.inputs: 'mask' INT64[-1,-1] has no axis 2"),
        ("x = 0.25", "mask = 0.25", "line 9: batching.pad.length.values: 0.25 is no value of 'mask' INT64[-1,-1]"),
        ("[4, 8, 16]", "[4, 16, 8]", "line 6: 'batching.pad.length.buckets' must be rising"),
    ],
)
def test_a_fault_is_told_with_its_line(folder: Path, old: str, new: str, words: str) -> None:
    server = Server(folder)
    net(server.models / "m" / "1" / "model.onnx")
    (server.models / "m" / "model.toml").write_text(PAD.replace(old, new))
    with server:
        reason = next(iter(server.index().values()))["reason"]
        assert f"model.toml {words}" in reason
        answer = server.client.post("/v2/models/m/infer", json={"inputs": []})
        assert (answer.status_code, code(answer)) == (404, "model_not_found")
