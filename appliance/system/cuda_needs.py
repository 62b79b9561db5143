"""What the builds of ONNX Runtime and PyTorch need of CUDA: versions, drivers, libraries. Data only.

Sources: the packages' own metadata and import tables (onnxruntime-gpu 1.26.0 asks for ``nvidia-*-cu12``, 1.27.0 for
CUDA 13; ``cuda_version`` of 1.31.1 is 13.0). "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
Compatibility" in NVIDIA's CUDA Toolkit release notes: 12.x 525.60.13 on Linux and 528.33 on Windows; 13.x branch 580,
of which 580.65.06 was the first for Linux. For 13 the notes name no driver of Windows: 580.88 was the first of that
branch. The compute capabilities are those that these majors still have code for (13 dropped Maxwell, Pascal, Volta).
"""

from typing import Literal

import msgspec

Family = Literal["onnx", "torch"]


class Cuda(msgspec.Struct, frozen=True):
    """A major version of CUDA: the lowest drivers that run its programs, the oldest GPUs that it has code for, and
    the majors of those libraries that count apart from it. ``nvrtc``: the version in the name of Windows' file."""

    driver_linux: str
    driver_windows: str
    capability: tuple[int, int]
    cufft: int
    cusolver: int
    nvrtc: int
    curand: int = 10
    cusparse: int = 12


CUDA = {
    12: Cuda("525.60.13", "528.33", (5, 0), cufft=11, cusolver=11, nvrtc=120),
    13: Cuda("580.65.06", "580.88", (7, 5), cufft=12, cusolver=12, nvrtc=130),
}


class Release(msgspec.Struct, frozen=True):
    """Versions of onnxruntime-gpu as PyPI has them, from ``first`` to ``last`` (None: still)."""

    first: tuple[int, int]
    last: tuple[int, int] | None
    cuda: int
    cudnn: int


RELEASES = (Release((1, 27), None, 13, 9), Release((1, 19), (1, 26), 12, 9))


def release(version: str) -> Release | None:
    """The row for a version of ONNX Runtime ("1.31.1"), or None if it is older than the table or no version."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    wanted = int(parts[0]), int(parts[1])
    return next((r for r in RELEASES if r.first <= wanted and (r.last is None or wanted <= r.last)), None)


def least_driver(windows: bool, cuda: int) -> str | None:
    """The lowest version of NVIDIA's driver for a major version of CUDA; None if that is not known."""
    known = CUDA.get(cuda)
    return None if known is None else known.driver_windows if windows else known.driver_linux


class Wanted(msgspec.Struct, frozen=True):
    """A library by the name that is looked for, and what it is part of ("CUDA 13", "cuDNN 9")."""

    name: str
    product: str


# loaded by cuDNN 9 as they are needed; releases after 9.0 added more, which their own packages bring
_CUDNN_PARTS = ("graph", "ops", "cnn", "adv", "heuristic", "engines_precompiled", "engines_runtime_compiled")


def libraries(family: Family, windows: bool, cuda: int, cudnn: int) -> tuple[Wanted, ...]:
    """What the runtime of this family loads, in an order in which each finds those before it.

    A major of CUDA that is not known has its newest known one's numbers for what counts apart.
    """
    known = CUDA.get(cuda, CUDA[max(CUDA)])
    parts = [("cudart", cuda), ("cublasLt", cuda), ("cublas", cuda)]
    if family == "torch":
        parts += [("curand", known.curand), ("cusparse", known.cusparse), ("cusolver", known.cusolver)]
    elif not windows:
        parts.append(("curand", known.curand))
    parts.append(("cufft", known.cufft))
    names = [file_name(windows, stem, major) for stem, major in parts]
    names += (
        [f"nvrtc64_{known.nvrtc}_0.dll", f"nvJitLink_{known.nvrtc}_0.dll"]
        if windows
        else [f"libnvrtc.so.{cuda}", f"libnvJitLink.so.{cuda}"]
    )
    found = [Wanted(name, f"CUDA {cuda}") for name in names]
    stems = ["cudnn", *(f"cudnn_{part}" for part in _CUDNN_PARTS)] if cudnn >= 9 else ["cudnn"]
    return (*found, *(Wanted(file_name(windows, stem, cudnn), f"cuDNN {cudnn}") for stem in stems))


def file_name(windows: bool, stem: str, major: int) -> str:
    """The name under which a library of NVIDIA is looked for: ``cublas64_13.dll``, ``libcublas.so.13``."""
    return f"{stem}64_{major}.dll" if windows else f"lib{stem}.so.{major}"
