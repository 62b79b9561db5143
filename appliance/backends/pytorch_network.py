"""What a loaded PyTorch file is to its session: a function of values in a fixed order. And its datatypes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
import torch

from appliance.backends.base import LoadRequest
from appliance.errors import ModelLoadError
from appliance.models.spec import TensorSpec

Kind = Literal["tensor", "int", "float", "bool"]

DTYPES: Mapping[str, Any] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "BF16": torch.bfloat16,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
CONVERSIONS: Mapping[str, Any] = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

_NUMBERED = re.compile(r".+__(\d{1,4})")


class Network(msgspec.Struct, frozen=True):
    """``call`` takes values in the order of ``inputs`` and gives tensors in the order of ``outputs``, or more.

    ``kinds``: what each input is given as; all but tensors are single values. ``floats``: what floating tensors are
    turned into before they go in, or None.
    """

    call: Callable[[Sequence[Any]], Sequence[Any]]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kinds: tuple[Kind, ...]
    platform: str
    floats: Any = None
    notes: tuple[str, ...] = ()


def datatype(dtype: Any, what: str) -> str:
    """The protocol's name. Raises ModelLoadError for what it cannot carry. ``what``: ``input 'x'``."""
    name = NAMES.get(dtype)
    if name is None:
        kind = str(dtype).removeprefix("torch.")
        raise ModelLoadError(f"{what} is of type {kind}, which the Open Inference Protocol cannot carry")
    return name


def leaves(result: Any) -> Iterator[tuple[str | None, Any]]:
    """(key, value) of everything in nested tuples, lists and dictionaries; the key of what lies in a dictionary."""
    if isinstance(result, Mapping):
        for key, value in result.items():
            for inner, leaf in leaves(value):
                yield (str(key) if inner is None else f"{key}.{inner}"), leaf
    elif isinstance(result, tuple | list):
        for value in result:
            yield from leaves(value)
    else:
        yield None, result


def places(names: Sequence[str], known: Sequence[str], what: str) -> list[int]:
    """Which of the ``known`` each declared name is: by its name; by the number of Triton's ``INPUT__0``; else in
    order. Raises ModelLoadError where there are more names than known."""
    if known and set(names) <= set(known):
        return [known.index(name) for name in names]
    numbers = [int(m[1]) for name in names if (m := _NUMBERED.fullmatch(name))]
    if len(numbers) == len(names) == len(set(numbers)):
        if max(numbers, default=0) >= len(known):
            raise ModelLoadError(
                f"{what}s: '{names[numbers.index(max(numbers))]}' counts from 0, there are {len(known)}"
            )
        return numbers
    if len(names) > len(known):
        raise ModelLoadError(f"{what}s: {len(names)} are declared, the model has {len(known)} ({', '.join(known)})")
    return list(range(len(names)))


def declared(request: LoadRequest, kind: str, hint: str = "") -> None:
    """Raises ModelLoadError unless settings tell what goes in and out. ``kind``: the file, which does not tell."""
    for what, tensors in (("inputs", request.inputs), ("outputs", request.outputs)):
        if not tensors:
            raise ModelLoadError(
                f"{what}: {kind} does not tell what its {what} look like; declare them in model.toml, "
                f"each as [[{what}]] with name, datatype and shape{hint}"
            )
        for tensor in tensors:
            if tensor.datatype in ("", "BYTES"):
                raise ModelLoadError(f"{what}: '{tensor.name}' must have the datatype of a tensor of numbers")
