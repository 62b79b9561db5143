"""Why CUDA was asked for and does not run, in words that say what to do. Pure: a `Loader` does the looking.

The order is that of what a person must mend first: the build of ONNX Runtime, the driver, the device, the
libraries. ONNX Runtime itself only says that it fell back, and its log names at most the first library.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

EXTRA = "cuda"
"""The extra of this package that brings the GPU build with its libraries."""

_LEAST_CAPABILITY = {12: (5, 0), 13: (7, 5)}  # the oldest GPUs that a major version of CUDA has code for
_CUFFT = {12: 11, 13: 12}  # cuFFT counts apart from CUDA
_CURAND = 10

# cuda.h, CUresult
_NO_DEVICE, _STUB, _MISMATCH, _NOT_ON_DEVICE = 100, 34, 803, 804

_DEEPEST = 5  # libraries that need libraries; beyond that a loop of names is more likely than a cause


class CudaFinding(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` is one line for a person. Where it is about a library or a version: which, wanted and found."""

    reason: str
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
) -> CudaFinding:
    """Why a session that was asked for CUDA device `device` has no CUDA.

    `provider` is the file of ONNX Runtime's CUDA provider (None: its package has none). The majors are what
    that build wants. `error` is what ONNX Runtime said, for the case that all is in place.
    """
    if provider is None or not provider.exists():
        return CudaFinding(
            reason="the CPU build of ONNX Runtime is installed; "
            f"for CUDA install the extra '{EXTRA}' (onnxruntime-gpu) in its place",
            library="onnxruntime",
            wanted="onnxruntime-gpu",
            found="onnxruntime",
        )
    return (
        _driver_fault(loader, cuda_major)
        or _device_fault(loader, cuda_major, device)
        or _provider_fault(loader, provider, cuda_major, cudnn_major)
        or _library_fault(loader, cuda_major, cudnn_major)
        or CudaFinding(
            reason="the driver, the device and the libraries are in place, but ONNX Runtime did not start CUDA"
            + (f": {_one_line(error)}" if error else "; the engine's log has its message")
        )
    )


def _driver_fault(loader: Loader, cuda_major: int) -> CudaFinding | None:
    name = "nvcuda.dll" if loader.windows else "libcuda.so.1"
    driver = loader.driver()
    if driver.missing is not None:
        return CudaFinding(
            reason=f"no NVIDIA driver is installed ({name} was not found)", library=name, wanted=f"CUDA {cuda_major}"
        )
    if driver.hung:
        return CudaFinding(
            reason="the NVIDIA driver does not answer; restart the computer or install the driver anew", library=name
        )
    if driver.version is not None and driver.version < cuda_major * 1000:
        found = f"{driver.version // 1000}.{driver.version % 1000 // 10}"
        return CudaFinding(
            reason=f"the NVIDIA driver is too old: it runs CUDA {found} at most, CUDA {cuda_major}.0 is needed; "
            "install a newer driver",
            library=name,
            wanted=f"{cuda_major}.0",
            found=found,
        )
    if driver.init in (_STUB, _MISMATCH, _NOT_ON_DEVICE):
        return CudaFinding(
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
        return CudaFinding(reason=f"the NVIDIA driver did not start (error {driver.init}){shown}")
    if count == 0:
        if hidden is not None:
            return CudaFinding(
                reason=f"CUDA_VISIBLE_DEVICES is '{hidden}', which hides every NVIDIA device from this program"
            )
        return CudaFinding(reason="the NVIDIA driver is installed, but it finds no device")
    if not 0 <= device < count:
        there = "only cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        return CudaFinding(
            reason=f"there is no device cuda:{device}, {there}{shown}", wanted=f"cuda:{device}", found=there
        )
    capability, least = driver.capabilities[device], _LEAST_CAPABILITY.get(cuda_major, (0, 0))
    if capability < least:
        have, need = (".".join(map(str, pair)) for pair in (capability, least))
        return CudaFinding(
            reason=f"cuda:{device} is too old for CUDA {cuda_major}: "
            f"it has compute capability {have}, {need} is needed",
            wanted=need,
            found=have,
        )
    return None


