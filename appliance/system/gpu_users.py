"""Which programs use an NVIDIA card, and how much of its memory each has."""

import os

import msgspec
import psutil

from appliance.system.devices import ProbeUnavailable
from appliance.system.devices_nvml import NvmlProbe

_MOST = 64  # programs of one card


class GpuUser(msgspec.Struct, frozen=True):
    """A program on a card. ``size``: its memory there in bytes; None where the driver does not tell (Windows' display
    driver model)."""

    pid: int
    name: str
    size: int | None


class GpuUsers(NvmlProbe):
    """Asks NVML; what does not answer is left out."""

    def users(self) -> dict[str, tuple[GpuUser, ...]]:
        """By device id as ``DeviceReading`` has it, those with the most memory first."""
        count = int(self._ask("nvmlDeviceGetCount") or 0)
        return {f"cuda:{n}": self._of(handle) for n, handle in enumerate(self._handles(count))}

    def count(self) -> int:
        """All cards of this machine, shown to this program or not."""
        return int(self._ask("nvmlDeviceGetCount") or 0)

    def _of(self, handle: object) -> tuple[GpuUser, ...]:
        found: dict[int, int | None] = {}
        for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for process in self._ask(function, handle) or ():
                size, before = process.usedGpuMemory, found.get(process.pid)
                found[process.pid] = size if before is None else max(before, size or 0)
        users = [GpuUser(pid, _name(pid), size) for pid, size in list(found.items())[:_MOST]]
        return tuple(sorted(users, key=lambda user: (-(user.size or 0), user.pid)))


def look() -> tuple[dict[str, tuple[GpuUser, ...]], int]:
    """The programs on each card that this process sees, and how many cards there are; nothing without a driver."""
    try:
        probe = GpuUsers(env=os.environ)
    except ProbeUnavailable:
        return {}, 0
    try:
        return probe.users(), probe.count()
    finally:
        probe.close()


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name() or "a program"
    except psutil.Error:
        return "a program"
