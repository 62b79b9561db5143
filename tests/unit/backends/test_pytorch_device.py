"""What the PyTorch backend does with a GPU, and with what goes wrong on one: with a stand-in for CUDA."""

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.backends import pytorch_device
from appliance.backends.base import DeviceLost, Metered, Opened
from appliance.backends.pytorch_errors import load_error, run_error
from appliance.backends.pytorch_network import Network
from appliance.backends.pytorch_session import CudaSession, PyTorchSession
from appliance.engine.warmup import warm_up
from appliance.errors import Cancelled, InsufficientMemory, InvalidInput, ModelError, ModelLoadError
from appliance.models.spec import TensorSpec, Warmup
from tests.support.torch_nets import torch

MIB = 1 << 20


class FakeStream:
    made = 0

    def __init__(self, index: int) -> None:
        FakeStream.made += 1
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


class FakeCuda:
    """The allocator's figures, and what was asked of it. ``held`` is what tensors hold."""

    def __init__(self) -> None:
        self.held = 0
        self.most = 0
        self.fraction: tuple[float, int] | None = None
        self.emptied = 0

    def take(self, size: int) -> None:
        self.held += size
        self.most = max(self.most, self.held)

    def fraction_set(self, fraction: float, index: int) -> None:
        self.fraction = (fraction, index)

    def forget(self, index: int) -> None:
        self.most = self.held

    def empty(self) -> None:
        self.emptied += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    FakeStream.made = 0
    total = type("Properties", (), {"total_memory": 1000 * MIB})()
    for name, value in {
        "init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "get_device_properties": lambda index: total,
        "set_per_process_memory_fraction": fake.fraction_set,
        "memory_allocated": lambda index: fake.held,
        "max_memory_allocated": lambda index: fake.most,
        "reset_peak_memory_stats": fake.forget,
        "synchronize": lambda index: None,
        "empty_cache": fake.empty,
        "Stream": FakeStream,
        "stream": lambda stream: nullcontext(),
        "device": lambda index: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return fake


X, Y = TensorSpec("x", "FP32", (-1, 4)), TensorSpec("y", "FP32", (-1, 4))


class OnGpu(CudaSession):
    """Its memory is the CPU's."""

    def _moved(self, tensor: Any) -> Any:
        return tensor


def session(call: Any, kind: type[PyTorchSession] = PyTorchSession, *more: Any) -> Any:
    network = Network(call, (X,), (Y,), ("tensor",), "test")
    return kind(network, Opened("test", (X,), (Y,), "cpu", (), batch_axis=True), 1, *more)


def run(asked: Any, rows: int = 1) -> Any:
    return asked.run({"x": np.ones((rows, 4), np.float32)}, ["y"], asked.cancellation())


# --- where it runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "model", "name", "reason"),
    [
        ("auto", "prefer", "cuda:0", None),
        ("cuda:1", "require", "cuda:1", None),
        ("cuda:5", "prefer", "cpu", "there is no device cuda:5 (PyTorch sees 2)"),
        ("auto", "cpu", "cpu", None),
        ("cpu", "prefer", "cpu", None),
    ],
)
def test_the_place(cuda: FakeCuda, policy: str, model: Any, name: str, reason: str | None) -> None:
    found = pytorch_device.place(policy, model)
    assert (found.name, found.degraded) == (name, reason)


