"""TensorRT from a model's settings to what is said of it, with a runtime that only claims to have a GPU."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from appliance.backends import onnx as backend
from appliance.backends import onnx_device
from appliance.backends.base import LoadRequest
from appliance.backends.onnx import OnnxBackend, OnnxSession
from appliance.errors import InvalidInput, ModelLoadError
from appliance.models.spec import ModelConfig
from appliance.system import tensorrt
from appliance.system.cuda import Driver
from appliance.system.cuda_loader import FakeLoader
from tests.support import nets

TRT, CUDA, CPU = "TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"
REAL = backend.ort.InferenceSession


class Claiming:
    """A session on the CPU that says it has the providers which were asked for, but for those in ``without``."""

    without: tuple[str, ...] = ()
    fails: str | None = None
    made: list[list[str]]

    def __init__(self, path: str, options: Any, providers: list[Any], **more: Any) -> None:
        names = [p if isinstance(p, str) else p[0] for p in providers]
        if names != [CPU]:
            type(self).made.append(names)
        if TRT in names and self.fails is not None:
            assert more == {"enable_fallback": 0}
            raise RuntimeError(self.fails)
        self._inner = REAL(path, options, providers=[CPU])
        self._names = [name for name in names if name not in self.without]

    def get_providers(self) -> list[str]:
        return self._names

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return [SimpleNamespace(ep_name=self._names[0], get_nodes=lambda: [None] * 2)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


Open = Callable[..., OnnxSession]


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a model on a machine that seems to have a card, CUDA and TensorRT 10; ``without``, ``fails``: see above;
    ``loader``: what loads there."""
    (tmp_path / "libonnxruntime_providers_tensorrt.so").write_bytes(b"\0libnvinfer.so.10\0")
    model = nets.scale(tmp_path / "m" / "model.onnx")
    fake = type("Fake", (Claiming,), {"made": []})
    monkeypatch.setattr(backend.ort, "InferenceSession", fake)
    monkeypatch.setattr(backend.ort, "get_available_providers", lambda: [TRT, CUDA, CPU])
    monkeypatch.setattr(
        onnx_device, "provider_library", lambda name="cuda": tmp_path / f"libonnxruntime_providers_{name}.so"
    )
    monkeypatch.setattr(onnx_device, "_why_not", lambda provider, index, folders=(): f"no CUDA for {index}")
    monkeypatch.setattr(backend.ort, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(tensorrt, "folders", lambda major: [])

    def opened(
        loader: FakeLoader | None = None,
        without: tuple[str, ...] = (),
        fails: str | None = None,
        **config: Any,
    ) -> OnnxSession:
        there = loader or FakeLoader()
        monkeypatch.setattr(backend.cuda_loader, "SystemLoader", lambda folders=(): there)
        fake.without, fake.fails = without, fails  # type: ignore[attr-defined]
        config = {"providers": ("tensorrt", "cuda", "cpu")} | config
        request = LoadRequest("m", model, model.parent, "auto", 1, ModelConfig(**config), max_batch=4)
        return OnnxBackend(engines=tmp_path / "tensorrt").open(request)

    return opened


def test_it_runs(box: Open) -> None:
    session = box()
    opened = session.opened
    assert (opened.device, opened.degraded, opened.providers) == ("cuda:0", None, (TRT, CUDA, CPU))
    assert opened.notes == ("TensorRT's engine is not kept: unknown here: name, capability, driver, tensorrt",)
    (answer,) = session.run({"x": np.ones((4, 4), np.float32)}, ["y"], session.cancellation())
    assert answer.shape[0] == 4


def test_a_run_beyond_its_bounds_is_the_callers_fault(box: Open) -> None:
    session = box()
    with pytest.raises(
        InvalidInput, match=r"input 'x': TensorRT's engine takes 1 to 4 items \(batching.max\), not 5"
    ):
        session.run({"x": np.ones((5, 4), np.float32)}, ["y"], session.cancellation())


def test_libraries_that_are_missing_are_told_and_cuda_runs_it(box: Open) -> None:
    opened = box(FakeLoader(only=())).opened
    assert (opened.device, opened.providers) == ("cuda:0", (CUDA, CPU))
    assert opened.degraded == (
        "TensorRT was asked for, but CUDA runs it: libnvinfer.so.10 (TensorRT 10) was not found; "
        "install NVIDIA's TensorRT 10"
    )


def test_an_engine_that_cannot_be_built_is_told_and_cuda_runs_it(box: Open) -> None:
    opened = box(fails="TensorRT EP failed to create engine from network").opened
    assert (opened.device, opened.providers) == ("cuda:0", (CUDA, CPU))
    assert opened.degraded == (
        "TensorRT was asked for, but CUDA runs it: it did not build an engine: TensorRT EP failed to create engine "
        "from network"
    )


def test_a_runtime_that_leaves_it_out_without_a_word(box: Open) -> None:
    opened = box(without=(TRT,)).opened
    assert opened.device == "cuda:0"
    assert opened.degraded is not None and opened.degraded.startswith("TensorRT was asked for, but CUDA runs it")


def test_a_model_that_requires_the_gpu_is_served_by_cuda_and_not_by_the_cpu(box: Open) -> None:
    assert box(FakeLoader(only=()), device="require").opened.device == "cuda:0"
    with pytest.raises(
        ModelLoadError, match="the model requires CUDA, which is not what would run it: no CUDA for 0"
    ):
        box(without=(TRT, CUDA), device="require")


def test_without_a_driver_tensorrt_is_not_tried(box: Open) -> None:
    loader = FakeLoader(Driver(missing="no such file"))
    opened = box(loader, without=(CUDA,)).opened
    assert (opened.device, opened.degraded) == ("cpu", "no CUDA for 0")
    assert loader.loaded == []


def test_who_does_not_name_it_has_none(box: Open) -> None:
    assert box(providers=()).opened.providers == (CUDA, CPU)
    assert box(providers=("cuda", "cpu")).opened.providers == (CUDA, CPU)
    assert box(providers=("tensorrt",)).opened.providers == (TRT, CPU)
    opened = box(providers=("cpu",)).opened
    assert (opened.device, opened.providers, opened.degraded) == ("cpu", (CPU,), None)
