"""Looks through a frozen folder: is it whole, is it clean? Prints the sizes of its parts; exit code 1 at any fault.

    python check_folder.py FOLDER [--forbid TEXT ...]

Every PE file must be x64, not Wine's, and import only what is shipped or part of Windows 10. No file may hold one of
the forbidden texts (the build machine's paths), no module may remember an absolute path of its source. Needs what a
build has: pefile and PyInstaller.
"""

import argparse
import marshal
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType

from freeze import is_wine

PE = (".exe", ".dll", ".pyd")

WINDOWS_10 = frozenset(
    {
        "advapi32",
        "bcrypt",
        "bcryptprimitives",
        "cabinet",
        "comctl32",
        "comdlg32",
        "crypt32",
        "d3d12",
        "dbgeng",
        "dbghelp",
        "dnsapi",
        "dxcore",
        "dxgi",
        "gdi32",
        "imm32",
        "iphlpapi",
        "kernel32",
        "mswsock",
        "msvcrt",
        "netapi32",
        "ntdll",
        "ole32",
        "oleaut32",
        "pdh",
        "powrprof",
        "propsys",
        "psapi",
        "rpcrt4",
        "secur32",
        "setupapi",
        "shell32",
        "shlwapi",
        "ucrtbase",
        "user32",
        "userenv",
        "version",
        "windowscodecs",
        "winhttp",
        "winmm",
        "winspool.drv",
        "ws2_32",
        "wtsapi32",
    }
)
"""What every Windows 10 has in System32 and the program may rely on, without ``.dll``."""

FROM_ELSEWHERE = frozenset(
    {
        "nvcuda",
        "cublas64_13",
        "cublaslt64_13",
        "cudnn64_9",
        "cufft64_12",
        "curand64_10",
        "cudart64_13",
        "nvrtc64_130_0",
    }
)
"""The driver's and the runtime pack's libraries, which ``onnxruntime_providers_cuda.dll`` alone may import."""

NEEDED = (
    "appliance.exe",
    "appliance-cli.exe",
    "_internal/assets/models/classify/1/model.onnx",
    "_internal/assets/icons/appliance.ico",
    "_internal/onnxruntime/capi/onnxruntime_pybind11_state.pyd",
    "_internal/fastapi_offline/static/swagger-ui.css",
    "_internal/limits/resources/redis/lua_scripts/moving_window.lua",
    "_internal/python311.dll",
    "_internal/base_library.zip",
)


def missing_import(name: str, importer: str, shipped: frozenset[str]) -> bool:
    """Whether ``importer`` would not find the DLL ``name`` (in any case) on a clean Windows 10.

    ``shipped``: the names that lie beside it, in lower case.
    """
    low = name.lower()
    if low in shipped or low.startswith(("api-ms-win-", "ext-ms-win-")):
        return False
    stem = low.removesuffix(".dll")
    if importer.lower() == "onnxruntime_providers_cuda.dll" and stem in FROM_ELSEWHERE:
        return False
    return stem not in WINDOWS_10


def absolute(path: str) -> bool:
    """``C:\\…``, ``Z:/…``, ``/…``, ``\\\\…``; names such as ``<frozen os>`` and relative ones are not."""
    return path.startswith(("/", "\\")) or path[1:3] in (":\\", ":/")


def sources(code: CodeType) -> Iterator[str]:
    """The source files that a module's code remembers."""
    yield code.co_filename
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from sources(constant)


