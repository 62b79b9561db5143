"""Looks through a frozen folder for Linux: is it whole, is it clean? Prints sizes; exit code 1 at any fault.

    python check_elf.py FOLDER --machine x86_64 [--forbid TEXT ...]     needs readelf and PyInstaller
    python check_elf.py FOLDER --depends                                prints a package's Depends; needs readelf

Every ELF file must be of that machine and need only what is shipped or in the packages that Depends names. No file
may hold one of the forbidden texts (paths of the build machine), no module may remember an absolute path of its own
source.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "windows"))

from check_folder import archive_faults, holds, parts, zip_faults
from system_libraries import PACKAGES, depends

OF_LIBC = re.compile(r"(lib(c|m|dl|rt|pthread|util|resolv)|ld-linux-(x86-64|aarch64))\.so\.\d+")
"""What the package libc6 has of what is needed."""

FROM_ELSEWHERE = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn\w*|cufft|curand|nvrtc|nvinfer\w*|nvonnxparser)\.so\.\d+"
)
"""NVIDIA's libraries: the driver's, CUDA's, cuDNN's, TensorRT's."""

NEED_THEM = ("libonnxruntime_providers_", "libonnxruntime-genai-cuda")
"""Which alone may need these."""

NEEDED = (
    "appliance",
    "_internal/assets/models/classify/1/model.onnx",
    "_internal/appliance/web/index.html",
    "_internal/fastapi_offline/static/swagger-ui.css",
    "_internal/limits/resources/redis/lua_scripts/moving_window.lua",
    "_internal/libpython3.11.so.1.0",
    "_internal/base_library.zip",
)
MACHINES = {"x86_64": 62, "aarch64": 183}
"""elf.h, EM_X86_64 and EM_AARCH64."""


def is_elf(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def elf_machine(file: Path) -> int:
    """``e_machine`` of an ELF file of this byte order (both machines are little-endian)."""
    with file.open("rb") as stream:
        return int.from_bytes(stream.read(20)[18:20], "little")


def missing(needed: Iterable[str], importer: str, shipped: frozenset[str]) -> list[str]:
    """Which of the libraries that the file ``importer`` needs would not be found on a clean system."""
    provider = importer.startswith(NEED_THEM)

    def found(name: str) -> bool:
        if name in shipped or name in PACKAGES or OF_LIBC.fullmatch(name):
            return True
        return provider and FROM_ELSEWHERE.fullmatch(name) is not None

    return [name for name in needed if not found(name)]


def newest_glibc(versions: str) -> tuple[int, ...]:
    """The highest ``GLIBC_…`` in what ``readelf -V`` prints; (0,): none."""
    found = re.findall(r"\bGLIBC_(\d+(?:\.\d+)*)\b", versions)
    return max((tuple(map(int, version.split("."))) for version in found), default=(0,))


def readelf(*arguments: str) -> str:
    return subprocess.run(["readelf", "-W", *arguments], check=True, capture_output=True, text=True).stdout  # noqa: S607


def needs(file: Path) -> list[str]:
    """The libraries that an ELF file is loaded with."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", str(file)))


def elf_faults(file: Path, machine: str, shipped: frozenset[str]) -> list[str]:
    if elf_machine(file) != MACHINES[machine]:
        return [f"is not for {machine}"]
    return [f"needs {name}, which nothing brings" for name in missing(needs(file), file.name, shipped)]


def check(folder: Path, machine: str, forbidden: list[str]) -> list[str]:
    """All faults, a line each."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    shipped = frozenset(path.name for path in files)
    faults = [f"{name} is missing" for name in NEEDED if not (folder / name).is_file()]
    if not any(path.name.startswith("onnxruntime_pybind11_state") for path in files):
        faults.append("ONNX Runtime is missing")
    if any(name.startswith("libonnxruntime-genai") for name in shipped) and not any(
        name.startswith("libonnxruntime.so") for name in shipped
    ):
        faults.append("GenAI is there, but not the library of ONNX Runtime that it loads")
    for file in files:
        name = file.relative_to(folder).as_posix()
        if is_elf(file):
            faults += [f"{name} {fault}" for fault in elf_faults(file, machine, shipped)]
        if (text := holds(file.read_bytes(), forbidden)) is not None:
            faults.append(f"{name} holds {text}")
        if file.suffix == ".zip":
            faults += zip_faults(file)
    return faults + list(archive_faults(folder / "appliance", forbidden))


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder", type=Path)
    words.add_argument("--machine", choices=MACHINES, default="x86_64")
    words.add_argument("--forbid", action="append", default=[], metavar="TEXT", help="may be in no file")
    words.add_argument("--depends", action="store_true", help="only print the packages that it needs")
    given = words.parse_args()
    folder: Path = given.folder
    files = [path for path in folder.rglob("*") if path.is_file()]
    binaries = [path for path in files if is_elf(path)]
    if not binaries:
        sys.exit(f"there is no program in {folder}")
    glibc = ".".join(map(str, max(newest_glibc(readelf("-V", str(path))) for path in binaries)))
    if given.depends:
        print(", ".join([f"libc6 (>= {glibc})", *depends({name for path in binaries for name in needs(path)})]))
        return 0
    sizes = [(path.relative_to(folder).as_posix(), path.lstat().st_size) for path in files]
    total = sum(size for _, size in sizes)
    print(f"{len(files)} files, {len(binaries)} of them programs and libraries, {total / 1e6:.1f} MB; glibc {glibc}.")
    print("The largest parts:")
    for name, size in parts(sizes)[:15]:
        print(f"{size / 1e6:8.1f} MB  {name}")
    faults = check(folder, given.machine, given.forbid)
    for fault in faults:
        print(f"FAULT {fault}")
    print("no faults" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
