"""The PyTorch backend on the CPU: types, layouts, threads, lanes, what goes wrong, compiling."""

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance import backends
from appliance.backends.base import LoadRequest, Opened
from appliance.backends.pytorch_network import Network
from appliance.backends.pytorch_session import PyTorchSession, default_threads
from appliance.errors import Cancelled, InsufficientMemory, ModelError, ModelLoadError
from appliance.models.spec import ModelConfig, TensorSpec
from tests.support import torch_nets
from tests.support.torch_nets import torch
from tests.unit.backends.pytorch_helpers import INPUT, opened, run

# --- types and layouts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp16", 4e-3), ("bf16", 3e-2), ("fp32", 1e-6)])
@pytest.mark.parametrize("ending", [".pt", ".pt2"])
def test_weights_are_converted_and_what_goes_in_and_out_is_not(
    tmp_path: Path, dtype: str, tolerance: float, ending: str
) -> None:
    path = tmp_path / f"m{ending}"
    session = opened(torch_nets.script(path) if ending == ".pt" else torch_nets.export(path), dtype=dtype)
    x = np.random.default_rng(1).random((5, 4), np.float32)
    (found,) = run(session, x=x)
    assert found.dtype == np.float32
    assert [t.datatype for t in session.opened.inputs] == ["FP32"]
    wanted = torch_nets.expected(x)
    np.testing.assert_allclose(found, wanted, atol=tolerance * np.abs(wanted).max())
    # These numbers are not ones of 16 bits, so a model that gives such was converted.
    assert np.array_equal(found, found.astype(np.float16).astype(np.float32)) == (dtype != "fp32")


def test_operators_that_name_a_type_are_converted_with_the_rest(tmp_path: Path) -> None:
    class Casting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small = torch_nets.Small()
            self.shift = torch.tensor([1.0, 2.0, 3.0])

        def forward(self, x: Any) -> Any:
            ones = torch.ones(x.shape[0], 4, dtype=torch.float32)
            return self.small(x.to(torch.float32) + ones) + self.shift

    x = np.zeros((2, 4), np.float32)
    (found,) = run(opened(torch_nets.export(tmp_path / "m.pt2", Casting()), dtype="bf16"), x=x)
    assert found.tolist() == [[1.0, 2.0, 6.0]] * 2  # relu(W·1 + b) is [0, 0, 3]


