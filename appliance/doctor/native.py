"""NVIDIA's driver and libraries, tried out in a process that ends right away: loading them runs their code."""

import contextlib
import ctypes
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from appliance import backends
from appliance.backends.base import Backend, DeviceLost, LoadRequest
from appliance.doctor.facts import Library, Native, TensorRT
from appliance.doctor.model import MODEL
from appliance.errors import ApplianceError
from appliance.models.spec import ModelConfig
from appliance.system import cuda_loader, dlls, paths, tensorrt
from appliance.system.cuda import CudaFinding, Driver, Loader
from appliance.system.cuda_needs import CUDA, file_name, least_driver, release
from appliance.system.processes import start_child

MOD_NOT_FOUND = 126
"""winerror.h: the library, or one that it needs, is not there."""


class Remembering:
    """A loader that loads each name once and keeps what the system said."""

    def __init__(self, inner: Loader) -> None:
        self.windows = inner.windows
        self.errors: dict[str, str | None] = {}
        self._inner = inner

    def driver(self) -> Driver:
        return self._inner.driver()

    def load(self, name: str) -> str | None:
        if name not in self.errors:
            self.errors[name] = self._inner.load(name)
        return self.errors[name]

    def locate(self, name: str) -> Path | None:
        return self._inner.locate(name)

    def imports(self, file: Path) -> Sequence[str]:
        return self._inner.imports(file)

    def lacks(self, name: str, user: Path) -> str | None:
        return self._inner.lacks(name, user)

    def variable(self, name: str) -> str | None:
        return self._inner.variable(name)

    def code(self, name: str) -> int | None:
        """The number of Windows' error at loading that name, or None."""
        return windows_code(self.errors.get(name)) if self.windows else None


def windows_code(said: str | None) -> int | None:
    """The number in Python's words of a failed LoadLibrary; for 126 it has words of its own."""
    if said is None:
        return None
    found = re.search(r"\[WinError (\d+)\]", said)
    if found:
        return int(found[1])
    return MOD_NOT_FOUND if said.startswith("Could not find module") else None


def examine(
    inner: Loader,
    libraries: dlls.Libraries,
    provider: Path | None,
    why: Callable[[Loader], CudaFinding | None],
    *,
    version: str | None,
    cure: str | None,
) -> Native:
    """What there is and what is wrong with it. ``provider``, ``version``: of ONNX Runtime's GPU build, None for the
    CPU's, which wants no libraries. ``why``: why CUDA does not run (None: it does), asked once all is loaded."""
    loader = Remembering(inner)
    row = release(version or "")
    cuda, cudnn = (row.cuda, row.cudnn) if row else (max(CUDA), 9)
    found = libraries.report(loader)[:-1] if provider is not None else []  # the last is the driver's
    fault = why(loader)
    return Native(
        driver=loader.driver(),
        libraries=tuple(_row(one, loader) for one in found),
        fault=None if fault is None or fault.part == "start" else fault,
        cuda=cuda,
        cudnn=cudnn,
        code=None if provider is None else loader.code(str(provider)),
        least_driver=least_driver(loader.windows, cuda),
        cure=cure,
    )


def _row(found: dlls.Found, loader: Remembering) -> Library:
    return Library(
        name=found.name,
        wanted=found.wanted,
        kind=found.kind,
        loadable=found.loadable,
        reason=found.reason,
        code=loader.code(str(found.file or found.name)),
    )


class Later(msgspec.Struct, frozen=True):
    """What not every library survives being asked for. ``versions``: see ``Native``."""

    versions: dict[str, str] = {}
    tensorrt: TensorRT | None = None


def main(connection: socket.socket, packs: Path | None, index: int, works: bool) -> None:
    """The child's side: a line of JSON with what there is, and one with a ``Later``. ``works``: CUDA is known to run,
    so nobody need look why it does not."""
    from appliance.backends import onnx_device  # imports ONNX Runtime, as the engine does

    version = dlls.onnxruntime_version()
    libraries = dlls.look("onnx", packs, version)
    backend = backends.get("onnx", packs)
    provider = onnx_device.provider_library()

    def why(loader: Loader) -> CudaFinding | None:
        if works:
            return None
        if provider is not None:
            _try_session(backend, index)
        return onnx_device.why_not(loader, provider, index)

    loader = cuda_loader.SystemLoader(libraries.folders())
    found = examine(loader, libraries, provider, why, version=version, cure=dlls.cure())
    connection.sendall(msgspec.json.encode(found) + b"\n")
    told = versions(found, libraries, loader.windows)
    has = with_tensorrt(onnx_device.provider_library("tensorrt"), libraries) if provider is not None else None
    connection.sendall(msgspec.json.encode(Later(told, has)) + b"\n")