def _provider_fault(loader: Loader, provider: Path, cuda_major: int, cudnn_major: int) -> CudaFinding | None:
    """The provider does not load: which library is to blame."""
    error = loader.load(str(provider))
    if error is None:
        return None
    library = _blame_windows(loader, provider) if loader.windows else _blame_posix(error)
    if library is None:
        return CudaFinding(
            reason=f"ONNX Runtime's CUDA provider does not load: {_without_folders(error)}", library=provider.name
        )
    return _missing(loader, library, cuda_major, cudnn_major)


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


def _library_fault(loader: Loader, cuda_major: int, cudnn_major: int) -> CudaFinding | None:
    """The provider loads, but some libraries are loaded only when the first model needs them."""
    for name in needed_libraries(loader.windows, cuda_major, cudnn_major):
        if loader.load(name) is not None:
            return _missing(loader, name, cuda_major, cudnn_major)
    return None


def needed_libraries(windows: bool, cuda_major: int, cudnn_major: int) -> list[str]:
    """The libraries of CUDA and cuDNN that the provider uses, by the names it looks for."""
    parts = [("cudart", cuda_major), ("cublasLt", cuda_major), ("cublas", cuda_major), ("curand", _CURAND)]
    if cuda_major in _CUFFT:
        parts.append(("cufft", _CUFFT[cuda_major]))
    parts.append(("cudnn", cudnn_major))
    return [_file_name(windows, stem, major) for stem, major in parts]


def _file_name(windows: bool, stem: str, major: int) -> str:
    return f"{stem}64_{major}.dll" if windows else f"lib{stem}.so.{major}"


def _missing(loader: Loader, library: str, cuda_major: int, cudnn_major: int) -> CudaFinding:
    parts = re.fullmatch(r"(?:lib)?([a-zA-Z_]+?)(?:64)?(?:_|\.so\.)(\d+)(?:\.dll)?", library)
    if parts is None:
        return CudaFinding(reason=_plain(library), library=library)
    stem, major = parts[1], int(parts[2])
    if stem.startswith("cudnn"):
        product, wanted = "cuDNN", cudnn_major
    elif stem.startswith(("cu", "nvrtc", "nvJitLink")):
        product, wanted = "CUDA", cuda_major
    else:
        return CudaFinding(reason=_plain(library), library=library)
    other = None if stem == "curand" else _other_major(loader, stem, major)  # the same in many majors of CUDA
    if other is not None:
        found = f"{product} {other + wanted - major}"  # cuFFT's own number moves with CUDA's
        return CudaFinding(
            reason=f"{product} {wanted} is needed ({library}), but {found} was found; "
            f"install {product} {wanted} or the extra '{EXTRA}'",
            library=library,
            wanted=str(wanted),
            found=str(other + wanted - major),
        )
    return CudaFinding(
        reason=f"{library} ({product} {wanted}) was not found; install {product} {wanted} or the extra '{EXTRA}'",
        library=library,
        wanted=str(wanted),
    )


def _other_major(loader: Loader, stem: str, major: int) -> int | None:
    """Another major version of the library on the search path, the nearest first."""
    for other in (major - 1, major + 1, major - 2, major - 3):
        if other > 0 and loader.load(_file_name(loader.windows, stem, other)) is None:
            return other
    return None


def _plain(library: str) -> str:
    if library.lower().startswith(("msvcp", "vcruntime", "concrt")):
        return f"{library} was not found; install Microsoft's Visual C++ Redistributable"
    return f"{library}, which ONNX Runtime's CUDA provider needs, was not found"


def _one_line(text: str) -> str:
    return _without_folders(" ".join(text.split()))[:300]


def _without_folders(text: str) -> str:
    """Paths of this machine are nobody's business in an answer: only the last part stays."""
    return re.sub(r"(?:[A-Za-z]:)?[\\/](?:[^\\/\s:'\"]+[\\/])+([^\\/\s:'\"]+)", r"\1", text)
