"""Items of a run as one batch, and a batch as items again, with as few copies as there can be. Pure. (Child side.)"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from appliance.engine.messages import Run
from appliance.errors import ModelError
from appliance.models.padding import Shape, bucket_of, lengths_of, value_for, with_lengths
from appliance.models.spec import Pad, TensorSpec
from appliance.models.tensors import Array, Tensor, from_array, numpy_dtype

Lengths = dict[str, int]


def joined(message: Run, payload: memoryview) -> tuple[dict[str, Array], list[int]] | None:
    """The batch and its items' rows, without a copy: items of one input lie one behind the other in the payload.

    None where they do not, or differ in more than their rows.
    """
    first = message.items[0]
    if len(first) != 1 or first[0].datatype == "BYTES" or not first[0].shape:
        return None
    name, datatype, rest = first[0].name, first[0].datatype, first[0].shape[1:]
    sizes = []
    for item in message.items:
        if len(item) != 1 or item[0].name != name or item[0].datatype != datatype or item[0].shape[1:] != rest:
            return None
        sizes.append(item[0].shape[0])
    array = np.frombuffer(payload, dtype=numpy_dtype(datatype))
    return {name: array.reshape((sum(sizes), *rest))}, sizes


def merged(items: Sequence[Mapping[str, Array]]) -> tuple[dict[str, Array], list[int]]:
    """The batch and its items' rows."""
    sizes = [next(iter(item.values())).shape[0] for item in items]
    return {name: np.concatenate([item[name] for item in items]) for name in items[0]}, sizes


def parted(
    names: Sequence[str], raw: frozenset[str], arrays: Sequence[Array], sizes: Sequence[int]
) -> list[list[Tensor]]:
    """Each item's tensors, as views of the batch's. ``raw``: names of those that are BF16."""
    items: list[list[Tensor]] = [[] for _ in sizes]
    for name, array in zip(names, arrays, strict=True):
        at = 0
        if array.dtype.hasobject or not array.size:
            for item, size in zip(items, sizes, strict=True):
                item.append(from_array(name, array[at : at + size]))
                at += size
            continue
        whole = from_array(name, array)
        datatype = "BF16" if name in raw else whole.datatype
        data, rest, row = memoryview(whole.data), array.shape[1:], whole.nbytes // array.shape[0]
        for item, size in zip(items, sizes, strict=True):
            item.append(Tensor(name, datatype, (size, *rest), data[at * row : (at + size) * row]))
            at += size
    return items


class Filled(NamedTuple):
    """Items as one batch: their rows, each one's own lengths, and the lengths that all were filled up to."""

    batch: dict[str, Array]
    sizes: list[int]
    own: list[Lengths]
    bucket: Lengths


class Padding:
    """Fills the declared lengths of items up to their bucket, and cuts what comes out back to each item's own.

    ``inputs``: the model's, for their datatypes.
    """

    def __init__(self, pads: Mapping[str, Pad], inputs: Sequence[TensorSpec]) -> None:
        self._pads = pads
        given = {tensor: value for pad in pads.values() for tensor, value in pad.values.items()}
        padded = {tensor for pad in pads.values() for tensor in pad.inputs}
        self._values = {t.name: value_for(t.datatype, given.get(t.name, 0)) for t in inputs if t.name in padded}

    def filled(self, items: Sequence[Mapping[str, Array]]) -> Filled | None:
        """The items as one batch; None if one cannot be filled up, or not to the same shapes as the first."""
        own: list[Lengths] = []
        bucket: Lengths = {}
        filled: dict[str, Shape] = {}
        for item in items:
            shapes = {name: array.shape for name, array in item.items()}
            lengths = lengths_of(self._pads, shapes)
            if lengths is None:
                return None
            bucket = {name: bucket_of(self._pads[name], length) for name, length in lengths.items()}
            wanted = {name: shape[1:] for name, shape in with_lengths(self._pads, shapes, bucket).items()}
            if own and wanted != filled:
                return None
            own.append(lengths)
            filled = wanted
        sizes = [next(iter(item.values())).shape[0] for item in items]
        batch = {}
        for name, shape in filled.items():
            if name not in self._values:
                batch[name] = np.concatenate([item[name] for item in items])
                continue
            value = self._values[name]
            batch[name] = whole = np.full((sum(sizes), *shape), value[0], value.dtype)
            at = 0
            for item, size in zip(items, sizes, strict=True):
                array = item[name]
                whole[(slice(at, at + size), *map(slice, array.shape[1:]))] = array
                at += size
        return Filled(batch, sizes, own, bucket)

    def cut(self, names: Sequence[str], arrays: Sequence[Array], own: Lengths, bucket: Lengths) -> list[Array]:
        """An item's outputs, as views, as long as the item was.

        Raises ModelError for an output that is declared to have a length, and has not what was filled up to.
        """
        found = []
        for name, array in zip(names, arrays, strict=True):
            cuts = [slice(None)] * array.ndim
            for pad_name, pad in self._pads.items():
                axis = pad.outputs.get(name)
                if axis is None:
                    continue
                if axis >= array.ndim or array.shape[axis] != bucket[pad_name]:
                    raise ModelError(
                        f"output '{name}' {list(array.shape)} cannot be cut back: axis {axis} has not the "
                        f"{bucket[pad_name]} that '{pad_name}' was filled up to"
                    )
                cuts[axis] = slice(own[pad_name])
            found.append(array[tuple(cuts)])
        return found
