"""Which execution providers are asked for, and which ones ONNX Runtime really uses.

ONNX Runtime falls back to the CPU without an exception; only the session itself tells.
"""

import contextlib
import io
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnxruntime as ort
import structlog

from appliance.backends.tensorrt import PROVIDER as _TENSORRT
from appliance.models.spec import DevicePolicy
from appliance.system import cuda, cuda_code, cuda_loader, dlls

log = structlog.get_logger("onnx")

_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"


class Wanted(msgspec.Struct, frozen=True):
    """Providers for the session; ``index`` of the GPU asked for, or None; ``reason``: why CUDA was not even
    tried although it was asked for, or None. ``tensorrt``: it is to be tried before these providers."""

    providers: list[Any]
    index: int | None
    reason: str | None = None
    tensorrt: bool = False


class CudaLibraries:
    """CUDA's libraries for this process, loaded before the first session that wants them, and by no other."""

    def __init__(self, libraries: dlls.Libraries | None) -> None:
        self.folders = libraries.folders() if libraries else []
        self._lock = threading.Lock()
        self._loaded = False

    def load(self) -> None:
        """Once. What does not load is no error here: the session then has no CUDA, and the reason is looked for."""
        with self._lock:
            if self._loaded:
                return
            self._loaded = True
            for folder in self.folders:
                words = io.StringIO()  # it prints what it does not find
                try:
                    with contextlib.redirect_stdout(words):
                        ort.preload_dlls(directory=str(folder))
                except (OSError, RuntimeError) as error:  # the folder went away
                    words.write(str(error))
                log.debug("libraries loaded", folder=str(folder), words=words.getvalue().strip())


class Cards:
    """What the driver shows, and for which GPUs the CUDA provider has code: looked up once. Without code for a GPU, a
    session is made that fails at once."""

    def __init__(self, libraries: CudaLibraries) -> None:
        self._libraries = libraries
        self._lock = threading.Lock()
        self._known: tuple[cuda.Driver, cuda_code.Code | None] | None = None

    def checked(self, asked: Wanted) -> Wanted:
        """``asked``, or the CPU with the reason where the GPU asked for has no code."""
        if asked.index is None:
            return asked
        fault = cuda_code.fault(self._look()[0], asked.index, self._look()[1])
        return asked if fault is None else Wanted([_CPU], None, fault.reason)

    def show(self, index: int) -> bool:
        """Whether the driver has that GPU."""
        return index < len(self._look()[0].capabilities)

    def _look(self) -> tuple[cuda.Driver, cuda_code.Code | None]:
        with self._lock:
            if self._known is None:
                driver, provider = cuda_loader.SystemLoader(self._libraries.folders).driver(), provider_library()
                self._known = driver, cuda_code.read(provider) if provider and driver.capabilities else None
            return self._known


class Truth(msgspec.Struct, frozen=True):
    """What runs the model: see ``Opened``."""

    device: str
    degraded: str | None
    cpu_nodes: int
    notes: tuple[str, ...] = ()


def wanted(
    policy: str,
    model: DevicePolicy,
    available: Sequence[str],
    memory_limit: int | None = None,
    named: Sequence[str] = (),
) -> Wanted:
    """Providers by the server's policy (``auto``, ``cpu``, ``cuda``, ``cuda:N``) and the model's.

    ``auto`` takes CUDA where the runtime was built with it. A model that requires CUDA is never run without.
    ``named``: the model's ``providers``, empty: those of its policy.
    """
    gpu = [name for name in named if name != "cpu"]
    asked = model == "require" or policy.startswith("cuda") or bool(gpu)
    if model == "cpu" or (named and not gpu):
        return Wanted([_CPU], None)
    if policy == "cpu":
        told = model == "require" or bool(gpu)
        return Wanted([_CPU], None, "the server's setting `device` is `cpu`" if told else None)
    if _CUDA not in available:
        return Wanted([_CPU], None, _why_not(None, 0) if asked else None)
    index = int(policy.partition(":")[2] or 0)
    tensorrt = "tensorrt" in named
    if named and "cuda" not in named:
        return Wanted([_CPU], index, tensorrt=tensorrt)
    # The arena grows by what is asked for, not in powers of two, and never over the budget.
    options = {"device_id": index, "arena_extend_strategy": "kSameAsRequested"}
    if memory_limit:
        options["gpu_mem_limit"] = memory_limit
    return Wanted([(_CUDA, options), _CPU], index, tensorrt=tensorrt)


def truth(session: Any, asked: Wanted, folders: Sequence[Path] = (), failed: str | None = None) -> Truth:
    """Compare the providers the session has with those asked for, and count the nodes left on the CPU.

    ``folders``: where this process takes CUDA's libraries from. ``failed``: why TensorRT is not in the session.
    """
    if asked.index is None:
        return Truth("cpu", asked.reason, 0)
    has = session.get_providers()
    if _TENSORRT not in has and _CUDA not in has:
        if failed is not None and asked.providers == [_CPU]:
            return Truth("cpu", f"TensorRT was asked for, but the CPU runs it: {failed}", 0)
        return Truth("cpu", _why_not(provider_library(), asked.index, folders), 0)
    counts = {_TENSORRT: 0, _CUDA: 0, _CPU: 0}
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    cpu_nodes = counts[_CPU]
    notes = (f"{cpu_nodes} nodes of the graph run on the CPU",) if cpu_nodes else ()
    degraded = None
    if asked.tensorrt and _TENSORRT not in has:
        why = failed or "ONNX Runtime did not start it; the engine's log has its message"
        degraded = f"TensorRT was asked for, but CUDA runs it: {why}"
    elif asked.tensorrt and not counts[_TENSORRT] and any(counts.values()):
        degraded = "TensorRT was asked for, but it takes no part of this model"
    elif asked.tensorrt and counts[_CUDA]:
        notes = (f"{counts[_CUDA]} nodes of the graph run on CUDA, which TensorRT does not take", *notes)
    return Truth(f"cuda:{asked.index}", degraded, cpu_nodes, notes)


def _why_not(provider: Path | None, index: int, folders: Sequence[Path] = ()) -> str:
    return why_not(cuda_loader.SystemLoader(folders), provider, index).reason


def why_not(loader: cuda.Loader, provider: Path | None, index: int) -> cuda.CudaFinding:
    """Why a session that was asked for CUDA does not have it, or cannot use it; once this process has tried to make
    one."""
    major = str(getattr(ort, "cuda_version", "") or "").partition(".")[0]
    wants = int(major) if major.isdigit() else 13
    found = cuda.why_not_cuda(loader, provider, cuda_major=wants, device=index, cure=dlls.cure())
    if provider is None or found.part in ("build", "driver"):
        return found
    return cuda_code.fault(loader.driver(), index, cuda_code.read(provider)) or found


def provider_library(name: str = "cuda") -> Path | None:
    """The file of the CUDA provider, or TensorRT's; None: this build has none."""
    folder = Path(ort.__file__).parent / "capi"
    found = sorted(folder.glob(f"*onnxruntime_providers_{name}*"))
    return next((p for p in found if p.suffix in (".so", ".dll")), None)
