"""TensorRT's libraries: which ONNX Runtime's provider needs, where they are, which version, and why they do not load.

They are looked for in NVIDIA's package for Python (its folder ``tensorrt_libs``), then where the system looks; on a
Jetson JetPack has put them there. Loading runs their code, so it belongs in the engine's process.
"""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

from appliance.system.cuda import Loader, missing_dependency, without_folders
from appliance.system.dlls import Here, Surroundings

PACKAGE_FOLDER = "tensorrt_libs"

# The provider is linked with the first two, and loads the third when a session is made.
_STEMS = ("nvinfer", "nvonnxparser", "nvinfer_plugin")
_WANTED = re.compile(rb"nvinfer(?:\.so\.|_)(\d{1,3})")
_OTHERS = (-1, 1, -2, 2)  # other majors that may be found in place of the wanted one, the nearest first


def wanted_major(provider: Path) -> int | None:
    """The major version of TensorRT that a provider is linked with, from the name in its file; None: it has none."""
    try:
        found = _WANTED.search(provider.read_bytes())
    except OSError:
        return None
    return int(found[1]) if found else None


def file_name(windows: bool, stem: str, major: int) -> str:
    """``libnvinfer.so.10``, ``nvinfer_10.dll``."""
    return f"{stem}_{major}.dll" if windows else f"lib{stem}.so.{major}"


def folders(major: int, around: Surroundings | None = None) -> list[Path]:
    """NVIDIA's package for Python, where it has libraries of that version."""
    around = around or Here()
    roots = [*([program] if (program := around.program()) else []), *around.packages()]
    name = file_name(around.windows, _STEMS[0], major)
    return [folder for root in roots if around.has((folder := root / PACKAGE_FOLDER) / name)]


def load(loader: Loader, major: int) -> str | None:
    """Load TensorRT into this process, so that the provider finds it. Why that fails in one line, or None."""
    for stem in _STEMS:
        name = file_name(loader.windows, stem, major)
        error = loader.load(name)
        if error is not None:
            return _reason(loader, name, stem, major, error)
    return None


def _reason(loader: Loader, name: str, stem: str, major: int, error: str) -> str:
    install = f"install NVIDIA's TensorRT {major}"
    place = loader.locate(name)
    dependency = missing_dependency(loader, place, error) if place else None
    if place is not None and dependency not in (None, name):
        return f"{name} (TensorRT {major}) needs {dependency}, which was not found"
    if place is not None and dependency is None:
        return f"{name} (TensorRT {major}) does not load: {without_folders(' '.join(error.split()))[:200]}"
    for step in _OTHERS:
        other = major + step
        if other > 0 and loader.load(file_name(loader.windows, stem, other)) is None:
            return f"TensorRT {major} is needed ({name}), but TensorRT {other} was found; {install}"
    return f"{name} (TensorRT {major}) was not found; {install}"


def version(
    windows: bool, major: int, opened: Callable[[str], ctypes.CDLL] = ctypes.CDLL, folder: Path | None = None
) -> str | None:
    """What the loaded library says of itself ("10.13.3"); None if it does not say.

    ``getInferLibVersion`` counts as NvInferVersion.h does: 101303 is 10.13.3, before 10 8601 was 8.6.1.
    """
    name = file_name(windows, _STEMS[0], major)
    try:
        count = int(opened(str(folder / name) if folder else name).getInferLibVersion())
    except (OSError, AttributeError):
        return None
    first, second = (10_000, 100) if major >= 10 else (1000, 100)
    return f"{count // first}.{count % first // second}.{count % second}"
