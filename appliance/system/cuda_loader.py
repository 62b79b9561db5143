"""The real `Loader` of `appliance.system.cuda`, with ctypes, and its fake.

Loading a library runs its code, so all of this belongs in the engine's process, where CUDA has just failed.
"""

import contextlib
import ctypes
import os
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.system import pe
from appliance.system.cuda import Driver

_PATIENCE = 10.0  # seconds for a driver to answer; one that hangs would do so for good
_MAJOR, _MINOR = 75, 76  # cuda.h, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_MOST_DEVICES = 64


class SystemLoader:
    """Looks at this machine: first in `folders`, then where the system looks. `patience` is how long the driver may
    take, in seconds."""

    windows = sys.platform == "win32"

    def __init__(self, folders: Sequence[Path] = (), patience: float = _PATIENCE) -> None:
        self._folders = folders
        self._patience = patience
        self._driver: Driver | None = None

    def driver(self) -> Driver:
        """Asked once, in a thread that is left alone if the driver hangs."""
        if self._driver is None:
            answer: list[Driver] = []
            asking = threading.Thread(target=lambda: answer.append(_ask_driver()), name="cuda-driver", daemon=True)
            asking.start()
            asking.join(self._patience)
            self._driver = answer[0] if answer else Driver(hung=True)
        return self._driver

    def load(self, name: str) -> str | None:
        try:
            _open(str(self._beside(name) or name))
        except OSError as error:
            return str(error)
        return None

    def locate(self, name: str) -> Path | None:
        if Path(name).is_file():
            return Path(name)
        variable = "PATH" if self.windows else "LD_LIBRARY_PATH"
        searched = (Path(folder) / name for folder in os.environ.get(variable, "").split(os.pathsep) if folder)
        return self._beside(name) or next((file for file in searched if file.is_file()), None)

    def imports(self, file: Path) -> Sequence[str]:
        try:
            return list(pe.imports(file))
        except (OSError, ValueError, struct.error):
            return ()

    def lacks(self, name: str, user: Path) -> str | None:
        with contextlib.suppress(OSError, ValueError, struct.error):
            wanted = pe.imports(user).get(name, ())
            library = _open(str(self._beside(name) or name))
            return next((function for function in wanted if not _has(library, function)), None)
        return None

    def _beside(self, name: str) -> Path | None:
        """The first of the folders' files of this name."""
        return next((folder / name for folder in self._folders if (folder / name).is_file()), None)

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


class FakeLoader:
    """For tests: `libraries` maps names that do not load to the system's words; the others load.

    With `only`, nothing but the names in it loads. `needs` maps file names to their imports, `places` names
    to files, `lacking` names of libraries to a function that they have not. `loaded` remembers what was tried.
    """

    def __init__(
        self,
        driver: Driver | None = None,
        libraries: Mapping[str, str] | None = None,
        *,
        only: Sequence[str] | None = None,
        needs: Mapping[str, Sequence[str]] | None = None,
        places: Mapping[str, Path] | None = None,
        variables: Mapping[str, str] | None = None,
        lacking: Mapping[str, str] | None = None,
        windows: bool = False,
    ) -> None:
        self.windows = windows
        self.loaded: list[str] = []
        self._driver = driver or Driver(version=13020, init=0, capabilities=((8, 9),))
        self._libraries = dict(libraries or {})
        self._only = None if only is None else set(only)
        self._needs = dict(needs or {})
        self._places = dict(places or {})
        self._variables = dict(variables or {})
        self._lacking = dict(lacking or {})

    def driver(self) -> Driver:
        return self._driver

    def load(self, name: str) -> str | None:
        self.loaded.append(name)
        key = name.replace("\\", "/").rpartition("/")[2]
        if self._only is not None and key not in self._only:
            return self._libraries.get(key, f"{key}: cannot open shared object file: No such file or directory")
        return self._libraries.get(key)

    def locate(self, name: str) -> Path | None:
        return self._places.get(name)

    def imports(self, file: Path) -> Sequence[str]:
        return self._needs.get(file.name, ())

    def lacks(self, name: str, user: Path) -> str | None:
        return self._lacking.get(name)

    def variable(self, name: str) -> str | None:
        return self._variables.get(name)


def _open(name: str) -> ctypes.CDLL:
    if sys.platform == "win32":
        # with added folders first, then with PATH: a library counts as found if either finds it
        first, second = (0x1100, 0x8) if Path(name).is_absolute() else (0x1000, 0)  # libloaderapi.h
        try:
            return ctypes.WinDLL(name, winmode=first)
        except OSError:
            return ctypes.WinDLL(name, winmode=second)
    return ctypes.CDLL(name)


def _has(library: ctypes.CDLL, function: str) -> bool:
    try:
        getattr(library, function)
    except AttributeError:
        return False
    return True


def _ask_driver() -> Driver:
    try:
        cuda = _open("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as error:
        return Driver(missing=str(error))
    try:
        version, count = ctypes.c_int(0), ctypes.c_int(0)
        told = cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
        init = int(cuda.cuInit(0))
        if init == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            count.value = 0
        return Driver(
            version=version.value if told else None,
            init=init,
            capabilities=tuple(_capability(cuda, n) for n in range(min(count.value, _MOST_DEVICES))),
        )
    except AttributeError as error:  # a library of that name without the functions
        return Driver(missing=str(error))


def _capability(cuda: ctypes.CDLL, number: int) -> tuple[int, int]:
    """(0, 0) is never given: a device that does not tell counts as new enough."""
    device, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    failed = (
        cuda.cuDeviceGet(ctypes.byref(device), number)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    )
    return (99, 0) if failed else (major.value, minor.value)
