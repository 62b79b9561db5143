"""What ``providers`` and ``[tensorrt]`` of a ``model.toml`` may say together. Pure."""

from collections.abc import Iterator
from typing import get_args

import msgspec

from appliance.models.spec import ModelConfig, Provider, TensorRTConfig

ORDER: tuple[str, ...] = get_args(Provider)
"""The only one that makes sense: whatever comes after the CPU would never be asked, and TensorRT is before CUDA."""

_DEFAULT = TensorRTConfig()


def faults(config: ModelConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """(key, what is wrong with it)."""
    wanted = list(config.providers)
    if wanted != [name for name in ORDER if name in wanted]:
        best = ", ".join(f'"{name}"' for name in ORDER)
        yield ("providers",), f"'providers' must name each once, in this order: [{best}]"
        return
    if config.device == "cpu" and any(name != "cpu" for name in wanted):
        yield ("providers",), f"'providers' names {wanted[0]}, but 'device' is cpu"
    if config.device == "require" and wanted == ["cpu"]:
        yield ("providers",), "'providers' names only the cpu, but 'device' requires the GPU"
    if wanted and config.backend not in (None, "onnx"):
        yield ("providers",), f"'providers' is for ONNX models, not for backend '{config.backend}'"
    given = config.tensorrt
    if given != _DEFAULT and "tensorrt" not in wanted:
        changed = next(f.name for f in msgspec.structs.fields(given) if getattr(given, f.name) != f.default)
        yield ("tensorrt", changed), "[tensorrt] is for models whose 'providers' name tensorrt"
    if given.calibration_table is not None and not given.int8:
        yield ("tensorrt", "calibration_table"), "'tensorrt.calibration_table' is for int8, which is not switched on"
    name = given.calibration_table
    if name is not None and (not name or name in (".", "..") or any(mark in name for mark in '/\\:*?"<>|\0')):
        yield ("tensorrt", "calibration_table"), "'tensorrt.calibration_table' must be a plain file name"
