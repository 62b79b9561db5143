"""What PyTorch itself says that a model's runs take, in a process of its own:
``python -m tests.gpu.reference cuda:0 model.pt INPUT_JSON``

INPUT_JSON: ``{"batches": [1, 2], "shape": [64]}``, FP32. Prints ``{"1": bytes, …}``: the most that its allocator held
for tensors during a run (from array to array) beyond what it held before; null on the CPU, where nothing counts.
"""

import json
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.server import ROOT

LIMIT_S = 120.0
RUNS = 3


def peaks(device: str, model: Path, batches: Sequence[int], shape: Sequence[int]) -> dict[int, int | None]:
    """Batch → bytes. Raises RuntimeError with the process's words."""
    wanted = json.dumps({"batches": list(batches), "shape": list(shape)})
    command = [sys.executable, "-m", "tests.gpu.reference", device, str(model), wanted]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"the reference run failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return {int(batch): size for batch, size in json.loads(done.stdout.splitlines()[-1]).items()}


def load(path: str, device: str) -> Any:
    """The model, as a function of one tensor."""
    import torch
    from torch.export.passes import move_to_device_pass

    if path.endswith(".pt"):
        return torch.jit.load(path, map_location=device).eval()
    return move_to_device_pass(torch.export.load(path), device).module()


def main() -> None:
    import torch

    device, path, wanted = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    torch._C._jit_set_texpr_fuser_enabled(False)  # as the appliance does: fused kernels hold less
    found: dict[int, int | None] = {}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        if device != "cpu":
            torch.cuda.set_device(device)
        model = load(path, device)
        for batch in wanted["batches"]:  # the smallest first: what libraries take once for all is in its figure
            sizes = [_peak(torch, model, torch.rand(batch, *wanted["shape"]), device) for _ in range(RUNS)]
            found[batch] = max((size for size in sizes if size is not None), default=None)
    print(json.dumps(found))


def _peak(torch: Any, model: Any, x: Any, device: str) -> int | None:
    if device == "cpu":
        model(x)
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model(x.to(device)).cpu()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


if __name__ == "__main__":
    main()
