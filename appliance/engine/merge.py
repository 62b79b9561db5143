"""Items of a run as one batch, and a batch as items again, with as few copies as there can be. Pure. (Child side.)"""

from collections.abc import Mapping, Sequence

import numpy as np

from appliance.engine.messages import Run
from appliance.models.tensors import Array, Tensor, from_array, numpy_dtype


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
