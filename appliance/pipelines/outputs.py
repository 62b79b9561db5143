"""Small helpers for reading a model's outputs."""

import numpy as np

from appliance.errors import InvalidOutput, ModelLoadError
from appliance.models.spec import ModelSpec, TensorSpec
from appliance.models.tensors import Array


def finite(array: Array, name: str) -> Array:
    """``array`` as float32. InvalidOutput if a value is NaN or infinite."""
    numbers = array.astype(np.float32, copy=False)
    # The sum is finite unless a value is not (or all are huge): one fast pass, and no array of booleans.
    with np.errstate(over="ignore", invalid="ignore"):
        doubtful = not np.isfinite(numbers.sum())
    if doubtful and not np.isfinite(numbers).all():
        raise InvalidOutput(f"the model's output '{name}' has values that are not finite numbers")
    return numbers


def pick(spec: ModelSpec, wanted: str | None, key: str = "output") -> TensorSpec:
    """The output ``wanted``, or the first floating-point one. ModelLoadError if there is none."""
    if wanted is not None:
        found = spec.output(wanted)
        if found is None:
            have = ", ".join(t.name for t in spec.outputs)
            raise ModelLoadError(f"model.toml of '{spec.name}', [pipeline] {key}: no output '{wanted}'; has {have}")
        return found
    for tensor in spec.outputs:
        if tensor.datatype in ("FP32", "FP16", "FP64"):
            return tensor
    raise ModelLoadError(f"model '{spec.name}' has no floating-point output for its pipeline")


def check_labels(spec: ModelSpec, labels: tuple[str, ...], classes: int, *also: int) -> None:
    """ModelLoadError if labels are given and are not as many as ``classes`` (or ``also``); -1 fits all."""
    if labels and classes != -1 and len(labels) not in (classes, *also):
        raise ModelLoadError(
            f"model '{spec.name}': labels.txt has {len(labels)} lines, the model gives {classes} classes"
        )


def label_of(labels: tuple[str, ...], index: int) -> str:
    """The class's label, or its number as text where there is none."""
    return labels[index] if index < len(labels) else str(index)


def softmax(logits: Array) -> Array:
    """exp(x) / sum(exp(x)) over the last axis, in float64."""
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    result: Array = powers / powers.sum(axis=-1, keepdims=True)
    return result


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-x)), in float64."""
    result: Array = 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))
    return result
