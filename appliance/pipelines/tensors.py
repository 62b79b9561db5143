"""The pipeline of a model that has no task: named tensors as nested lists in, named tensors out."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from appliance.errors import InvalidInput, InvalidOutput
from appliance.models.spec import ModelSpec, TensorSpec
from appliance.models.tensors import FLOATS, Array, bfloat16_bits, datatype_of, numpy_dtype
from appliance.pipelines.base import Answer, Caller, Item, PipelineContext
from appliance.pipelines.options import own_spec, parse, wishes


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[pipeline]`` without a task takes no keys."""

    task: Literal["tensors"] = "tensors"


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class Tensors:
    """Result: ``{"outputs": {name: {"datatype", "shape", "data"}}}``, ``data`` flat, in C order.

    Takes ``Item.inputs``, or ``Item.text`` for a model whose only input is BYTES. BYTES outputs are given as
    text. InvalidOutput for numbers that are not finite and bytes that are not UTF-8: JSON has neither.
    """

    task = "tensors"
    parts: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()

    def __init__(self, context: PipelineContext) -> None:
        self._spec = own_spec(context)
        parse(context, Options)

    async def run(self, item: Item, call: Caller, accept: str | None) -> Answer:
        wishes(item, Wishes)
        inputs = await call.offload(self._read, item)
        outputs = await call.infer(inputs)
        return Answer({"outputs": await call.offload(_write, outputs, self._spec)})

    def _read(self, item: Item) -> dict[str, Array]:
        if item.text is not None:
            return self._of_text(item.text, item.field)
        if item.inputs is None:
            raise InvalidInput(
                f"'{item.field}': this model takes named tensors ({_describe(self._spec)}), not a file",
                param=item.field,
            )
        unknown = [name for name in item.inputs if self._spec.input(name) is None]
        if unknown:
            raise InvalidInput(f"no input '{unknown[0]}'; the model takes {_describe(self._spec)}", param=unknown[0])
        missing = [t for t in self._spec.inputs if not t.optional and t.name not in item.inputs]
        if missing:
            name = missing[0].name
            raise InvalidInput(f"input '{name}' ({missing[0].describe()}) is missing", param=name)
        return {t.name: read(t, item.inputs[t.name]) for t in self._spec.inputs if t.name in item.inputs}

    def _of_text(self, text: str, field: str) -> dict[str, Array]:
        needed = [t for t in self._spec.inputs if not t.optional] or list(self._spec.inputs)
        if len(needed) != 1 or needed[0].datatype != "BYTES" or any(d not in (-1, 1) for d in needed[0].shape):
            raise InvalidInput(f"'{field}': text is not what this model takes: {_describe(self._spec)}", param=field)
        array = np.empty((1,) * len(needed[0].shape), dtype=object)
        array[...] = text.encode()
        return {needed[0].name: array}


def read(spec: TensorSpec, value: Any) -> Array:
    """Nested lists as an array of the spec's datatype (BF16: raw bits, BYTES: objects).

    InvalidInput, naming the input, for a ragged list, another shape or rank, elements of another kind, or numbers
    that the datatype cannot hold.
    """
    array = _of_bytes(spec, value) if spec.datatype == "BYTES" else _of_numbers(spec, value)
    fits = array.ndim == len(spec.shape) and all(
        want in (-1, have) for want, have in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        raise _wrong(spec, f"expects {spec.describe()}, got shape {list(array.shape)}")
    return array


def _of_numbers(spec: TensorSpec, value: Any) -> Array:
    try:
        raw = np.array(value)
    except (ValueError, OverflowError) as error:
        raise _wrong(spec, "the lists are not all of the same length") from error
    target = numpy_dtype(spec.datatype)
    if spec.datatype == "BOOL":
        if raw.size and raw.dtype.kind != "b":
            raise _wrong(spec, "expects true and false")
        return raw.astype(target)
    if spec.datatype in FLOATS:
        if raw.dtype.kind not in "iuf":
            raise _wrong(spec, "expects numbers")
        return _float(spec, raw.astype(np.float64))
    if raw.dtype.kind == "f" and spec.datatype == "UINT64":
        raw = _unsigned(value, raw)
    if raw.size and raw.dtype.kind not in "iu":
        raise _wrong(spec, "expects whole numbers")
    limits = np.iinfo(target)
    if raw.size and (int(raw.min()) < limits.min or int(raw.max()) > limits.max):
        raise _wrong(spec, f"has a number outside {limits.min} to {limits.max}")
    return raw.astype(target)


def _unsigned(value: Any, raw: Array) -> Array:
    """numpy reads whole numbers on both sides of 2**63 as floats; read again as what they are, else ``raw``."""
    exact = np.array(value, dtype=object)
    whole = all(type(v) is int and 0 <= v < 2**64 for v in exact.reshape(-1).tolist())
    return exact.astype(np.uint64) if whole else raw


def _float(spec: TensorSpec, numbers: Array) -> Array:
    with np.errstate(over="ignore"):
        single = numbers.astype(np.float32)
        cast = single if spec.datatype == "BF16" else numbers.astype(numpy_dtype(spec.datatype))
    if np.isfinite(numbers).all() and not np.isfinite(cast).all():
        raise _wrong(spec, f"has a number too large for {spec.datatype}")
    if spec.datatype != "BF16":
        return cast
    return bfloat16_bits(single)


def _of_bytes(spec: TensorSpec, value: Any) -> Array:
    shape: list[int] = []
    level = value
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
        if len(shape) > len(spec.shape):
            raise _wrong(spec, f"expects {spec.describe()}, got deeper lists")
    elements = list(_leaves(spec, value, tuple(shape)))
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def _leaves(spec: TensorSpec, value: Any, shape: tuple[int, ...]) -> Iterator[bytes]:
    if not shape:
        if not isinstance(value, str):
            raise _wrong(spec, "expects text")
        yield value.encode()
        return
    if not isinstance(value, list) or len(value) != shape[0]:
        raise _wrong(spec, "the lists are not all of the same length")
    for part in value:
        yield from _leaves(spec, part, shape[1:])


def _write(outputs: Mapping[str, Array], spec: ModelSpec) -> dict[str, Any]:
    written = {}
    for name, array in outputs.items():
        known = spec.output(name)
        datatype = known.datatype if known else datatype_of(array.dtype)
        written[name] = {"datatype": datatype, "shape": list(array.shape), "data": _flat(name, datatype, array)}
    return written


def _flat(name: str, datatype: str, array: Array) -> list[Any]:
    if datatype == "BYTES":
        try:
            return [e.decode() if isinstance(e, bytes) else str(e) for e in array.reshape(-1).tolist()]
        except UnicodeDecodeError as error:
            raise InvalidOutput(f"the model's output '{name}' is not text (UTF-8)") from error
    if datatype == "BF16" and array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidOutput(f"the model's output '{name}' has values that are not finite numbers")
    flat: list[Any] = array.reshape(-1).tolist()
    return flat


def _describe(spec: ModelSpec) -> str:
    return ", ".join(f"'{t.name}' {t.describe()}" for t in spec.inputs)


def _wrong(spec: TensorSpec, text: str) -> InvalidInput:
    return InvalidInput(f"input '{spec.name}': {text}", param=spec.name)
