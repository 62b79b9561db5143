"""The Open Inference Protocol's infer response, JSON and binary tensor extension. Pure."""

from typing import Any

import msgspec
import numpy as np

from appliance.api import json_data
from appliance.api.oip_plan import InferRequest, remember_answer
from appliance.errors import InvalidInput
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Buffer, Tensor, count, encode_bytes, numpy_dtype


def respond(request: InferRequest, spec: ModelSpec, outputs: tuple[Tensor, ...]) -> tuple[list[Buffer], int | None]:
    """(body pieces, JSON length if binary data follows it). Raises InvalidOutput for what JSON cannot carry."""
    if request.answers is None:
        return _respond(request, spec, outputs)
    # All binary: the JSON says nothing but sizes, and they are mostly those of the last time.
    key = tuple([(t.datatype, t.shape, t.nbytes) for t in outputs])
    known = request.answers.get(key)
    if known is not None:
        return [known, *[t.data for t in outputs]], len(known)
    pieces, length = _respond(request, spec, outputs)
    if length is not None:
        remember_answer(request, key, bytes(pieces[0]))
    return pieces, length


def _respond(request: InferRequest, spec: ModelSpec, outputs: tuple[Tensor, ...]) -> tuple[list[Buffer], int | None]:
    entries: list[dict[str, Any]] = []
    binary: list[Buffer] = []
    for wish, tensor in zip(request.outputs, outputs, strict=True):
        if wish.classes:
            tensor = classify(tensor, wish.classes, spec)
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if wish.binary:
            entry["parameters"] = {"binary_data_size": tensor.nbytes}
            binary.append(tensor.data)
        else:
            entry["data"] = json_data.decode(tensor)
        entries.append(entry)
    answer: dict[str, Any] = {"model_name": spec.name, "model_version": spec.version, "outputs": entries}
    if request.id:
        answer["id"] = request.id
    header = msgspec.json.encode(answer)
    return [header, *binary], len(header) if binary else None


def classify(tensor: Tensor, k: int, spec: ModelSpec) -> Tensor:
    """The classification extension: the k highest values as ``value:index[:label]``, per item of a batch."""
    if tensor.datatype in ("BYTES", "BOOL", "BF16"):
        raise InvalidInput(f"output '{tensor.name}' {tensor.datatype} cannot be classified", param="classification")
    rows = tensor.shape[0] if spec.max_batch and tensor.shape else 1
    flat = np.frombuffer(tensor.data, dtype=numpy_dtype(tensor.datatype))
    size = count(tensor.shape[1:] if spec.max_batch else tensor.shape)
    values = flat.reshape(rows, size)
    # From the back, so that of equal values the first comes first. Not by negation: unsigned values wrap around.
    best = size - 1 - np.argsort(values[:, ::-1], axis=1, kind="stable")[:, : -k - 1 : -1]
    form = "f" if values.dtype.kind == "f" else "d"
    texts = [
        f"{values[row, i].item():{form}}:{i}" + (f":{spec.labels[i]}" if i < len(spec.labels) else "")
        for row in range(rows)
        for i in best[row]
    ]
    width = best.shape[1]
    shape = (rows, width) if spec.max_batch else (width,)
    return Tensor(tensor.name, "BYTES", shape, encode_bytes(texts))
