"""Lengths that requests are filled up in, so that those of different length can share a run. Pure.

Host and engine both ask this module, so a request costs, and runs as, the same shapes.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from appliance.models.spec import Pad, TensorSpec
from appliance.models.tensors import FLOATS, Array, bfloat16_bits, numpy_dtype

Shape = tuple[int, ...]


def lengths_of(pads: Mapping[str, Pad], shapes: Mapping[str, Shape]) -> dict[str, int] | None:
    """Each length of a request, by the name it has in ``pads``.

    None for a request that cannot be filled: a length over the largest bucket, or 0, or not the same in all inputs
    that are there.
    """
    found: dict[str, int] = {}
    for name, pad in pads.items():
        sizes = {shapes[tensor][axis] for tensor, axis in pad.inputs.items() if tensor in shapes}
        if len(sizes) != 1:
            return None
        (size,) = sizes
        if not 0 < size <= pad.buckets[-1]:
            return None
        found[name] = size
    return found


def bucket_of(pad: Pad, length: int) -> int:
    """The smallest bucket that holds ``length``, which must not be over the largest."""
    return pad.buckets[bisect_left(pad.buckets, length)]


def filled_shapes(pads: Mapping[str, Pad], shapes: Mapping[str, Shape]) -> dict[str, Shape] | None:
    """The shapes of a request's inputs with every length filled up, or None: see ``lengths_of``."""
    lengths = lengths_of(pads, shapes)
    if lengths is None:
        return None
    return with_lengths(pads, shapes, {name: bucket_of(pads[name], length) for name, length in lengths.items()})


def with_lengths(
    pads: Mapping[str, Pad], shapes: Mapping[str, Sequence[int]], lengths: Mapping[str, int]
) -> dict[str, Shape]:
    """``shapes`` with these lengths."""
    filled = {tensor: list(shape) for tensor, shape in shapes.items()}
    for name, length in lengths.items():
        for tensor, axis in pads[name].inputs.items():
            if tensor in filled:
                filled[tensor][axis] = length
    return {tensor: tuple(shape) for tensor, shape in filled.items()}


def combinations(pads: Mapping[str, Pad]) -> list[dict[str, int]]:
    """Every combination of buckets; one, empty, where there are no pads."""
    found: list[dict[str, int]] = [{}]
    for name, pad in pads.items():
        found = [one | {name: bucket} for one in found for bucket in pad.buckets]
    return found


def value_for(datatype: str, value: float) -> Array:
    """One element of this datatype to fill with, BF16 as its bits. ValueError if the datatype cannot hold it."""
    if datatype in FLOATS:
        if datatype == "BF16":
            return bfloat16_bits(np.array([value], np.float32))
        with np.errstate(over="ignore"):
            found = np.array([value], numpy_dtype(datatype))
        if math.isfinite(value) and not np.isfinite(found).all():
            raise ValueError
        return found
    dtype = numpy_dtype(datatype)
    if dtype.kind == "b":
        if value not in (0, 1):
            raise ValueError
    elif not math.isfinite(value) or int(value) != value or not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise ValueError
    return np.array([int(value)], dtype)


def faults(pads: Mapping[str, Pad], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Iterator[str]:
    """In which points ``pads`` do not suit a model, each as ``batching.pad.<name>.<key>: <what>``.

    An output's shape of ``()`` counts as unknown: files often leave output shapes out.
    """
    for name, pad in pads.items():
        for kind, axes, specs in (("inputs", pad.inputs, inputs), ("outputs", pad.outputs, outputs)):
            known = {t.name: t for t in specs}
            for tensor, axis in axes.items():
                spec, at = known.get(tensor), f"batching.pad.{name}.{kind}"
                if spec is None:
                    yield f"{at}: the model has no {kind[:-1]} '{tensor}'"
                elif kind == "outputs" and not spec.shape:
                    continue
                elif axis >= len(spec.shape):
                    yield f"{at}: '{tensor}' {spec.describe()} has no axis {axis}"
                elif spec.shape[axis] != -1:
                    yield f"{at}: axis {axis} of '{tensor}' {spec.describe()} is not free"
                elif kind == "inputs" and spec.datatype == "BYTES":
                    yield f"{at}: '{tensor}' holds texts, which cannot be filled up"
                elif kind == "inputs":
                    try:
                        value_for(spec.datatype, pad.values.get(tensor, 0))
                    except (ValueError, OverflowError):
                        value = pad.values.get(tensor)
                        yield f"batching.pad.{name}.values: {value} is no value of '{tensor}' {spec.describe()}"
