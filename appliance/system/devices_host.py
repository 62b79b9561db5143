"""The processor, and the system's memory."""

import os
import platform
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import psutil

from appliance.system import jetson
from appliance.system.devices import DeviceReading
from appliance.system.kernel_files import number, text

_UNLIMITED = 1 << 60  # what version 1 of cgroups gives for "no limit" is about this


class Memory(NamedTuple):
    """Bytes; `free` is what can still be had, caches that the system would give up included."""

    total: int | None
    used: int | None
    free: int | None


def system_memory(root: Path = Path("/")) -> Memory:
    """The machine's memory, or the container's where that has less."""
    memory = _meminfo(root) or _from_psutil()
    limit = number(root / "sys/fs/cgroup/memory.max")
    current = number(root / "sys/fs/cgroup/memory.current")
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


def _meminfo(root: Path) -> Memory | None:
    found = dict(re.findall(r"(?m)^(\w+):\s+(\d+) kB", text(root / "proc/meminfo") or ""))
    if "MemTotal" not in found or "MemAvailable" not in found:
        return None
    total, free = int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024
    return Memory(total, total - free, free)


def _from_psutil() -> Memory:
    memory = psutil.virtual_memory()
    return Memory(memory.total, memory.total - memory.available, memory.available)


def _processor(root: Path) -> str:
    found = re.search(r"(?m)^model name\s*:\s*(.+)$", text(root / "proc/cpuinfo") or "")
    name = found[1] if found else jetson.model(root) or platform.processor() or platform.machine()
    return " ".join(name.split())