def parts(files: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """(part, bytes) of the (path in the folder, bytes) given, the largest first; a part is a folder in ``_internal``,
    a model, or a single file."""
    found: dict[str, int] = {}
    for path, size in files:
        pieces = path.split("/")
        if pieces[:3] == ["_internal", "assets", "models"]:
            name = "/".join(pieces[1:4])
        else:
            name = pieces[1] if pieces[0] == "_internal" and len(pieces) > 1 else pieces[0]
        found[name] = found.get(name, 0) + size
    return sorted(found.items(), key=lambda part: (-part[1], part[0]))


def holds(data: bytes, texts: Iterable[str]) -> str | None:
    """The first of ``texts`` that ``data`` holds, as UTF-8 or UTF-16, whatever the slashes; None: none."""
    for text in texts:
        for slashes in {text, text.replace("/", "\\"), text.replace("/", "\\\\")}:
            if slashes.encode() in data or slashes.encode("utf-16-le") in data:
                return text
    return None


def check(folder: Path, forbidden: list[str]) -> list[str]:
    """All faults, a line each."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    shipped = frozenset(path.name.lower() for path in files)
    faults = [f"{name} is missing" for name in NEEDED if not (folder / name).is_file()]
    for file in files:
        name = file.relative_to(folder).as_posix()
        if file.suffix.lower() in PE:
            faults += [f"{name} {fault}" for fault in _pe_faults(file, shipped)]
        if (text := holds(file.read_bytes(), forbidden)) is not None:
            faults.append(f"{name} holds {text}")
        if file.suffix == ".zip":
            faults += zip_faults(file)
        if file.suffix == ".exe":
            faults += archive_faults(file, forbidden)
    return faults


def _pe_faults(file: Path, shipped: frozenset[str]) -> Iterator[str]:
    import pefile

    if is_wine(file):
        yield "is Wine's own"
    with pefile.PE(str(file), fast_load=True) as pe:
        if pe.FILE_HEADER.Machine != pefile.MACHINE_TYPE["IMAGE_FILE_MACHINE_AMD64"]:
            yield "is not x64"
        # what is loaded with the file; a delayed import is asked for only where a function of it is
        pe.parse_data_directories([pefile.DIRECTORY_ENTRY["IMAGE_DIRECTORY_ENTRY_IMPORT"]])
        for entry in getattr(pe, "DIRECTORY_ENTRY_IMPORT", []):
            wanted = entry.dll.decode("ascii")
            if missing_import(wanted, file.name, shipped):
                yield f"imports {wanted}, which is neither shipped nor part of Windows 10"


def zip_faults(file: Path) -> Iterator[str]:
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if name.endswith(".pyc"):
                yield from _module_faults(f"{file.name}/{name}", marshal.loads(archive.read(name)[16:]))  # noqa: S302 - our own


def archive_faults(file: Path, forbidden: list[str]) -> Iterator[str]:
    """The modules inside an exe, which are compressed there."""
    from PyInstaller.archive.readers import CArchiveReader

    outer = CArchiveReader(str(file))
    for name in outer.toc:
        if not name.endswith(".pyz"):
            if (text := holds(outer.extract(name), forbidden)) is not None:
                yield f"{file.name}/{name} holds {text}"
            continue
        inner = outer.open_embedded_archive(name)
        for module in inner.toc:
            code = inner.extract(module)
            if isinstance(code, CodeType):
                yield from _module_faults(f"{file.name}/{module}", code)
                if (text := holds(marshal.dumps(code), forbidden)) is not None:
                    yield f"{file.name}/{module} holds {text}"


def _module_faults(name: str, code: object) -> Iterator[str]:
    if isinstance(code, CodeType):
        for source in sorted(set(sources(code))):
            if absolute(source):
                yield f"{name} remembers {source}"


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder", type=Path)
    words.add_argument("--forbid", action="append", default=[], metavar="TEXT", help="may be in no file")
    given = words.parse_args()
    folder: Path = given.folder
    files = [(p.relative_to(folder).as_posix(), p.stat().st_size) for p in folder.rglob("*") if p.is_file()]
    total = sum(size for _, size in files)
    binaries = sum(Path(name).suffix.lower() in PE for name, _ in files)
    print(f"{len(files)} files, {binaries} of them programs and libraries, {total / 1e6:.1f} MB. The largest parts:")
    for name, size in parts(files)[:15]:
        print(f"{size / 1e6:8.1f} MB  {name}")
    faults = check(folder, given.forbid)
    for fault in faults:
        print(f"FAULT {fault}")
    print("no faults" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