def with_tensorrt(provider: Path | None, libraries: dlls.Libraries) -> TensorRT:
    """Whether TensorRT loads. ``provider``: its library in ONNX Runtime's build, None: there is none."""
    major = tensorrt.wanted_major(provider) if provider else None
    if major is None:
        return TensorRT(fault="this build of ONNX Runtime has no TensorRT")
    places = tensorrt.folders(major)
    loader = cuda_loader.SystemLoader([*places, *libraries.folders()])
    fault = tensorrt.load(loader, major)
    folder = next(iter(places), None)
    return TensorRT(fault=fault, version=None if fault else tensorrt.version(loader.windows, major, folder=folder))


def _try_session(backend: Backend, index: int) -> None:
    """The provider's library can be loaded only where ONNX Runtime has tried to use it."""
    with tempfile.TemporaryDirectory(prefix="appliance-doctor-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(MODEL)
        request = LoadRequest(
            model="doctor", path=file, root=file.parent, device=f"cuda:{index}", threads=1, config=ModelConfig()
        )
        with contextlib.suppress(ApplianceError, DeviceLost):
            backend.open(request).close()


def versions(found: Native, libraries: dlls.Libraries, windows: bool) -> dict[str, str]:
    """What CUDA's runtime and cuDNN, where all of it loads, say of themselves ("13.0", "9.28.1")."""
    told = {}
    names = {"CUDA": file_name(windows, "cudart", found.cuda), "cuDNN": file_name(windows, "cudnn", found.cudnn)}
    for product, name in names.items():
        rows = [row for row in found.libraries if row.wanted.startswith(f"{product} ")]
        if not rows or not all(row.loadable for row in rows):
            continue  # cuDNN ends the process if a part of it is missing
        place = libraries.choice(name)
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(str(place.folder / name) if place else name)
            if product == "CUDA":
                number = ctypes.c_int(0)
                if library.cudaRuntimeGetVersion(ctypes.byref(number)) == 0:
                    told[product] = f"{number.value // 1000}.{number.value % 1000 // 10}"
            else:
                library.cudnnGetVersion.restype = ctypes.c_size_t
                count = library.cudnnGetVersion()
                told[product] = f"{count // 10_000}.{count % 10_000 // 100}.{count % 100}"
    return told


class NativeFault(RuntimeError):
    """The process that tries the libraries out did not tell anything; the message says why."""


def ask(state: Path, index: int, works: bool, limit_s: float, said: IO[bytes]) -> Native:
    """The parent's side, within ``limit_s``. ``said``: takes what the child prints. NativeFault, OSError."""
    end = time.monotonic() + limit_s
    command = [*paths.program_command(), "doctor-probe", "--runtimes", str(paths.runtimes(state))]
    command += ["--index", str(index), *(["--works"] if works else [])]
    child, connection = start_child(command, None, said, connect_timeout=limit_s)
    told = b""
    try:
        with connection:
            while part := _receive(connection, end):
                told += part
    except TimeoutError:
        if b"\n" not in told:
            words = f"NVIDIA's driver and libraries could not be tried out within {limit_s:.0f} s"
            raise NativeFault(words) from None
    finally:
        code = _ended(child)
    first, _, second = told.partition(b"\n")
    if not first:
        raise NativeFault(f"the process that tries NVIDIA's driver and libraries out ended with code {code}")
    found = msgspec.json.decode(first, type=Native)
    if not second.endswith(b"\n"):
        return found
    later = msgspec.json.decode(second, type=Later)
    return msgspec.structs.replace(found, versions=later.versions, tensorrt=later.tensorrt)


def _ended(child: subprocess.Popen[bytes]) -> int:
    """Its exit code; it is killed if it does not end now."""
    try:
        return child.wait(1.0)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _receive(connection: socket.socket, end: float) -> bytes:
    connection.settimeout(max(0.01, end - time.monotonic()))
    try:
        return connection.recv(1 << 16)
    except ConnectionError:
        return b""