def test_bfloat16_goes_in_and_out_as_its_bits(tmp_path: Path) -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    path = torch_nets.export(tmp_path / "m.pt2", Twice(), (torch.ones(3, 2, dtype=torch.bfloat16),))
    session = opened(path)
    assert [t.datatype for t in (*session.opened.inputs, *session.opened.outputs)] == ["BF16", "BF16"]
    (found,) = run(session, x=np.array([[0x3F80, 0xC040]], np.uint16))  # 1 and -3
    assert found.dtype == np.uint16
    assert found.tolist() == [[0x4000, 0xC0C0]]  # 2 and -6


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "float64"]
)
def test_every_number_passes_as_it_is(tmp_path: Path, dtype: str) -> None:
    class Same(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

    path = torch_nets.export(tmp_path / "m.pt2", Same(), (torch.ones(3, 2).to(getattr(torch, dtype)),))
    x = np.array([[0, 1], [1, 0], [1, 1]], dtype)
    (found,) = run(opened(path), x=x)
    assert found.dtype == x.dtype
    assert found.tolist() == x.tolist()


@pytest.mark.parametrize("ending", [".pt", ".pt2"])
def test_channels_last_changes_no_answer(tmp_path: Path, ending: str) -> None:
    class Picture(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(2, 3, 1, bias=False)
            torch.nn.init.ones_(self.conv.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x)

    x = np.arange(2 * 2 * 3 * 3, dtype=np.float32).reshape(2, 2, 3, 3)
    path = tmp_path / f"m{ending}"
    specs = (TensorSpec("x", "FP32", (-1, 2, 3, 3)),), (TensorSpec("y", "FP32", (-1, 3, 3, 3)),)
    model = Picture()
    path = (
        torch_nets.script(path, model)
        if ending == ".pt"
        else torch_nets.export(path, model, (torch.ones(2, 2, 3, 3),))
    )
    (found,) = run(opened(path, *specs, channels_last=True), x=x)
    assert found.flags.c_contiguous
    assert found.tolist() == np.repeat(x.sum(1, keepdims=True), 3, axis=1).tolist()


def test_a_model_that_works_in_place_does_not_touch_what_came_in(tmp_path: Path) -> None:
    class InPlace(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2)

    output = TensorSpec("y", "FP32", (-1, 4))
    for path in (torch_nets.script(tmp_path / "m.pt", InPlace()), torch_nets.export(tmp_path / "m.pt2", InPlace())):
        x = INPUT.copy()
        x.flags.writeable = False
        assert run(opened(path, outputs=(output,)), x=x)[0].tolist() == (INPUT * 2).tolist()
        assert x.tolist() == INPUT.tolist()


# --- runs ------------------------------------------------------------------------------------------------------


def test_lanes_run_at_once_and_each_gets_its_own(tmp_path: Path) -> None:
    for path in (torch_nets.script(tmp_path / "m.pt"), torch_nets.export(tmp_path / "m.pt2")):
        session = opened(path)
        wrong: list[float] = []
        gate = threading.Barrier(2)

        def lane(first: int, session: Any = session, gate: Any = gate, wrong: list[float] = wrong) -> None:
            gate.wait(10)
            for value in range(first, first + 200):
                x = np.full((1 + value % 3, 4), value, np.float32)
                if not np.allclose(run(session, x=x)[0], torch_nets.expected(x)):
                    wrong.append(value)

        threads = [threading.Thread(target=lane, args=(n,)) for n in (1, 1000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []


def test_a_run_that_was_cancelled_does_not_begin(tmp_path: Path) -> None:
    session = opened(torch_nets.script(tmp_path / "m.pt"))
    handle = session.cancellation()
    handle.cancel()
    with pytest.raises(Cancelled):
        session.run({"x": INPUT}, ["y"], handle)


def test_no_gradients_are_kept(tmp_path: Path) -> None:
    class Asks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full_like(x, float(torch.is_grad_enabled()))

    output = TensorSpec("y", "FP32", (-1, 4))
    (found,) = run(opened(torch_nets.script(tmp_path / "m.pt", Asks()), outputs=(output,)), x=INPUT)
    assert not found.any()


def test_threads_of_a_run() -> None:
    output = TensorSpec("n", "INT64", ())
    network = Network(lambda values: [torch.tensor(torch.get_num_threads())], (), (output,), (), "test")
    mine = default_threads()
    sessions = {n: PyTorchSession(network, Opened("test", (), (output,), "cpu", ()), n) for n in (0, 1, 3)}
    found: list[tuple[int, int]] = []

    def ask() -> None:
        for n in (0, 1, 3, 0, 3, 1):
            found.append((n, int(run(sessions[n])[0])))

    for _ in range(2):  # threads have no share in what others set
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(10)
    assert found == [(0, mine), (1, 1), (3, 3), (0, mine), (3, 3), (1, 1)] * 2


def test_faults_of_a_model_are_told_without_traces_and_paths(tmp_path: Path) -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 100:
                raise ValueError("too much")
            return x @ x

    output = TensorSpec("y", "FP32", (-1, 4))
    session = opened(torch_nets.script(tmp_path / "m.pt", Fails()), outputs=(output,))
    with pytest.raises(ModelError, match=r"^the model failed: too much$"):
        run(session, x=np.full((1, 4), 100, np.float32))
    with pytest.raises(ModelError, match=r"^the model failed: mat1 and mat2 shapes cannot be multiplied") as caught:
        run(session, x=INPUT)
    assert "\n" not in caught.value.message
    assert "/" not in caught.value.message


@pytest.mark.parametrize("ending", [".pt", ".pt2"])
def test_memory_that_is_not_there(tmp_path: Path, ending: str) -> None:
    """A real refusal of the CPU's allocator: 4 PB."""

    class Huge(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(x.shape[0], 1 << 48)[:, :4] + x

    output = TensorSpec("y", "FP32", (-1, 4))
    path = tmp_path / f"m{ending}"
    path = torch_nets.script(path, Huge()) if ending == ".pt" else torch_nets.export(path, Huge())
    session = opened(path, outputs=(output,))
    with pytest.raises(InsufficientMemory, match="not enough memory for this run: "):
        run(session, x=INPUT)


def test_policies_without_a_gpu(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    path = torch_nets.export(tmp_path / "m.pt2")

    def device(policy: str, model: Any) -> tuple[str, str | None]:
        found = (
            backends.get("pytorch")
            .open(LoadRequest("m", path, tmp_path, policy, 1, ModelConfig(device=model)))
            .opened
        )
        return found.device, found.degraded

    assert device("auto", "prefer") == ("cpu", None)
    assert device("cpu", "cpu") == ("cpu", None)
    assert device("cpu:1", "prefer") == ("cpu", None)
    where, reason = device("cuda:0", "prefer")
    assert where == "cpu"
    assert reason
    for policy in ("auto", "cpu", "cuda"):
        with pytest.raises(ModelLoadError, match="the model requires CUDA"):
            device(policy, "require")


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler")
def test_a_program_is_compiled_at_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    session = opened(torch_nets.export(tmp_path / "m.pt2"), compile=True)
    assert any((tmp_path / "compiled").rglob("*.cpp"))
    made = len(list((tmp_path / "compiled").rglob("*.cpp")))
    for rows in (1, 3, 7):
        x = np.full((rows, 4), rows, np.float32)
        np.testing.assert_allclose(run(session, x=x)[0], torch_nets.expected(x), atol=1e-5)
    assert len(list((tmp_path / "compiled").rglob("*.cpp"))) == made  # nothing was left for the first requests


def test_torch_script_cannot_be_compiled(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"^pytorch\.compile: "):
        opened(torch_nets.script(tmp_path / "m.pt"), compile=True)
