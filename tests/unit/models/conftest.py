"""Tiny models, made here. The ``onnx`` package is for tests only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def tensor(name: str = "w", external: dict[str, str] | None = None) -> TensorProto:
    made = numpy_helper.from_array(np.arange(8, dtype=np.float32), name)
    if external is not None:
        made.ClearField("raw_data")
        made.data_location = TensorProto.EXTERNAL
        for key, value in external.items():
            made.external_data.add(key=key, value=value)
    return made


def graph(nodes: list[Any], initializers: list[TensorProto]) -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])
    return helper.make_graph(nodes, "g", [x], [y], initializers)


def model(external: dict[str, str] | None = None, nodes: list[Any] | None = None, **more: Any) -> onnx.ModelProto:
    """y = x + w, with ``w`` in the file or in external data."""
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])] if nodes is None else nodes
    return helper.make_model(
        graph(nodes, [tensor("w", external)]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
        producer_name="tests",
        **more,
    )


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a model (or bytes) to a file under ``tmp_path`` and gives its path."""

    def writing(made: onnx.ModelProto | bytes, name: str = "m/model.onnx") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
        return path

    return writing


@pytest.fixture
def make_model() -> Callable[..., onnx.ModelProto]:
    return model


@pytest.fixture
def make_tensor() -> Callable[..., TensorProto]:
    return tensor
