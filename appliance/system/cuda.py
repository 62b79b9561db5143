"""Why CUDA was asked for and does not run, in words that say what to do. Pure: a `Loader` does the looking.

The order is that of what a person must mend first: the build of ONNX Runtime, the driver, the device, the
libraries. ONNX Runtime itself only says that it fell back, and its log names at most the first library.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from appliance.system.cuda_needs import CUDA, file_name, least_driver, libraries

EXTRA = "cuda"
"""The extra of this package that brings the GPU build with its libraries."""

# cuda.h, CUresult
_NO_DEVICE, _STUB, _MISMATCH, _NOT_ON_DEVICE = 100, 34, 803, 804

_DEEPEST = 5  # libraries that need libraries; beyond that a loop of names is more likely than a cause


Part = Literal["build", "driver", "device", "CUDA", "cuDNN", "provider", "start"]
"""What a finding is about: the build of ONNX Runtime, the driver, the card, libraries of CUDA or cuDNN, what else
the provider needs, or nothing of these (all is in place)."""


class CudaFinding(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` is one line for a person. Where it is about a library or a version: which, wanted and found."""

    reason: str
    part: Part
    library: str | None = None
    wanted: str | None = None
    found: str | None = None


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """What the CUDA driver says. `version` as CUDA counts it (13020 is 13.2); `init` is cuInit's code.

    `missing` is the error if the driver's library does not load; `hung` if it did not answer in time.
    """

    missing: str | None = None
    hung: bool = False
    version: int | None = None
    init: int | None = None
    capabilities: tuple[tuple[int, int], ...] = ()


class Loader(Protocol):
    """Native looking around. Nothing here raises; whatever cannot be told is None or empty."""

    windows: bool

    def driver(self) -> Driver:
        """The CUDA driver, started if it can be."""
        ...

    def load(self, name: str) -> str | None:
        """Load a library by name or path: None if that works, else the system's words."""
        ...

    def locate(self, name: str) -> Path | None:
        """The file of a library that is on the search path, loadable or not."""
        ...

    def imports(self, file: Path) -> Sequence[str]:
        """The names of the libraries that a Windows library needs."""
        ...

    def lacks(self, name: str, user: Path) -> str | None:
        """The first function that the Windows library `user` wants of the library `name` and that it has not."""
        ...

    def variable(self, name: str) -> str | None:
        """An environment variable."""
        ...


def why_not_cuda(
    loader: Loader,
    provider: Path | None,
    *,
    cuda_major: int = 13,
    cudnn_major: int = 9,
    device: int = 0,
    error: str | None = None,
    cure: str | None = None,
) -> CudaFinding:
    """Why a session that was asked for CUDA device `device` has no CUDA.

    `provider` is the file of ONNX Runtime's CUDA provider (None: its package has none). The majors are what
    that build wants. `error` is what ONNX Runtime said, for the case that all is in place. `cure` is what to do
    about a library of CUDA or cuDNN that is missing; None: "install …".
    """
    if provider is None or not provider.exists():
        return CudaFinding(
            part="build",
            reason="the CPU build of ONNX Runtime is installed; "
            f"for CUDA install the extra '{EXTRA}' (onnxruntime-gpu) in its place",
            library="onnxruntime",
            wanted="onnxruntime-gpu",
            found="onnxruntime",
        )
    return (
        _driver_fault(loader, cuda_major)
        or _device_fault(loader, cuda_major, device)
        or _provider_fault(loader, provider, cuda_major, cudnn_major, cure)
        or _library_fault(loader, cuda_major, cudnn_major, cure)
        or _version_fault(loader, provider, cure)
        or CudaFinding(
            part="start",
            reason="the driver, the device and the libraries are in place, but ONNX Runtime did not start CUDA"
            + (f": {_one_line(error)}" if error else "; the engine's log has its message"),
        )
    )


