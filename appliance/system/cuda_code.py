"""For which GPUs a library has code: a build of ONNX Runtime is made for some compute capabilities. On another GPU
its session is made without a complaint and then fails at the first kernel ("no kernel image is available").

Read from the library itself, since a build from elsewhere may have the same name and version as PyPI's. CUDA puts
the code for its kernels into "fat binaries". Their form is in no document of NVIDIA's; what is read here was compared
with ``cuobjdump`` on PyPI's onnxruntime-gpu 1.31.1 for x86-64 and arm64 and was the same for each architecture.
"""

import mmap
import struct
from pathlib import Path

import msgspec

from appliance.system.cuda import CudaFinding, Driver

_MAGIC = struct.pack("<I", 0xBA55ED50)
_HEADER = struct.Struct("<4xHHQ")  # version, size of the header, size of the entries after it
_ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, size of the header, size of the code, …, architecture
_PTX, _CUBIN = 1, 2
_MOST = 1 << 20  # entries; a library has some thousand

Capability = tuple[int, int]


class Code(msgspec.Struct, frozen=True):
    """Compute capabilities: of machine code, and of PTX, which a driver compiles for any newer GPU."""

    machine: frozenset[Capability] = frozenset()
    ptx: frozenset[Capability] = frozenset()

    def runs_on(self, capability: Capability) -> bool:
        """Whether there is code that a GPU of this capability can run."""
        same = any(major == capability[0] and minor <= capability[1] for major, minor in self.machine)
        return same or any(found <= capability for found in self.ptx)

    def told(self) -> str:
        """ "8.9, 9.0 and 12.0 or newer"."""
        names = [f"{major}.{minor}" for major, minor in sorted(self.machine | self.ptx)]
        last = names.pop() + (" or newer" if self.ptx else "")
        return f"{', '.join(names)} and {last}" if names else last


def read(library: Path) -> Code | None:
    """What a library has code for; None if it has none that is known here, or cannot be read.

    Takes 0.2 s for 280 MB that are in the system's cache.
    """
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _scan(data)
    except (OSError, ValueError, struct.error):
        return None


def _scan(data: mmap.mmap) -> Code | None:
    found: dict[int, set[Capability]] = {_PTX: set(), _CUBIN: set()}
    at, entries = data.find(_MAGIC), 0
    while at >= 0:
        _version, header, size = _HEADER.unpack_from(data, at)
        place, end = at + header, min(at + header + size, len(data) - _ENTRY.size)
        while place < end and entries < _MOST:
            kind, _version, length, code, architecture = _ENTRY.unpack_from(data, place)
            entries += 1
            if kind not in found or length < _ENTRY.size or not 10 <= architecture < 1000:
                break
            found[kind].add((architecture // 10, architecture % 10))
            place += length + code
        at = data.find(_MAGIC, at + len(_MAGIC))
    machine, ptx = frozenset(found[_CUBIN]), frozenset(found[_PTX])
    return Code(machine, ptx) if machine or ptx else None


def fault(driver: Driver, device: int, code: Code | None) -> CudaFinding | None:
    """That CUDA device ``device``, which the driver shows, has no code in the provider; None if it has, or if one of
    the two is not known."""
    if code is None or not 0 <= device < len(driver.capabilities):
        return None
    capability = driver.capabilities[device]
    if capability >= (99, 0) or code.runs_on(capability):  # 99: one that the driver did not tell
        return None
    have = ".".join(map(str, capability))
    return CudaFinding(
        part="device",
        reason=f"cuda:{device} has compute capability {have}, for which this build of ONNX Runtime has no code "
        f"(it has {code.told()}); install a build of ONNX Runtime for this GPU",
        wanted=have,
        found=code.told(),
    )
