"""Where the libraries of CUDA and cuDNN come from: the one home of that search.

In the engine process, before a backend is imported, ``prepare`` looks through folders in this order: those in the
program itself, installed runtime packs, the ``nvidia`` packages that Python could import, NVIDIA's toolkit. The first
folder with a file of the name wins. What is in none of them is left to the system's own search; the driver always is.
On Windows the folders are added to this process's search, and to this process's ``PATH`` (cuDNN and NVRTC look for
their parts there); nothing is written that outlives the process. Everywhere the backend is given the folders, and has
its runtime load from them first.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from appliance.system import paths
from appliance.system.cuda import Loader, missing_dependency, without_folders
from appliance.system.cuda_needs import CUDA, Family, Wanted, least_driver, libraries, release

Kind = Literal["bundled", "pack", "package", "toolkit", "system", "driver", "missing"]

PACKS: Mapping[Family, str] = {"onnx": "cuda", "torch": "torch"}
"""The runtime pack of each family."""


class Place(msgspec.Struct, frozen=True):
    """A folder to look in."""

    kind: Kind
    folder: Path


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One library: by which name, of which version it is wanted, where it comes from, and whether it loads.

    ``kind`` "system": no folder of ours has it, the system's own search finds it. ``reason``: why it does not load,
    in words for a person; None if it does.
    """

    name: str
    wanted: str
    kind: Kind
    loadable: bool
    reason: str | None = None
    file: Path | None = None


class Surroundings(Protocol):
    """What the search looks at. Nothing here raises."""

    windows: bool

    def program(self) -> Path | None:
        """The folder of the frozen program's own files, or None when it is not frozen."""
        ...

    def packages(self) -> Sequence[Path]:
        """The folders that Python imports packages from."""
        ...

    def variables(self) -> Mapping[str, str]:
        """The environment."""
        ...

    def folders(self, folder: Path) -> Sequence[str]:
        """The names of the folders in a folder; empty if it cannot be read."""
        ...

    def has(self, file: Path) -> bool:
        """Whether there is a file of that name."""
        ...


def search(family: Family, around: Surroundings, packs: Path | None, cuda: int) -> list[Place]:
    """All folders to look in, whether or not they exist, the first to be used first. ``packs``: where runtime packs
    are installed."""
    found: list[Place] = []
    program = around.program()
    if program is not None:
        own = [program / PACKS[family], *_packages(around, family, [program]), program]
        found += [Place("bundled", folder) for folder in own]
    if packs is not None:
        found += [Place("pack", folder) for folder in installed_packs(around.folders(packs), packs, PACKS[family])]
    found += [Place("package", folder) for folder in _packages(around, family, around.packages())]
    found += [Place("toolkit", folder) for folder in _toolkits(around, cuda)]
    first: dict[Path, Place] = {}
    for place in found:
        first.setdefault(place.folder, place)
    return list(first.values())


def installed_packs(names: Iterable[str], packs: Path, pack: str) -> list[Path]:
    """The libraries' folders of the installed versions of a pack, the newest first."""
    versions = {name: match[1] for name in names if (match := re.fullmatch(rf"{re.escape(pack)}-(\d[\w.]*)", name))}
    return [packs / name / "bin" for name in sorted(versions, key=lambda n: _natural(versions[n]), reverse=True)]


