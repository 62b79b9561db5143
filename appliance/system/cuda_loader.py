"""The real `Loader` of `appliance.system.cuda`, with ctypes, and its fake.

Loading a library runs its code, so all of this belongs in the engine's process, where CUDA has just failed.
"""

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.system.cuda import Driver

_PATIENCE = 10.0  # seconds for a driver to answer; one that hangs would do so for good
_MAJOR, _MINOR = 75, 76  # cuda.h, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_MOST_DEVICES = 64


class SystemLoader:
    """Looks at this machine. `patience` is how long the driver may take, in seconds."""

    windows = sys.platform == "win32"

    def __init__(self, patience: float = _PATIENCE) -> None:
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
            _open(name)
        except OSError as error:
            return str(error)
        return None

    def locate(self, name: str) -> Path | None:
        if Path(name).is_file():
            return Path(name)
        variable = "PATH" if self.windows else "LD_LIBRARY_PATH"
        for folder in os.environ.get(variable, "").split(os.pathsep):
            if folder and (Path(folder) / name).is_file():
                return Path(folder) / name
        return None

    def imports(self, file: Path) -> Sequence[str]:
        try:
            return pe_imports(file.read_bytes())
        except (OSError, ValueError, struct.error):
            return ()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


class FakeLoader:
    """For tests: `libraries` maps names that do not load to the system's words; the others load.

    With `only`, nothing but the names in it loads. `needs` maps file names to their imports, `places` names
    to files. `loaded` remembers what was tried.
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


def pe_imports(data: bytes) -> list[str]:
    """The names in a Windows library's import table (PE format, Microsoft's specification, "The .idata Section").

    ValueError or struct.error if it is no such file.
    """
    (header,) = struct.unpack_from("<I", data, 0x3C)
    if data[:2] != b"MZ" or data[header : header + 4] != b"PE\0\0":
        raise ValueError("not a Windows library")
    sections, optional_size = struct.unpack_from("<H12xH", data, header + 6)
    optional = header + 24
    (magic,) = struct.unpack_from("<H", data, optional)
    directories = optional + (112 if magic == 0x20B else 96)
    (table,) = struct.unpack_from("<I", data, directories + 8)
    ranges = [struct.unpack_from("<IIII", data, optional + optional_size + 40 * n + 8) for n in range(sections)]

    def offset(address: int) -> int:
        for size, start, raw_size, raw in ranges:
            if start <= address < start + max(size, raw_size):
                return int(address - start + raw)
        raise ValueError("an address outside the file")

    names: list[str] = []
    entry = offset(table) if table else None
    while entry is not None:
        (name,) = struct.unpack_from("<I", data, entry + 12)
        if name == 0:
            break
        begin = offset(name)
        names.append(data[begin : data.index(b"\0", begin)].decode("ascii", "replace"))
        entry += 20
    return names
