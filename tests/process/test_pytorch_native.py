"""An AOTInductor package that PyTorch compiles here: through the backend, and through the whole product."""

import io
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import httpx
import numpy as np
import pytest

from appliance import backends
from appliance.backends.base import LoadRequest
from appliance.errors import InvalidInput, ModelError
from appliance.models.spec import ModelConfig, TensorSpec
from appliance.models.tensors import Array
from tests.process.helpers import code
from tests.support import torch_nets
from tests.support.server import ROOT, Server

COMPILE = """
import sys, numpy, torch
from tests.support.torch_nets import Small

class Two(Small):
    def forward(self, x, *, scale):
        y = super().forward(x) * scale
        return {"y": y, "sum": y.sum(1)}

rows = torch.export.Dim("rows", min=1, max=64)
free = {"x": {0: rows}, "scale": {0: rows}}
net = Two().eval()
# Without this PyTorch takes a free size to be 2 or more, and one item is refused.
with torch.fx.experimental._config.patch(backed_size_oblivious=True):
    program = torch.export.export(net, (torch.ones(3, 4),), {"scale": torch.ones(3, 1)}, dynamic_shapes=free)
    torch._inductor.aoti_compile_and_package(
        program, package_path=sys.argv[1], inductor_configs={"aot_inductor.compile_wrapper_opt_level": "O0"}
    )
x = numpy.random.default_rng(5).random((64, 4), numpy.float32)
y = net(torch.from_numpy(x), scale=torch.full((64, 1), 3.0))["y"]
numpy.save(sys.argv[2], y.detach().numpy())
"""
DECLARED = """
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 4]
[[inputs]]
name = "scale"
datatype = "FP32"
shape = [-1, 1]
[[outputs]]
name = "sum"
datatype = "FP32"
shape = [-1]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1, 3]
"""
X, SCALE = TensorSpec("x", "FP32", (-1, 4)), TensorSpec("scale", "FP32", (-1, 1))
Y, SUM = TensorSpec("y", "FP32", (-1, 3)), TensorSpec("sum", "FP32", (-1,))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x FP32 [N, 4], scale FP32 [N, 1] → sum FP32 [N], y FP32 [N, 3]; beside it what PyTorch itself gives."""
    if not shutil.which("g++"):
        pytest.skip("there is no C++ compiler (g++), which AOTInductor needs")
    folder = tmp_path_factory.mktemp("native")
    path = folder / "two.pt2"
    env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", COMPILE, str(path), str(folder / "eager.npy")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return path


def by_hand(x: Array, scale: float) -> Array:
    found: Array = torch_nets.expected(x) * np.float32(scale)
    return found


def test_it_gives_what_pytorch_gives(package: Path) -> None:
    request = LoadRequest(
        "two", package, package.parent, "cpu", 1, ModelConfig(), inputs=(SCALE, X), outputs=(SUM, Y), trusted=True
    )
    session = backends.get("pytorch").open(request)
    assert (session.opened.platform, session.opened.device) == ("pytorch_aotinductor", "cpu")
    assert session.opened.batch_axis

    def run(x: Array, scale: float) -> list[Array]:
        scales = np.full((len(x), 1), scale, np.float32)
        return session.run({"x": x, "scale": scales}, ["y", "sum"], session.cancellation())

    x = np.random.default_rng(5).random((64, 4), np.float32)
    y, total = run(x, 3)
    np.testing.assert_allclose(y, np.load(package.with_name("eager.npy")), rtol=0, atol=1e-5)
    np.testing.assert_allclose(y, by_hand(x, 3), rtol=0, atol=1e-5)
    np.testing.assert_allclose(total, y.sum(1), rtol=0, atol=1e-4)
    with pytest.raises(InvalidInput, match="compiled for it: dim value is too large at 0, expected to be <= 64"):
        run(np.zeros((65, 4), np.float32), 1)
    with pytest.raises(InvalidInput, match="input 'x': the model was not compiled for it: unmatched dim value at 1"):
        run(np.zeros((2, 5), np.float32), 1)
    session.close()
    few = LoadRequest("two", package, package.parent, "cpu", 1, ModelConfig(), None, (X,), (Y,), trusted=True)
    lacking = backends.get("pytorch").open(few)
    with pytest.raises(ModelError, match="expected inputs vector size to be 2, but got 1"):
        lacking.run({"x": x}, ["y"], lacking.cancellation())
    lacking.close()


def test_the_server_serves_what_its_settings_name(package: Path, folder: Path) -> None:
    models = folder / "models"
    for name in ("known", "unknown"):
        (models / name).mkdir(parents=True)
        shutil.copy(package, models / name / "model.pt2")
        (models / name / "model.toml").write_text(DECLARED)
    with Server(folder, trust_native_code=["known", "later"]) as server:
        found = {m["name"]: m for m in server.client.post("/v2/repository/index", json={}).json()}
        assert found["known"]["state"] == "READY", found
        assert "add 'unknown' to the server's setting trust_native_code" in found["unknown"]["reason"]
        assert server.client.get("/v2/models/known").json()["platform"] == "pytorch_aotinductor"
        wrong: list[str] = []

        def caller(first: int) -> None:
            with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as own:
                for n in range(first, first + 40):
                    x = np.random.default_rng(n).random((1 + n % 3, 4), np.float32)
                    response = asked(own, x, n % 7)
                    outputs = {o["name"]: o["data"] for o in response.json().get("outputs", ())}
                    wanted = by_hand(x, n % 7)
                    if list(outputs) != ["sum", "y"] or not np.allclose(outputs["y"], wanted.reshape(-1), atol=1e-5):
                        wrong.append(response.text)

        threads = [threading.Thread(target=caller, args=(n * 1000,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []
        too_many = asked(server.client, np.zeros((65, 4), np.float32), 1)
        assert (too_many.status_code, code(too_many)) == (400, "invalid_input")
        # An upload has the word for no name but those that the settings have.
        sent = server.client.post("/api/models", params={"name": "sent"}, content=package.read_bytes())
        assert (sent.status_code, code(sent)) == (400, "invalid_input")
        assert "add 'sent' to the server's setting trust_native_code" in sent.text
        assert not (models / "sent").exists()
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w") as out:
            out.write(package, "model.pt2")
            out.writestr("model.toml", DECLARED)
        later = server.client.post("/api/models", params={"name": "later"}, content=body.getvalue())
        assert later.status_code in (200, 201), later.text
        assert later.json()["served"] is True, later.text


def asked(client: httpx.Client, x: Array, scale: float) -> httpx.Response:
    values = (("x", x), ("scale", np.full((len(x), 1), scale, np.float32)))
    tensors = [{"name": n, "datatype": "FP32", "shape": v.shape, "data": v.reshape(-1).tolist()} for n, v in values]
    return client.post("/v2/models/known/infer", json={"inputs": tensors})
