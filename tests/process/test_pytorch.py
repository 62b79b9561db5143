"""PyTorch models through the whole product: an engine of their own beside ONNX Runtime's, over HTTP."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from onnx import TensorProto as T
from onnx import helper as h

from tests.process.helpers import answer, code, infer
from tests.support import nets, torch_nets
from tests.support.server import Server
from tests.support.torch_nets import torch

DECLARED = """
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 4]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1, 3]
"""


def asked(client: httpx.Client, model: str, x: np.ndarray) -> httpx.Response:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.reshape(-1).tolist()}
    return client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]})


def index(client: httpx.Client) -> dict[str, Any]:
    return {model["name"]: model for model in client.post("/v2/repository/index", json={}).json()}


def test_one_model_in_three_formats_and_what_is_refused(folder: Path) -> None:
    models = folder / "models"
    (models / "script").mkdir(parents=True)
    torch_nets.script(models / "script" / "model.pt")
    (models / "script" / "model.toml").write_text(DECLARED)
    torch_nets.export(models / "program.pt2")
    nodes = [h.make_node("Gemm", ["x", "w", "b"], ["l"], transB=1), h.make_node("Relu", ["l"], ["y"])]
    weights = {"w": torch_nets.WEIGHT, "b": torch_nets.BIAS}
    nets.save(models / "net.onnx", nodes, [("x", T.FLOAT, ["N", 4])], [("y", T.FLOAT, ["N", 3])], weights)
    torch.save(torch_nets.Small().state_dict(), models / "checkpoint.pt")
    with Server(folder) as server:
        client = server.client
        wrong: list[Any] = []

        def caller(first: int) -> None:
            with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as own:
                for n in range(first, first + 60):
                    x = np.random.default_rng(n).random((1 + n % 3, 4), np.float32)
                    for name in ("script", "program", "net"):
                        found = answer(asked(own, name, x))
                        if not np.allclose(found, torch_nets.expected(x).reshape(-1), atol=1e-5):
                            wrong.append((n, name, found))

        threads = [threading.Thread(target=caller, args=(n * 1000,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []
        platforms = {
            name: client.get(f"/v2/models/{name}").json()["platform"] for name in ("script", "program", "net")
        }
        assert platforms == {"script": "pytorch_libtorch", "program": "pytorch_export", "net": "onnxruntime_onnx"}
        assert "it is a Python pickle" in index(client)["checkpoint"]["reason"]
        too_many = asked(client, "program", np.zeros((65, 4), np.float32))
        assert (too_many.status_code, code(too_many)) == (400, "invalid_input")
        # A program is an archive itself, and yet no zip of a model's folder.
        sent = client.post("/api/models", params={"name": "sent"}, content=(models / "program.pt2").read_bytes())
        assert sent.status_code in (200, 201), sent.text
        assert answer(asked(client, "sent", np.ones((1, 4), np.float32))) == [0.0, 0.0, 3.0]
        pickled = client.post("/api/models", params={"name": "bad"}, content=(models / "checkpoint.pt").read_bytes())
        assert (pickled.status_code, code(pickled)) == (400, "invalid_input")
        assert "it is a Python pickle" in pickled.text
        assert not (models / "bad").exists()


def test_the_second_engine_starts_when_a_model_needs_it_and_dies_alone(folder: Path) -> None:
    models = folder / "models"
    nets.scale(models / "scale/1/model.onnx")
    with Server(folder) as server:

        def engines() -> dict[str, dict[str, Any]]:
            return {engine["id"]: engine for engine in server.status()["engines"]}

        assert list(engines()) == ["cpu"]
        torch_nets.export(models / "program.pt2")
        server.wait_for(lambda: index(server.client).get("program", {}).get("state") == "READY", 60, "the program")
        found = engines()
        assert set(found) == {"cpu", "cpu/torch"} and found["cpu"]["pid"] != found["cpu/torch"]["pid"]
        assert "torch" in found["cpu/torch"]["runtimes"] and "torch" not in found["cpu"]["runtimes"]
        memory = server.status()["memory"]
        assert list(memory) == ["cpu"] and memory["cpu"]["ours"] > 0, "both engines share one ledger"
        assert set(memory["cpu"]["models"]) == {"scale", "program"}
        os.kill(found["cpu/torch"]["pid"], signal.SIGKILL)
        assert answer(infer(server.client, "scale", 2)) == [4.0] * 4
        assert answer(asked(server.client, "program", np.ones((1, 4), np.float32))) == [0.0, 0.0, 3.0]
        found = engines()
        assert (found["cpu"]["restarts"], found["cpu/torch"]["restarts"]) == (0, 1)
