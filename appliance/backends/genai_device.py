"""Which execution provider a language model gets, and which one runs it in truth."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnxruntime_genai as og

from appliance.backends import onnx_device, onnx_errors
from appliance.backends.base import DeviceLost, LoadRequest
from appliance.errors import InsufficientMemory, ModelLoadError
from appliance.system import cuda_loader

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
CUDA_TYPE = "CUDA"
"""What the library calls the device of a model that runs there."""


class Placed(msgspec.Struct, frozen=True):
    """An open model of the library's, and what runs it: see ``Opened``."""

    model: Any
    device: str
    providers: tuple[str, ...]
    degraded: str | None = None

    @property
    def index(self) -> int | None:
        """The number of the GPU; None on the CPU."""
        return int(self.device.partition(":")[2] or 0) if self.device.startswith("cuda") else None


def available() -> tuple[str, ...]:
    """What this build of the library could use here."""
    return (CUDA, CPU) if og.is_cuda_available() else (CPU,)


def place(request: LoadRequest, libraries: onnx_device.CudaLibraries) -> Placed:
    """Open the model with what the device policies ask for, else on the CPU, with the reason in ``degraded``.

    Raises ModelLoadError, InsufficientMemory, DeviceLost.
    """
    policy = request.config.device
    asked = onnx_device.wanted(request.device, policy, (CUDA, CPU), request.memory_limit)
    reason = asked.reason
    if asked.index is not None:
        libraries.load()
        model, reason = _on_gpu(request, asked, libraries.folders)
        if model is not None:
            return Placed(model, f"cuda:{asked.index}", (CUDA, CPU))
        if policy == "prefer" and request.device == "auto" and not _built_with_cuda():
            reason = None  # nobody asked for it
    if reason and policy == "require":
        raise ModelLoadError(f"the model requires CUDA, which is not what would run it: {reason}")
    try:
        return Placed(og.Model(configured(request, CPU, {})), "cpu", (CPU,), reason)
    except Exception as error:  # noqa: BLE001 - the library raises nothing but RuntimeError
        raise onnx_errors.load_error(error, (), request.path) from None


def _on_gpu(request: LoadRequest, asked: onnx_device.Wanted, folders: Sequence[Path]) -> tuple[Any, str | None]:
    """The model, or why CUDA does not run it."""
    assert asked.index is not None
    if not _built_with_cuda():
        return None, (
            "this build of ONNX Runtime GenAI is without CUDA; install the extra 'genai-cuda' "
            '(pip install "inference-appliance[cuda,genai-cuda]")'
        )
    name, options = asked.providers[0]
    try:
        use(asked.index)
        model = og.Model(configured(request, name, options))
    except Exception as error:  # noqa: BLE001 - as above
        failed = onnx_errors.load_error(error, (), request.path)
        if isinstance(failed, InsufficientMemory | DeviceLost):
            raise failed from None
        return None, f"{_why_not(asked.index, folders)} ({failed.message})"
    if str(model.device_type).upper() != CUDA_TYPE:
        return None, _why_not(asked.index, folders)
    return model, None


def configured(request: LoadRequest, provider: str, options: dict[str, Any]) -> Any:
    """The library's configuration: the folder's own, with the provider and the threads that this program asks for."""
    config = og.Config(str(request.path))
    config.clear_providers()
    if provider == CUDA:
        config.append_provider("cuda")
        for key, value in options.items():
            config.set_provider_option("cuda", key, str(value))
    session: dict[str, Any] = {"log_severity_level": 3}
    if request.threads:
        session["intra_op_num_threads"] = request.threads
    # One sequence, one beam: each stream has its own options.
    search = {"num_beams": 1, "num_return_sequences": 1, "batch_size": 1, "min_length": 0}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}, "search": search}))
    return config


def use(index: int | None) -> None:
    """Has this thread use a GPU: the library keeps that apart for each."""
    if index is not None:
        og.set_current_gpu_device_id(index)


def _built_with_cuda() -> bool:
    return any("genai-cuda" in file.name for file in Path(og.__file__).parent.iterdir())


def _why_not(index: int, folders: Sequence[Path]) -> str:
    loader = cuda_loader.SystemLoader(folders)
    return onnx_device.why_not(loader, onnx_device.provider_library(), index).reason
