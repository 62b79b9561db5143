"""What PyTorch reads from its environment when it is imported, and later. For the engine process."""

import os
import platform
import sys
from collections.abc import MutableMapping
from pathlib import Path


def prepare(state: Path | None, environment: MutableMapping[str, str] = os.environ) -> None:
    """Before PyTorch is imported. ``state``: a folder of this user's own, for what ``torch.compile`` makes."""
    # Also where PyTorch itself asks for a whole pickle, as its reader of exported programs does.
    environment["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    environment.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    # Code that was compiled ahead of time looks at its inputs before it reads them.
    environment["AOTI_RUNTIME_CHECK_INPUTS"] = "1"
    if sys.platform != "win32" and "PYTORCH_CUDA_ALLOC_CONF" not in environment:
        # Blocks grow where they are, so batches of many sizes do not leave holes. Windows has no such memory.
        environment.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    # Helpers would be this program started again. What was compiled must not come from where all can write.
    environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if state is not None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(state / "compiled")


def machine() -> tuple[str, str]:
    """(system, processor) as PyTorch's compiler names them: ("linux", "x86_64")."""
    return sys.platform, platform.machine()