def _natural(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _packages(around: Surroundings, family: Family, roots: Iterable[Path]) -> list[Path]:
    """The folders of libraries in NVIDIA's packages, and in PyTorch's for its own family."""
    found: list[Path] = []
    for root in roots:
        if family == "torch":
            found.append(root / "torch" / "lib")
        for name in sorted(around.folders(root / "nvidia"), reverse=True):  # cu13 before cu12
            base = root / "nvidia" / name
            found += [base / "bin" / "x86_64", base / "bin"] if around.windows else [base / "lib"]
    return found


def _toolkits(around: Surroundings, cuda: int) -> list[Path]:
    """NVIDIA's own installation: the one of the wanted major first, where the variables name several."""
    variables = around.variables()
    exact = sorted((n for n in variables if re.fullmatch(rf"CUDA_PATH_V{cuda}_\d+", n)), key=_natural, reverse=True)
    found: list[Path] = []
    for name in [*exact, "CUDA_PATH"]:
        if variables.get(name):
            home = Path(variables[name])
            found += [home / "bin" / "x64", home / "bin"] if around.windows else [home / "lib64", home / "lib"]
    return found


class Libraries:
    """The outcome of a search for one family of runtime: folders to load from, and a report."""

    def __init__(
        self, places: Sequence[Place], wanted: Sequence[Wanted], around: Surroundings, least: str | None = None
    ) -> None:
        self.wanted = wanted
        self.places = [p for p in places if any(around.has(p.folder / w.name) for w in wanted)]
        self._around = around
        self._least = least

    def folders(self) -> list[Path]:
        """The folders that hold something wanted, in order."""
        return [place.folder for place in self.places]

    def choice(self, name: str) -> Place | None:
        """The place that a library is taken from; None if none of them has it."""
        return next((place for place in self.places if self._around.has(place.folder / name)), None)

    def report(self, loader: Loader) -> list[Found]:
        """Each library in turn, loaded to see whether it can be. That belongs in a process that may hold them: the
        engine's, or one that ends soon."""
        return [*(self._look(wanted, loader) for wanted in self.wanted), self._driver(loader)]

    def _look(self, wanted: Wanted, loader: Loader) -> Found:
        place = self.choice(wanted.name)
        file = place.folder / wanted.name if place else None
        error = loader.load(str(file) if file else wanted.name)
        kind: Kind = place.kind if place else "missing" if error else "system"
        reason = None if error is None else self._reason(wanted.name, file, error, loader)
        return Found(
            name=wanted.name, wanted=wanted.product, kind=kind, loadable=error is None, reason=reason, file=file
        )

    def _reason(self, name: str, file: Path | None, error: str, loader: Loader) -> str:
        if file is None:
            return "it was not found"
        dependency = missing_dependency(loader, file, error)
        if dependency is not None and dependency != name:
            return f"it needs {dependency}, which was not found"
        if loader.windows:
            for library in loader.imports(file):
                if (function := loader.lacks(library, file)) is not None:
                    return f"it needs another version of {library} (one that has {function})"
        return without_folders(" ".join(error.split()))[:200]

    def _driver(self, loader: Loader) -> Found:
        driver = loader.driver()
        found = driver.missing is None
        reason = None
        if not found or driver.hung:
            newer = f"; install driver {self._least} or newer" if self._least else ""
            reason = "NVIDIA's driver does not answer" if driver.hung else f"no NVIDIA driver is installed{newer}"
        return Found(
            name="nvcuda.dll" if self._around.windows else "libcuda.so.1",
            wanted=f"driver {self._least}" if self._least else "NVIDIA's driver",
            kind="driver" if found else "missing",
            loadable=reason is None,
            reason=reason,
        )


def look(family: Family, packs: Path | None, version: str | None, around: Surroundings | None = None) -> Libraries:
    """Search for what the runtime of ``family`` wants. ``version``: ONNX Runtime's, or None for the newest known."""
    around = around or Here()
    row = release(version or "")
    cuda, cudnn = (row.cuda, row.cudnn) if row else (max(CUDA), 9)
    wanted = libraries(family, around.windows, cuda, cudnn)
    return Libraries(search(family, around, packs, cuda), wanted, around, least_driver(around.windows, cuda))


def prepare(family: Family, packs: Path | None, version: str | None) -> Libraries:
    """``look``, and let this process load from what was found. Once, before the runtime is imported."""
    found = look(family, packs, version)
    if sys.platform == "win32" and found.places:
        for folder in found.folders():
            _added.append(os.add_dll_directory(str(folder)))
        os.environ["PATH"] = os.pathsep.join([*map(str, found.folders()), os.environ.get("PATH", "")])
    return found


_added: list[object] = []  # an added folder counts for as long as its handle lives


def onnxruntime_version() -> str | None:
    """The version of ONNX Runtime's GPU build, without importing it; None if it is not there or does not tell."""
    try:
        return metadata.version("onnxruntime-gpu")
    except metadata.PackageNotFoundError:
        return None


def gpu_runtime() -> bool:
    """Whether a runtime that could use an NVIDIA GPU is installed, told by the names of the packages."""
    for package in ("onnxruntime-gpu", "onnxruntime-genai-cuda", "torch"):
        try:
            if "+cpu" not in metadata.version(package):
                return True
        except metadata.PackageNotFoundError:
            continue
    return False


def cure() -> str | None:
    """What to do about a missing library of CUDA, where a runtime pack is the way; None: the usual advice."""
    install = f"run: {paths.command_name()} runtime install cuda --from FILE"
    if paths.frozen():
        return install
    return f"install the extra 'cuda', or {install}" if sys.platform == "win32" else None


class Here:
    """This machine and this process."""

    windows = sys.platform == "win32"

    def program(self) -> Path | None:
        return paths.bundle()

    def packages(self) -> Sequence[Path]:
        return [Path(entry) for entry in sys.path if entry]

    def variables(self) -> Mapping[str, str]:
        return os.environ

    def folders(self, folder: Path) -> Sequence[str]:
        try:
            return [entry.name for entry in folder.iterdir() if entry.is_dir()]
        except OSError:
            return ()

    def has(self, file: Path) -> bool:
        return file.is_file()


class FakeSurroundings:
    """For tests: ``files`` are all that there is."""

    def __init__(
        self,
        files: Iterable[Path] = (),
        *,
        windows: bool = True,
        program: Path | None = None,
        packages: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.windows = windows
        self._files = set(files)
        self._folders = {parent for file in self._files for parent in file.parents}
        self._program, self._packages, self._variables = program, packages, dict(variables or {})

    def program(self) -> Path | None:
        return self._program

    def packages(self) -> Sequence[Path]:
        return self._packages

    def variables(self) -> Mapping[str, str]:
        return self._variables

    def folders(self, folder: Path) -> Sequence[str]:
        return sorted(f.name for f in self._folders if f.parent == folder and f != folder)

    def has(self, file: Path) -> bool:
        return file in self._files
