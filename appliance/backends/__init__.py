"""What runs a model: one small protocol, one module per runtime. Only these import onnxruntime, GenAI or torch."""

import os
from pathlib import Path

from appliance.backends.base import Backend
from appliance.errors import ModelLoadError
from appliance.system import dlls, torch_setup

MAIN_FAMILY = "onnx"
FAMILIES = {"onnx": MAIN_FAMILY, "pytorch": "torch", "genai": "genai"}
"""Backend → its family: backends of different ones never share a process, since their libraries break each other."""

NAMES = ("onnx", "pytorch", "genai", "fake")


def get(name: str, packs: Path | None = None) -> Backend:
    """The backend of this name, with its runtime imported, and before that with the search for its libraries set up.

    ``packs``: where runtime packs are installed. Raises ModelLoadError: unknown, or not installed.
    """
    if name == "fake":
        from appliance.backends.fake import FakeBackend

        return FakeBackend()
    if name == "onnx":
        # Since 1.29 ONNX Runtime's own builds tell Microsoft of sessions and models, on Linux too. It looks when
        # it is imported.
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        libraries = dlls.prepare("onnx", packs, dlls.onnxruntime_version())
        try:
            from appliance.backends.onnx import OnnxBackend
            from appliance.backends.tensorrt_cache import place

            return OnnxBackend(libraries, place(packs))
        except ImportError as error:
            raise ModelLoadError(
                "ONNX Runtime is not installed: install the extra 'cpu' (pip install \"inference-appliance[cpu]\") "
                "or, for an NVIDIA card, 'cuda' (pip install \"inference-appliance[cuda]\"); never both "
                f"({error})"
            ) from None
    if name == "pytorch":
        torch_setup.prepare(packs.parent if packs is not None else None)
        dlls.prepare("torch", packs, None)
        try:
            from appliance.backends.pytorch import PyTorchBackend

            return PyTorchBackend()
        except ImportError as error:
            raise ModelLoadError(
                "PyTorch is not installed: install the extra 'torch' (pip install \"inference-appliance[torch]\") "
                f"({error})"
            ) from None
    if name == "genai":
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # its own telemetry heeds the same variable
        libraries = dlls.prepare("onnx", packs, dlls.onnxruntime_version())
        try:
            from appliance.backends.genai import GenaiBackend

            return GenaiBackend(libraries)
        except ImportError as error:
            raise ModelLoadError(
                "ONNX Runtime GenAI is not installed: install the extra 'genai' (pip install "
                "\"inference-appliance[cpu,genai]\") or, for an NVIDIA card, 'genai-cuda' (pip install "
                f'"inference-appliance[cuda,genai-cuda]"); never both ({error})'
            ) from None
    raise ModelLoadError(f"backend '{name}' is not known (known: {', '.join(NAMES)})")