def _driver_fault(loader: Loader, cuda_major: int) -> CudaFinding | None:
    name = "nvcuda.dll" if loader.windows else "libcuda.so.1"
    driver, least = loader.driver(), least_driver(loader.windows, cuda_major)
    newer = f"install driver {least} or newer" if least else "install a newer driver"
    if driver.missing is not None:
        return CudaFinding(
            part="driver",
            reason=f"no NVIDIA driver is installed ({name} was not found); {newer}",
            library=name,
            wanted=f"CUDA {cuda_major}",
        )
    if driver.hung:
        return CudaFinding(
            part="driver",
            reason="the NVIDIA driver does not answer; restart the computer or install the driver anew",
            library=name,
        )
    if driver.version is not None and driver.version < cuda_major * 1000:
        found = f"{driver.version // 1000}.{driver.version % 1000 // 10}"
        return CudaFinding(
            part="driver",
            reason=f"the NVIDIA driver is too old: it runs CUDA {found} at most, CUDA {cuda_major}.0 is needed; "
            f"{newer}",
            library=name,
            wanted=f"{cuda_major}.0",
            found=found,
        )
    if driver.init in (_STUB, _MISMATCH, _NOT_ON_DEVICE):
        return CudaFinding(
            part="driver",
            reason=f"{name} does not fit the running NVIDIA driver (error {driver.init}); "
            "restart the computer after a driver update",
            library=name,
        )
    return None


def _device_fault(loader: Loader, cuda_major: int, device: int) -> CudaFinding | None:
    driver = loader.driver()
    hidden = loader.variable("CUDA_VISIBLE_DEVICES")
    shown = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES is '{hidden}')"
    count = len(driver.capabilities)
    if driver.init not in (None, 0, _NO_DEVICE):
        return CudaFinding(part="driver", reason=f"the NVIDIA driver did not start (error {driver.init}){shown}")
    if count == 0:
        if hidden is not None:
            return CudaFinding(
                part="device",
                reason=f"CUDA_VISIBLE_DEVICES is '{hidden}', which hides every NVIDIA device from this program",
            )
        return CudaFinding(part="device", reason="the NVIDIA driver is installed, but it finds no device")
    if not 0 <= device < count:
        there = "only cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        return CudaFinding(
            part="device",
            reason=f"there is no device cuda:{device}, {there}{shown}",
            wanted=f"cuda:{device}",
            found=there,
        )
    capability = driver.capabilities[device]
    least = CUDA[cuda_major].capability if cuda_major in CUDA else (0, 0)
    if capability < least:
        have, need = (".".join(map(str, pair)) for pair in (capability, least))
        return CudaFinding(
            part="device",
            reason=f"cuda:{device} is too old for CUDA {cuda_major}: "
            f"it has compute capability {have}, {need} is needed",
            wanted=need,
            found=have,
        )
    return None


def _provider_fault(
    loader: Loader, provider: Path, cuda_major: int, cudnn_major: int, cure: str | None
) -> CudaFinding | None:
    """The provider does not load: which library is to blame."""
    error = loader.load(str(provider))
    if error is None:
        return None
    library = missing_dependency(loader, provider, error)
    if library is not None:
        return _missing(loader, library, cuda_major, cudnn_major, cure)
    other = _version_fault(loader, provider, cure)
    if other is not None:
        return other
    return CudaFinding(
        part="provider",
        reason=f"ONNX Runtime's CUDA provider does not load: {without_folders(error)}",
        library=provider.name,
    )


def _version_fault(loader: Loader, provider: Path, cure: str | None) -> CudaFinding | None:
    """A library of the wanted name that has not what the provider wants of it."""
    for name in loader.imports(provider) if loader.windows else ():
        function = loader.lacks(name, provider)
        if function is not None:
            return CudaFinding(
                part=_product(name) or "provider",
                reason=f"{name} is of another version than ONNX Runtime needs (it has no {function}); "
                + (cure or "put the right file in its place"),
                library=name,
            )
    return None


def missing_dependency(loader: Loader, file: Path, error: str) -> str | None:
    """The library for want of which `file` does not load, from what the loader said; None if that is not why."""
    return _blame_windows(loader, file) if loader.windows else _blame_posix(error)


