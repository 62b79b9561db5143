"""PyTorch's exceptions → the appliance's. By type where there is one.

TorchScript's interpreter turns every exception into a RuntimeError with the first one's words in it, and CUDA's
libraries have no type, so these are told by their words.
"""

import os
import re
from pathlib import Path

import torch

from appliance.backends import cuda_errors
from appliance.backends.base import DeviceLost
from appliance.errors import ApplianceError, Cancelled, InsufficientMemory, InvalidInput, ModelError, ModelLoadError

_NO_MEMORY = 2  # cudaErrorMemoryAllocation
_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory: you tried", "bad_alloc")
_PATH = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])+([^\s/\\:'\"]*)")
_GUARD = "Guard failed: "


def words(error: BaseException, folder: Path | None = None) -> str:
    """What went wrong, in one line: without traces, hints and folders (no local path may leave)."""
    text = str(error) or type(error).__name__
    if folder is not None:
        text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), "the model's folder")
    if "in the TorchScript interpreter" in text:
        # Its trace ends in the line with the kind and the words of what was raised.
        text = next((line for line in reversed(text.splitlines()) if re.match(r"\s*[\w.]+: ", line)), text)
        text = re.sub(r"^\s*[\w.]*(?:Error|Exception): ", "", text)
    text = re.split(r"\nCUDA kernel errors|\nFor debugging|\nException raised from|\nWhile executing", text)[0]
    return _PATH.sub(r"\1", " ".join(text.split()))[:600]


def is_out_of_memory(error: BaseException) -> bool:
    """True where memory, of the device or of the system, was asked for and not had."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, torch.AcceleratorError):
        return getattr(error, "error_code", None) == _NO_MEMORY
    # The CPU's allocator has no type, and TorchScript passes none on.
    return isinstance(error, RuntimeError) and any(w in str(error).lower() for w in _MEMORY_WORDS)


def is_lost(error: BaseException) -> bool:
    """True where only a new process cures the device."""
    code = getattr(error, "error_code", None)
    if isinstance(error, torch.AcceleratorError) and isinstance(code, int):
        return cuda_errors.is_lost_code(code)
    return isinstance(error, RuntimeError) and cuda_errors.is_lost(str(error))


def run_error(error: Exception, cancelled: bool) -> ApplianceError | DeviceLost:
    """What a run's exception is for the one who asked."""
    if isinstance(error, ApplianceError | DeviceLost):
        return error
    text = words(error)
    if is_out_of_memory(error):
        return InsufficientMemory(f"not enough memory for this run: {text}")
    if is_lost(error):
        return DeviceLost(text)
    if cancelled:
        return Cancelled("cancelled while it ran")
    if isinstance(error, AssertionError) and text.startswith(_GUARD):
        return InvalidInput(f"the model was not exported for this input: it needs {text.removeprefix(_GUARD)}")
    return ModelError(f"the model failed: {text}")


def load_error(error: Exception, folder: Path) -> ApplianceError | DeviceLost:
    """What an exception while a file is loaded is for the operator."""
    if isinstance(error, ApplianceError | DeviceLost):
        return error
    text = words(error, folder)
    if is_out_of_memory(error):
        return InsufficientMemory(f"not enough memory to load the model: {text}")
    if is_lost(error):
        return DeviceLost(text)
    return ModelLoadError(f"PyTorch {torch.__version__} cannot load it: {text}")
