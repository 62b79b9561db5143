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

from appliance.models.spec import DevicePolicy
from appliance.system import cuda, cuda_loader, dlls

log = structlog.get_logger("onnx")

_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"


class Wanted(msgspec.Struct, frozen=True):
    """Providers for the session; ``index`` of the GPU asked for, or None; ``reason``: why CUDA was not even
    tried although it was asked for, or None."""

    providers: list[Any]
    index: int | None
    reason: str | None = None


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


class Truth(msgspec.Struct, frozen=True):
    """What runs the model: see ``Opened``."""

    device: str
    degraded: str | None
    cpu_nodes: int
    notes: tuple[str, ...] = ()


def wanted(policy: str, model: DevicePolicy, available: Sequence[str], memory_limit: int | None = None) -> Wanted:
    """Providers by the server's policy (``auto``, ``cpu``, ``cuda``, ``cuda:N``) and the model's.

    ``auto`` takes CUDA where the runtime was built with it. A model that requires CUDA is never run without.
    """
    asked = model == "require" or policy.startswith("cuda")
    if model == "cpu" or (policy == "cpu" and model != "require"):
        return Wanted([_CPU], None)
    if policy == "cpu":
        return Wanted([_CPU], None, "the server's setting `device` is `cpu`")
    if _CUDA not in available:
        return Wanted([_CPU], None, _why_not(None, 0) if asked else None)
    index = int(policy.partition(":")[2] or 0)
    # The arena grows by what is asked for, not in powers of two, and never over the budget.
    options = {"device_id": index, "arena_extend_strategy": "kSameAsRequested"}
    if memory_limit:
        options["gpu_mem_limit"] = memory_limit
    return Wanted([(_CUDA, options), _CPU], index)


def truth(session: Any, asked: Wanted, folders: Sequence[Path] = ()) -> Truth:
    """Compare the providers the session has with those asked for, and count the nodes left on the CPU.

    ``folders``: where this process takes CUDA's libraries from.
    """
    if asked.index is None:
        return Truth("cpu", asked.reason, 0)
    if _CUDA not in session.get_providers():
        return Truth("cpu", _why_not(provider_library(), asked.index, folders), 0)
    cpu_nodes = sum(
        len(part.get_nodes()) for part in session.get_provider_graph_assignment_info() if part.ep_name == _CPU
    )
    notes = (f"{cpu_nodes} nodes of the graph run on the CPU",) if cpu_nodes else ()
    return Truth(f"cuda:{asked.index}", None, cpu_nodes, notes)


def _why_not(provider: Path | None, index: int, folders: Sequence[Path] = ()) -> str:
    return why_not(cuda_loader.SystemLoader(folders), provider, index).reason


def why_not(loader: cuda.Loader, provider: Path | None, index: int) -> cuda.CudaFinding:
    """Why a session that was asked for CUDA does not have it; once this process has tried to make one."""
    major = str(getattr(ort, "cuda_version", "") or "").partition(".")[0]
    wants = int(major) if major.isdigit() else 13
    return cuda.why_not_cuda(loader, provider, cuda_major=wants, device=index, cure=dlls.cure())


def provider_library() -> Path | None:
    """The file of the CUDA provider; None: this build has none."""
    folder = Path(ort.__file__).parent / "capi"
    return next((p for p in sorted(folder.glob("*onnxruntime_providers_cuda*")) if p.suffix in (".so", ".dll")), None)
