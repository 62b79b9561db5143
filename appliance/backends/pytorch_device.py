"""The device that runs a PyTorch model, its streams, and what its allocator tells.

The allocator keeps what it took (that is what makes it fast), so it is bounded, and gives back only when asked.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from appliance.errors import ModelLoadError
from appliance.models.spec import DevicePolicy


class Place(msgspec.Struct, frozen=True):
    """``index`` of the GPU, or None for the CPU; ``degraded``: why it is not what was asked for, or None."""

    index: int | None
    degraded: str | None = None

    @property
    def name(self) -> str:
        return "cpu" if self.index is None else f"cuda:{self.index}"


def place(policy: str, model: DevicePolicy) -> Place:
    """By the server's policy (``auto``, ``cpu``, ``cuda``, ``cuda:N``) and the model's.

    Raises ModelLoadError for a model that requires a GPU and would not get one.
    """
    asked = model == "require" or policy.startswith("cuda")
    if model == "cpu" or (policy.startswith("cpu") and model != "require"):
        return Place(None)
    if policy.startswith("cpu"):
        reason = "the server's setting `device` is `cpu`"
    else:
        index = int(policy.partition(":")[2] or 0)
        why = _why_not(index)
        if why is None:
            return Place(index)
        reason = why
    if model == "require":
        raise ModelLoadError(f"the model requires CUDA, which is not what would run it: {reason}")
    return Place(None, reason if asked else None)


def _why_not(index: int) -> str | None:
    """Why PyTorch does not run on this GPU, or None."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this build of PyTorch ({torch.__version__}) is for the CPU only; install one for CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f"PyTorch does not start CUDA: {' '.join(str(error).split())[:300]}"
    count = torch.cuda.device_count()
    return None if index < count else f"there is no device cuda:{index} (PyTorch sees {count})"


def bound(index: int, limit: int | None) -> None:
    """Let the allocator take ``limit`` bytes of the device at most; beyond it asks are refused as out of memory."""
    if limit:
        total = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), index)


class Streams:
    """Streams of one device, as many as ever ran at once. The last used is taken first: blocks of memory belong to
    the stream they were first used on, so fewer streams keep fewer blocks."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._free: list[Any] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def taken(self) -> Iterator[Any]:
        """One for a run; it is the thread's current one inside."""
        with self._lock:
            stream = self._free.pop() if self._free else None
        if stream is None:
            stream = torch.cuda.Stream(self._index)
        try:
            with torch.cuda.device(self._index), torch.cuda.stream(stream):
                yield stream
        finally:
            with self._lock:
                self._free.append(stream)


def give_back() -> None:
    """Blocks that no tensor holds go back to the device."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def peak(index: int) -> tuple[int, int]:
    """(bytes that tensors hold now, the most they held since ``forget_peak``)."""
    return int(torch.cuda.memory_allocated(index)), int(torch.cuda.max_memory_allocated(index))


def forget_peak(index: int) -> int:
    """Begin to look for a peak; the bytes that tensors hold now."""
    torch.cuda.synchronize(index)
    torch.cuda.reset_peak_memory_stats(index)
    return int(torch.cuda.memory_allocated(index))
