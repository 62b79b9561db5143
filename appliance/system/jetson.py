"""What NVIDIA's Jetson boards tell in files: release, power mode, temperatures, the GPU's load and its memory.

Sources: NVIDIA's "Jetson Linux Developer Guide" (``/etc/nv_tegra_release``, power modes: ``/etc/nvpmodel.conf``,
thermal zones), "CUDA for Tegra" (``NvMapMemUsed`` in ``/proc/meminfo`` and ``/sys/kernel/debug/nvmap/iovmm/clients``
as the memory that the GPU has), the archive of JetPack's releases, and the kernel's "Generic Thermal Sysfs driver
How To" for the thermal zones. Every file may be missing; then what it would tell is None.
"""

import re
from collections.abc import Collection
from pathlib import Path

import msgspec

from appliance.system.kernel_files import number, text, whole

CAPABILITIES = {"tegra194": "7.2", "tegra234": "8.7", "tegra264": "11.0"}
"""Chip → compute capability, from NVIDIA's table of CUDA GPUs (Xavier, Orin, Thor)."""

JETPACKS = {
    "35.1": "5.0.2",
    "35.2.1": "5.1",
    "35.3.1": "5.1.1",
    "35.4.1": "5.1.2",
    "35.5": "5.1.3",
    "35.6": "5.1.4",
    "36.3": "6.0",
    "36.4": "6.1",
    "36.4.3": "6.2",
    "36.4.4": "6.2.1",
    "36.5": "6.2.2",
    "38.2": "7.0",
    "38.2.1": "7.0",
    "38.4": "7.1",
    "39.2": "7.2",
}
"""Release of Jetson Linux (L4T) → the JetPack that brought it."""

_MAJORS = {32: "4", 34: "5", 35: "5", 36: "6", 38: "7", 39: "7"}
"""The same for a revision that is not listed, as far as that can be told."""

# JetPack 5 has the first, JetPack 6 the second and the third (gv11b is Xavier, ga10b Orin).
_LOADS = (
    "sys/devices/gpu.0/load",
    "sys/devices/platform/gpu.0/load",
    "sys/devices/platform/bus@0/*.gpu/load",
    "sys/devices/platform/bus@0/*.ga10b/load",
    "sys/devices/*.ga10b/load",
    "sys/devices/*.gv11b/load",
)


class Zone(msgspec.Struct, frozen=True):
    """A thermal zone: its name ("gpu-thermal"), its temperature in °C, and the one at which the kernel slows the
    board down; None where it has no such point."""

    name: str
    celsius: float
    slows_at: float | None = None


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """A Jetson. ``release``: of Jetson Linux ("36.4.3"); ``capability``: the GPU's ("8.7")."""

    model: str
    release: str | None = None
    capability: str | None = None
    power_mode: str | None = None
    zones: tuple[Zone, ...] = ()

    @property
    def jetpack(self) -> str | None:
        """ "6.2", or as much of it as the release tells ("6"); None if it tells nothing."""
        return jetpack(self.release)

    @property
    def generation(self) -> int | None:
        """The first number of the JetPack."""
        found = self.jetpack
        return int(found.partition(".")[0]) if found else None


def is_jetson(root: Path = Path("/")) -> bool:
    """Whether this is a Jetson: by NVIDIA's release file, or by the board's name."""
    return (root / "etc/nv_tegra_release").exists() or "jetson" in model(root).lower()


def look(root: Path = Path("/")) -> Board | None:
    """The board as it is now; None if this is no Jetson."""
    if not is_jetson(root):
        return None
    return Board(
        model=model(root) or "NVIDIA Jetson",
        release=release(root),
        capability=capability(root),
        power_mode=power_mode(root),
        zones=zones(root),
    )


def jetpack(found: str | None) -> str | None:
    """The JetPack of a release of Jetson Linux ("36.4.3" or "36.4.0")."""
    if found is None:
        return None
    exact = JETPACKS.get(found) or JETPACKS.get(found.removesuffix(".0"))
    major = whole(found.partition(".")[0])
    return exact or (_MAJORS.get(major) if major is not None else None)


def model(root: Path = Path("/")) -> str:
    """The board's name in the device tree; empty if there is none."""
    return text(root / "proc/device-tree/model") or ""


def release(root: Path = Path("/")) -> str | None:
    """ "# R36 (release), REVISION: 4.3, …" → "36.4.3"."""
    found = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", text(root / "etc/nv_tegra_release") or "")
    return f"{found[1]}.{found[2]}" if found else None


def capability(root: Path = Path("/")) -> str | None:
    """The GPU's compute capability, from the chip's name in the device tree."""
    chips = text(root / "proc/device-tree/compatible") or ""
    return next((value for chip, value in CAPABILITIES.items() if chip in chips), None)


def power_mode(root: Path = Path("/")) -> str | None:
    """The mode that nvpmodel has set, by its name ("15W", "MAXN"), or by its number where it has none here.

    Its status file has "pmode:0002 …", its configuration "< POWER_MODEL ID=2 NAME=MAXN >" for each mode.
    """
    found = re.search(r"\bpmode:(\d+)", text(root / "var/lib/nvpmodel/status") or "")
    if found is None:
        return None
    names = re.findall(r"(?m)^<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)", text(root / "etc/nvpmodel.conf") or "")
    return {int(n): name for n, name in names}.get(int(found[1])) or f"mode {int(found[1])}"


def zones(root: Path = Path("/")) -> tuple[Zone, ...]:
    """All thermal zones that can be read; one whose sensor sleeps cannot."""
    found = []
    for folder in sorted(root.glob("sys/class/thermal/thermal_zone*")):
        thousandths = number(folder / "temp")
        if thousandths is not None:
            found.append(Zone(text(folder / "type") or folder.name, thousandths / 1000, _slows_at(folder)))
    return tuple(found)


def _slows_at(folder: Path) -> float | None:
    """The lowest of a zone's "passive" trip points."""
    points = []
    for kind in folder.glob("trip_point_*_type"):
        thousandths = number(folder / kind.name.replace("_type", "_temp"))
        if text(kind) == "passive" and thousandths is not None and thousandths > 0:
            points.append(thousandths / 1000)
    return min(points, default=None)


def gpu_load(root: Path = Path("/")) -> float | None:
    """0 to 1; the driver counts in thousandths."""
    for pattern in _LOADS:
        for file in sorted(root.glob(pattern)):
            load = number(file)
            if load is not None:
                return min(1.0, load / 1000)
    return None


def gpu_memory(root: Path = Path("/")) -> int | None:
    """Bytes that the GPU has of the system's memory, for all programs together; None if the kernel does not say."""
    found = re.search(r"(?m)^NvMapMemUsed:\s+(\d+) kB", text(root / "proc/meminfo") or "")
    return int(found[1]) * 1024 if found else None


def gpu_memory_of(pids: Collection[int], root: Path = Path("/")) -> int | None:
    """Bytes that the GPU has for these processes; None where that table may not be read (it is root's alone).

    Its lines are "user   python3   4711   123456K".
    """
    table = text(root / "sys/kernel/debug/nvmap/iovmm/clients")
    if table is None:
        return None
    lines = re.findall(r"(?m)^\s*\w+\s+.+?\s+(\d+)\s+(\d+)K\s*$", table)
    return sum(int(size) * 1024 for pid, size in lines if int(pid) in pids)