def _blame_posix(error: str) -> str | None:
    """The loader's words begin with the name of what it did not find."""
    found = re.match(r"(\S+): cannot open shared object file", error)
    return found[1] if found else None


def _blame_windows(loader: Loader, file: Path, depth: int = 0) -> str | None:
    """Windows says only that something is missing: go down the imports to the first that does not load."""
    for name in loader.imports(file):
        if re.match(r"(api|ext)-ms-", name, re.IGNORECASE) or loader.load(name) is None:
            continue
        place = loader.locate(name)
        if place is None or depth >= _DEEPEST:
            return name
        return _blame_windows(loader, place, depth + 1) or name
    return None


def _library_fault(loader: Loader, cuda_major: int, cudnn_major: int, cure: str | None) -> CudaFinding | None:
    """The provider loads, but some libraries are loaded only when the first model needs them."""
    for wanted in libraries("onnx", loader.windows, cuda_major, cudnn_major):
        error = loader.load(wanted.name)
        if error is not None:
            place = loader.locate(wanted.name)
            library = place and missing_dependency(loader, place, error)
            return _missing(loader, library or wanted.name, cuda_major, cudnn_major, cure)
    return None


_NAME = re.compile(r"(?:lib)?([a-zA-Z_]+?)(?:64)?(?:_|\.so\.)(\d+)(?:_0)?(?:\.dll)?")
"""A library's stem and the number in its name."""


def _product(library: str) -> Literal["CUDA", "cuDNN"] | None:
    """What NVIDIA's library of this name is part of; None if it is none of theirs."""
    parts = _NAME.fullmatch(library)
    stem = parts[1] if parts else ""
    if stem.startswith("cudnn"):
        return "cuDNN"
    return "CUDA" if stem.startswith(("cu", "nvrtc", "nvJitLink")) else None


def _missing(loader: Loader, library: str, cuda_major: int, cudnn_major: int, cure: str | None) -> CudaFinding:
    parts, product = _NAME.fullmatch(library), _product(library)
    if parts is None or product is None:
        return CudaFinding(part="provider", reason=_plain(library), library=library)
    stem, major = parts[1], int(parts[2])
    wanted = cudnn_major if product == "cuDNN" else cuda_major
    then = cure or f"install {product} {wanted} or the extra '{EXTRA}'"
    # curand is the same in many majors of CUDA; the numbers of the nv… ones are no majors on Windows
    other = None if stem == "curand" or stem.startswith("nv") else _other_major(loader, stem, major)
    if other is not None:
        found = other + wanted - major  # cuFFT's own number moves with CUDA's
        return CudaFinding(
            part=product,
            reason=f"{product} {wanted} is needed ({library}), but {product} {found} was found; {then}",
            library=library,
            wanted=str(wanted),
            found=str(found),
        )
    return CudaFinding(
        part=product,
        reason=f"{library} ({product} {wanted}) was not found; {then}",
        library=library,
        wanted=str(wanted),
    )


def _other_major(loader: Loader, stem: str, major: int) -> int | None:
    """Another major version of the library on the search path, the nearest first."""
    for other in (major - 1, major + 1, major - 2, major - 3):
        if other > 0 and loader.load(file_name(loader.windows, stem, other)) is None:
            return other
    return None


def _plain(library: str) -> str:
    if library.lower().startswith(("msvcp", "vcruntime", "concrt")):
        return f"{library} was not found; install Microsoft's Visual C++ Redistributable"
    return f"{library}, which ONNX Runtime's CUDA provider needs, was not found"


def _one_line(text: str) -> str:
    return without_folders(" ".join(text.split()))[:300]


def without_folders(text: str) -> str:
    """Paths of this machine are nobody's business in an answer: only the last part stays."""
    return re.sub(r"(?:[A-Za-z]:)?[\\/](?:[^\\/\s:'\"]+[\\/])+([^\\/\s:'\"]+)", r"\1", text)
