"""Opening and running a PyTorch model in a test."""

from pathlib import Path
from typing import Any

import numpy as np

from appliance import backends
from appliance.backends.base import LoadRequest
from appliance.models.spec import ModelConfig, PyTorchConfig, TensorSpec
from appliance.models.tensors import Array

X = TensorSpec("x", "FP32", (-1, 4))
Y = TensorSpec("y", "FP32", (-1, 3))
INPUT = np.array([[1, 2, 3, 4], [-1, 0, 0.5, -0.25], [0, 0, 0, 0]], np.float32)


def opened(
    path: Path, inputs: tuple[TensorSpec, ...] = (X,), outputs: tuple[TensorSpec, ...] = (Y,), **options: Any
) -> Any:
    if path.suffix == ".pt2":
        inputs = outputs = ()
    config = ModelConfig(pytorch=PyTorchConfig(**options))
    return backends.get("pytorch").open(
        LoadRequest("m", path, path.parent, "cpu", 1, config, inputs=inputs, outputs=outputs)
    )


def run(session: Any, outputs: list[str] | None = None, **inputs: Array) -> list[Array]:
    names = outputs or [t.name for t in session.opened.outputs]
    found: list[Array] = session.run(inputs, names, session.cancellation())
    return found