def test_a_driver_that_does_not_start(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.\n Please check")

    monkeypatch.setattr(torch.cuda, "init", init)
    assert pytorch_device.place("auto", "prefer") == pytorch_device.Place(None)
    found = pytorch_device.place("cuda", "prefer")
    assert found.degraded == "PyTorch does not start CUDA: Found no NVIDIA driver on your system. Please check"
    with pytest.raises(ModelLoadError, match=r"^the model requires CUDA, .* no NVIDIA driver"):
        pytorch_device.place("auto", "require")


def test_the_budget_is_a_hard_bound(cuda: FakeCuda) -> None:
    pytorch_device.bound(1, 250 * MIB)
    assert cuda.fraction == (0.25, 1)
    pytorch_device.bound(1, 5000 * MIB)
    assert cuda.fraction == (1.0, 1)
    cuda.fraction = None
    pytorch_device.bound(0, None)
    assert cuda.fraction is None


# --- runs ------------------------------------------------------------------------------------------------------


def test_each_run_has_a_stream_and_the_last_used_is_taken_first(cuda: FakeCuda) -> None:
    streams = pytorch_device.Streams(0)
    with streams.taken() as first:
        pass
    with streams.taken() as again, streams.taken() as second:
        assert again is first
        assert second is not first
    assert FakeStream.made == 2
    with streams.taken() as third:
        assert third is first or third is second
    assert FakeStream.made == 2


def test_lanes_at_once_have_streams_of_their_own(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "empty", _unpinned(torch.empty))
    both = threading.Barrier(2, timeout=10)

    def call(values: Any) -> Any:
        both.wait()
        return [values[0] * 2]

    asked = session(call, OnGpu, False, 0, pytorch_device.Streams(0))
    threads = [threading.Thread(target=run, args=(asked,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert FakeStream.made == 2


def _unpinned(empty: Any) -> Any:
    return lambda *shape, pin_memory=False, **more: empty(*shape, **more)


def test_costs_are_the_allocators_own_count(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 MiB a run and 3 MiB a row beyond what is held; what was held before does not count, caches neither."""
    monkeypatch.setattr(torch, "empty", _unpinned(torch.empty))
    cuda.take(500 * MIB)  # weights
    cuda.take(400 * MIB)
    cuda.held -= 400 * MIB  # an older peak

    def call(values: Any) -> Any:
        size = (10 + 3 * len(values[0])) * MIB
        cuda.take(size)
        cuda.held -= size
        return [values[0] * 2]

    asked = session(call, OnGpu, False, 0, pytorch_device.Streams(0))
    assert isinstance(asked, Metered)
    assert not isinstance(session(call), Metered)
    warmed = warm_up(asked, Warmup(), 4, False, used=lambda: 900 * MIB)
    assert {p.batch: p.size for p in warmed.costs} == {1: 13 * MIB, 2: 16 * MIB, 4: 22 * MIB}
    assert warmed.held == 0


def test_caches_are_given_back_when_a_model_goes_and_not_after_a_run(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "empty", _unpinned(torch.empty))
    asked = session(lambda values: [values[0] * 2], OnGpu, False, 0, pytorch_device.Streams(0))
    for _ in range(3):
        assert run(asked)[0].tolist() == [[2.0] * 4]
    assert cuda.emptied == 0
    asked.close()
    assert cuda.emptied == 1


# --- what goes wrong -------------------------------------------------------------------------------------------


def accelerator(code: int, text: str = "CUDA error: something") -> Exception:
    error = torch.AcceleratorError(text)
    error.error_code = code
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
            InsufficientMemory,
            "Tried to alloc",
        ),
        (MemoryError(), InsufficientMemory, "MemoryError"),
        (accelerator(2), InsufficientMemory, "not enough memory for this run"),
        (accelerator(710), DeviceLost, "CUDA error: something"),
        (accelerator(700), DeviceLost, ""),
        (accelerator(1), ModelError, "the model failed: CUDA error: something"),
        (RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be"), DeviceLost, "assert"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), DeviceLost, ""),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            InsufficientMemory,
            "",
        ),
        (AssertionError("Guard failed: x.size()[0] <= 64"), InvalidInput, "it needs x.size()[0] <= 64"),
        (AssertionError("something else"), ModelError, "the model failed: something else"),
        (ValueError("a word"), ModelError, "the model failed: a word"),
        (InvalidInput("as it is"), InvalidInput, "as it is"),
    ],
)
def test_a_runs_exceptions(error: Exception, kind: type[Exception], words: str) -> None:
    found = run_error(error, cancelled=False)
    assert type(found) is kind
    assert words in str(found)


def test_the_type_goes_before_the_words() -> None:
    """The number says that it is no lost device, whatever the text."""
    assert type(run_error(accelerator(1, "CUDA error: unspecified launch failure"), False)) is ModelError


def test_a_cancelled_run_is_nobodys_fault() -> None:
    assert type(run_error(RuntimeError("whatever"), cancelled=True)) is Cancelled
    assert type(run_error(accelerator(710), cancelled=True)) is DeviceLost


def test_the_words_of_torch_script_are_those_of_what_was_raised() -> None:
    text = (
        "The following operation failed in the TorchScript interpreter.\n"
        "Traceback of TorchScript (most recent call last):\n"
        '  File "/somebody/code/net.py", line 9, in forward\n'
        "    return x @ x\n"
        "           ~~~~~ <--- HERE\n"
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n"
    )
    found = run_error(RuntimeError(text), False)
    assert type(found) is InsufficientMemory
    assert str(found) == "not enough memory for this run: CUDA out of memory. Tried to allocate 20.00 MiB"


def test_a_loads_exceptions(tmp_path: Path) -> None:
    assert type(load_error(torch.OutOfMemoryError("CUDA out of memory"), tmp_path)) is InsufficientMemory
    assert type(load_error(accelerator(999), tmp_path)) is DeviceLost
    found = load_error(RuntimeError(f"cannot open {tmp_path}/my model/m.pt, see /else/where/x.py"), tmp_path)
    assert type(found) is ModelLoadError
    assert str(found).endswith("cannot load it: cannot open my model/m.pt, see x.py")


def test_an_out_of_memory_in_a_run_is_that_for_the_engine() -> None:
    def call(values: Any) -> Any:
        if len(values[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [values[0]]

    asked = session(call)
    assert run(asked, 2)[0].shape == (2, 4)
    with pytest.raises(InsufficientMemory):
        run(asked, 3)
    warmed = warm_up(asked, Warmup(), 8, False)
    assert warmed.max_batch == 2  # 4 was out of memory
    assert "at most 2 requests are merged, a batch of 4 fails: not enough memory" in warmed.notes[0]
