"""ONNX Runtime's errors in the appliance's words. It raises unrelated types, so mostly its text is read."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import onnxruntime as ort

from appliance.backends import cuda_errors
from appliance.backends.base import DeviceLost
from appliance.errors import ApplianceError, Cancelled, InsufficientMemory, InvalidInput, ModelError, ModelLoadError

_SOURCE = re.compile(r"(\S+\.(?:cc|cpp|h|cu|py)):\d+ ")
_SIGNATURE = re.compile(r"^.*?\)(?: const)? (?=[A-Z\[\"'])")
_PATH = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])+([^\s/\\:'\"]*)")


def words(error: Exception, folder: Path | None = None) -> str:
    """ONNX Runtime's message without its prefix, source positions and folders (no local path may leave).

    ``folder``: one that the message may name; only so is one with spaces in its name known as such.
    """
    text = str(error)
    if folder is not None:
        text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), "the model's folder")
    text = " ".join(text.split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text)
    if _SOURCE.search(text):
        text = _SIGNATURE.sub("", _SOURCE.sub("", text))
    return _PATH.sub(r"\1", text)[:600]


def load_error(error: Exception, custom_domains: Sequence[str], folder: Path) -> ApplianceError | DeviceLost:
    """Why a session cannot be made. ``folder``: the model's; ``custom_domains``: of operators not built in."""
    text = words(error, folder)
    if is_out_of_memory(text):
        return InsufficientMemory(f"not enough memory to load the model: {text}")
    if is_lost(error, text):
        return DeviceLost(cuda_errors.shortened(text))
    if custom_domains and "not a registered function/op" in text:
        return ModelLoadError(
            f"an operator library is needed: {text} (domains: {', '.join(custom_domains)}). "
            "Operator libraries from model folders are never loaded"
        )
    if "not a registered function/op" in text or "No Op registered" in text:
        return ModelLoadError(f"unknown operator: {text}")
    if "opset" in text.lower() and "guarantee" in text:
        return ModelLoadError(f"unsupported opset: {text}")
    return ModelLoadError(f"ONNX Runtime {ort.__version__} cannot load it: {text}")


def is_out_of_memory(text: str) -> bool:
    """Whether an error of this text is for want of memory."""
    # The runtime has no type for it; these are the words of its arena, of CUDA and of the C++ library.
    lowered = text.lower()
    return any(
        part in lowered for part in ("failed to allocate memory", "out of memory", "bad_alloc", "available memory of")
    )


def is_lost(error: Exception, text: str) -> bool:
    """Whether only a new process cures it. ``text``: as ``words`` has it."""
    # Its newest releases have a type for a device that was reset; for all else see `cuda_errors`.
    return type(error).__name__ == "DeviceReset" or cuda_errors.is_lost(text)


def run_error(error: Exception, cancelled: bool) -> ApplianceError | DeviceLost:
    """Why a run failed. ``cancelled``: it was asked to end."""
    if isinstance(error, ApplianceError):
        return error
    text = words(error)
    if is_lost(error, text) and not is_out_of_memory(text):
        return DeviceLost(cuda_errors.shortened(text))
    if cancelled:
        return Cancelled("cancelled while it ran")
    if is_out_of_memory(text):
        return InsufficientMemory(f"not enough memory for this run: {text}")
    if type(error).__name__ == "InvalidArgument":
        return InvalidInput(f"the model does not accept this input: {text}")
    return ModelError(f"the model failed: {text}")
