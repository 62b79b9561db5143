"""The devices that use the system's memory: the CPU, and the GPU of a Jetson."""

import os
import platform
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import psutil

from appliance.system.devices import DeviceReading, ProbeUnavailable

_CAPABILITIES = {"tegra194": "7.2", "tegra234": "8.7"}  # NVIDIA's table of CUDA GPUs
_GPU_LOADS = ("sys/devices/gpu.0/load", "sys/devices/platform/gpu.0/load", "sys/devices/platform/bus@0/*/load")
_UNLIMITED = 1 << 60  # what version 1 of cgroups gives for "no limit" is about this


class Memory(NamedTuple):
    """Bytes; `free` is what can still be had, caches that the system would give up included."""

    total: int | None
    used: int | None
    free: int | None


def system_memory(root: Path = Path("/")) -> Memory:
    """The machine's memory, or the container's where that has less."""
    memory = _meminfo(root) or _from_psutil()
    limit = _number(_text(root / "sys/fs/cgroup/memory.max"))
    current = _number(_text(root / "sys/fs/cgroup/memory.current"))
    if limit is None or limit >= _UNLIMITED or memory.total is None or limit >= memory.total:
        return memory
    left = limit if current is None else max(0, limit - current)
    free = left if memory.free is None else min(left, memory.free)
    return Memory(limit, limit - free, free)


def process_tree(pid: int | None = None) -> set[int]:
    """The process (None: this one) and all below it."""
    top = os.getpid() if pid is None else pid
    try:
        return {top, *(child.pid for child in psutil.Process(top).children(recursive=True))}
    except psutil.Error:
        return {top}


def memory_of(pids: Collection[int]) -> int | None:
    """Resident bytes of the processes together, those that are gone left out; None if none can be read."""
    sizes = []
    for pid in pids:
        try:
            sizes.append(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            continue
    return sum(sizes) if sizes else None


def is_jetson(root: Path = Path("/")) -> bool:
    """Whether this is a Jetson: by NVIDIA's release file, or by the board's name."""
    return (root / "etc/nv_tegra_release").exists() or "jetson" in _model(root).lower()


class CpuProbe:
    """The processor, with the system's memory."""

    def __init__(
        self,
        root: Path = Path("/"),
        size_of: Callable[[Collection[int]], int | None] = memory_of,
        load: Callable[[], float] = lambda: psutil.cpu_percent(None),
    ) -> None:
        self._root = root
        self._size_of = size_of
        self._load = load
        self._name = _processor(root)
        load()  # the first answer covers no time, so it is worth nothing

    def read(self, pids: Collection[int] = ()) -> list[DeviceReading]:
        memory = system_memory(self._root)
        return [
            DeviceReading(
                id="cpu",
                name=self._name,
                kind="cpu",
                memory_total=memory.total,
                memory_used=memory.used,
                memory_free=memory.free,
                used_by_us=self._size_of(pids or process_tree()),
                utilisation=min(1.0, self._load() / 100),
            )
        ]

    def close(self) -> None:
        """Nothing is held."""


class UnifiedProbe:
    """The GPU of a Jetson, as "cuda:0". ProbeUnavailable on anything else.

    `used_by_us` is the processes' resident memory: what the GPU's driver holds for them is not told.
    """

    def __init__(self, root: Path = Path("/"), size_of: Callable[[Collection[int]], int | None] = memory_of) -> None:
        if not is_jetson(root):
            raise ProbeUnavailable("this is not a Jetson")
        self._root = root
        self._size_of = size_of

    def read(self, pids: Collection[int] = ()) -> list[DeviceReading]:
        memory = system_memory(self._root)
        return [
            DeviceReading(
                id="cuda:0",
                name=_model(self._root) or "NVIDIA Jetson",
                kind="unified",
                memory_total=memory.total,
                memory_used=memory.used,
                memory_free=memory.free,
                used_by_us=self._size_of(pids or process_tree()),
                utilisation=self._utilisation(),
                temperature_c=self._temperature(),
                driver=self._release(),
                compute_capability=self._capability(),
            )
        ]

    def close(self) -> None:
        """Nothing is held."""

    def _utilisation(self) -> float | None:
        """The driver counts in thousandths."""
        for pattern in _GPU_LOADS:
            for file in sorted(self._root.glob(pattern)):
                load = _number(_text(file))
                if load is not None:
                    return min(1.0, load / 1000)
        return None

    def _temperature(self) -> float | None:
        """The GPU's zone; a zone whose sensor sleeps cannot be read."""
        for zone in sorted(self._root.glob("sys/class/thermal/thermal_zone*")):
            if "gpu" in (_text(zone / "type") or "").lower():
                thousandths = _number(_text(zone / "temp"))
                if thousandths is not None:
                    return thousandths / 1000
        return None

    def _release(self) -> str | None:
        """ "# R36 (release), REVISION: 4.3, …" → "L4T 36.4.3"."""
        found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", _text(self._root / "etc/nv_tegra_release") or "")
        return f"L4T {found[1]}.{found[2]}" if found else None

    def _capability(self) -> str | None:
        chips = _text(self._root / "proc/device-tree/compatible") or ""
        return next((value for chip, value in _CAPABILITIES.items() if chip in chips), None)


def _text(file: Path) -> str | None:
    """The file's text without the zero that ends texts of the device tree; None if it cannot be read."""
    try:
        return file.read_bytes().decode(errors="replace").replace("\0", " ").strip()
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _model(root: Path) -> str:
    return _text(root / "proc/device-tree/model") or ""


def _meminfo(root: Path) -> Memory | None:
    found = dict(re.findall(r"(?m)^(\w+):\s+(\d+) kB", _text(root / "proc/meminfo") or ""))
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    total, free = int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024
    return Memory(total, total - free, free)


def _from_psutil() -> Memory:
    memory = psutil.virtual_memory()
    return Memory(memory.total, memory.total - memory.available, memory.available)


def _processor(root: Path) -> str:
    found = re.search(r"(?m)^model name\s*:\s*(.+)$", _text(root / "proc/cpuinfo") or "")
    name = found[1] if found else _model(root) or platform.processor() or platform.machine()
    return " ".join(name.split())
