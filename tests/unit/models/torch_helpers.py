"""Files that would run code, and whether they did."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance import backends
from appliance.backends.base import LoadRequest
from appliance.errors import ModelLoadError
from appliance.models.spec import ModelConfig, TensorSpec


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self._mark,)


def refused(path: Path) -> str:
    """Why the backend refuses the file."""
    specs = (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 3)),)
    request = LoadRequest("m", path, path.parent, "cpu", 1, ModelConfig(), inputs=specs[0], outputs=specs[1])
    with pytest.raises(ModelLoadError) as caught:
        backends.get("pytorch").open(request)
    assert str(path.parent) not in caught.value.message
    return caught.value.message


PROGRAM = "torch.export.load(path).module()(torch.ones(3, 4))"
PICKLE = "torch.load(path, weights_only=False)"


def runs_elsewhere(path: Path, mark: Path, call: str = PROGRAM) -> bool:
    """Whether PyTorch itself, in a process that is not set up as an engine, runs what the file holds."""
    program = f"import torch; path = {str(path)!r}; {call}"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=env, capture_output=True, timeout=120)
    return mark.exists()
