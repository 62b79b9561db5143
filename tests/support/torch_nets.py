"""Small PyTorch models for tests, and files of them that were tampered with.

Without PyTorch, a test file that imports this is skipped.
"""

import json
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch (extra `torch`) is not installed")

WEIGHT = np.array([[1, -2, 0.5, 0], [0, 1, 1, -1], [2, 0, 0, 1]], np.float32)
BIAS = np.array([0.5, -1, 0], np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    """What ``Small`` gives, by hand: relu(x · Wᵀ + b)."""
    return np.maximum(x @ WEIGHT.T + BIAS, 0)


class Small(torch.nn.Module):
    """x FP32 [N, 4] → y FP32 [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 3)
        with torch.no_grad():
            self.line.weight.copy_(torch.from_numpy(WEIGHT))
            self.line.bias.copy_(torch.from_numpy(BIAS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.line(x))


def script(path: Path, model: torch.nn.Module | None = None) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script((model or Small()).eval()), str(path))
    return path


def export(path: Path, model: torch.nn.Module | None = None, args: tuple[Any, ...] = (), **dynamic: Any) -> Path:
    """``dynamic``: argument → its free sizes, by default axis 0 of ``x``."""
    args = args or (torch.ones(3, 4),)
    shapes = dynamic or {"x": {0: torch.export.Dim("rows", min=1, max=64)}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export((model or Small()).eval(), args, dynamic_shapes=shapes)
        torch.export.save(program, str(path))
    return path


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes], more: Mapping[str, bytes]) -> Path:
    """The archive with each record changed, and more records. Names are without the archive's own folder."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        for info in old.infolist():
            name = info.filename.partition("/")[2]
            if name not in more:
                new.writestr(info.filename, change(name, old.read(info)))
        for name, content in more.items():
            new.writestr(f"{root}/{name}", content)
    return target


def program_changed(source: Path, target: Path, change: Callable[[Any], None], **more: bytes) -> Path:
    """The ``torch.export`` program with its JSON changed in place."""

    def record(name: str, content: bytes) -> bytes:
        if name != "models/model.json":
            return content
        program = json.loads(content)
        change(program)
        return json.dumps(program).encode()

    return rewritten(source, target, record, more)
