"""What a language model is asked to run on, and what is said of what runs it. No card is needed."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("onnxruntime_genai")

from appliance.backends import genai_device, onnx_device
from appliance.backends.base import DeviceLost, LoadRequest
from appliance.errors import InsufficientMemory, ModelLoadError
from appliance.models.spec import ModelConfig

CPU, CUDA = genai_device.CPU, genai_device.CUDA


class Library:
    """Stands in for the library: ``cuda`` is what opening a model with CUDA gives, or raises."""

    def __init__(self, folder: Path, cuda: Any) -> None:
        self.__file__ = str(folder / "__init__.py")
        self._cuda = cuda
        self.used: list[int] = []
        self.asked: list[dict[str, Any]] = []

    def set_current_gpu_device_id(self, index: int) -> None:
        self.used.append(index)

    def is_cuda_available(self) -> bool:
        return self._cuda is not None

    def Config(self, path: str) -> Any:
        told: dict[str, Any] = {"providers": [], "options": {}, "overlays": []}
        return SimpleNamespace(
            told=told,
            clear_providers=lambda: told.update(providers=[]),
            append_provider=lambda name: told["providers"].append(name),
            set_provider_option=lambda name, key, value: told["options"].update({key: value}),
            overlay=lambda text: told["overlays"].append(text),
        )

    def Model(self, config: Any) -> Any:
        self.asked.append(config.told)
        if not config.told["providers"]:
            return SimpleNamespace(device_type="CPU")
        if isinstance(self._cuda, Exception):
            raise self._cuda
        return SimpleNamespace(device_type=self._cuda)


def placed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, cuda: Any, device: str, policy: str = "prefer", limit: int = 0
) -> tuple[genai_device.Placed, Library]:
    library = Library(folder, cuda)
    if cuda is not None:
        (folder / "libonnxruntime-genai-cuda.so").touch()
    monkeypatch.setattr(genai_device, "og", library)
    monkeypatch.setattr(genai_device, "_why_not", lambda index, folders: f"no CUDA for {index}")
    config = ModelConfig(device=policy)  # type: ignore[arg-type]
    request = LoadRequest("m", folder, folder, device, 3, config, limit or None)
    libraries = onnx_device.CudaLibraries(None)
    monkeypatch.setattr(libraries, "load", lambda: None)
    return genai_device.place(request, libraries), library


def test_cuda_is_asked_for_with_its_number_and_its_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, library = placed(monkeypatch, tmp_path, "CUDA", "cuda:1", limit=1 << 30)
    assert (found.device, found.providers, found.degraded, found.index) == ("cuda:1", (CUDA, CPU), None, 1)
    (asked,) = library.asked
    assert asked["providers"] == ["cuda"]
    assert asked["options"] == {
        "device_id": "1",
        "arena_extend_strategy": "kSameAsRequested",
        "gpu_mem_limit": "1073741824",
    }
    assert library.used == [1]
    assert '"intra_op_num_threads": 3' in asked["overlays"][0]


@pytest.mark.parametrize(
    ("cuda", "device", "policy", "degraded"),
    [
        (None, "auto", "prefer", None),
        (None, "cuda", "prefer", "is without CUDA"),
        (None, "cpu", "prefer", None),
        ("CUDA", "cpu", "prefer", None),
        ("CUDA", "auto", "cpu", None),
        ("CPU", "auto", "prefer", "no CUDA for 0"),
        (RuntimeError("no such kernel"), "cuda:2", "prefer", r"no CUDA for 2 \(.*no such kernel\)"),
    ],
)
def test_the_cpu_and_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: Any, device: str, policy: str, degraded: str | None
) -> None:
    found, library = placed(monkeypatch, tmp_path, cuda, device, policy)
    assert (found.device, found.providers, found.index) == ("cpu", (CPU,), None)
    assert library.asked[-1]["providers"] == []
    if degraded is None:
        assert found.degraded is None
    else:
        assert found.degraded is not None
        assert re.search(degraded, found.degraded)


@pytest.mark.parametrize("cuda", [None, "CPU", RuntimeError("no such kernel")])
def test_a_model_that_requires_cuda_has_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: Any
) -> None:
    with pytest.raises(ModelLoadError, match="requires CUDA, which is not what would run it"):
        placed(monkeypatch, tmp_path, cuda, "auto", "require")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("CUDA failure 2: out of memory", InsufficientMemory),
        ("Failed to allocate memory for requested buffer of size 9", InsufficientMemory),
        ("CUDA error cudaErrorIllegalAddress", DeviceLost),
    ],
)
def test_a_full_or_lost_device_is_no_reason_for_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        placed(monkeypatch, tmp_path, RuntimeError(words), "auto")
