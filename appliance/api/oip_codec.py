"""The Open Inference Protocol's infer request, JSON and binary tensor extension. Pure."""

from typing import Any

import msgspec

from appliance.api import json_data, oip_plan
from appliance.api.oip_plan import InferRequest, OutputWish
from appliance.errors import InputTooLarge, InvalidInput
from appliance.models.spec import ModelSpec, TensorSpec
from appliance.models.tensors import (
    DATATYPES,
    Buffer,
    Tensor,
    count,
    decode_bytes,
    encode_bytes,
    size_of,
)

_REFUSED = ("sequence_id", "sequence_start", "sequence_end", "shared_memory_region")
DEFAULT_PRIORITY = 100


class InputEntry(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw(b"")


class OutputEntry(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class InferBody(msgspec.Struct):
    inputs: list[InputEntry]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[OutputEntry] = []


_decode = msgspec.json.Decoder(InferBody).decode


def parse(
    body: bytes | bytearray | memoryview, header_length: bytes | None, spec: ModelSpec, max_elements: int
) -> InferRequest:
    """Check a request against the model. Raises InvalidInput, InputTooLarge, naming the field and the limit."""
    view = memoryview(body)
    if header_length is None:
        return _parse_json(body, view[len(body) :], spec, max_elements)
    field = "Inference-Header-Content-Length"
    length = int(header_length) if header_length.isdigit() and len(header_length) < 16 else -1
    if length < 0 or length > len(body):
        raise InvalidInput(
            f"{field} is {header_length.decode('latin-1')[:32]}, the body has {len(body)} bytes", param=field
        )
    if length == 0:
        return _parse_raw(view, spec, max_elements)
    if length > oip_plan.HEADER_KEPT:
        return _parse_json(view[:length], view[length:], spec, max_elements)
    header = bytes(view[:length])
    known = oip_plan.find(header, view, spec, max_elements)
    return known or _parse_json(header, view[length:], spec, max_elements)


def _parse_json(header: Buffer, binary: memoryview, spec: ModelSpec, max_elements: int) -> InferRequest:
    if not header:
        raise InvalidInput("the body is empty; it must be a JSON object with 'inputs'", param="body")
    try:
        request = _decode(header)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"body: {error}", param="body") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not valid JSON: {error}", param="body") from None
    parameters = request.parameters
    _refuse(parameters, "parameters")
    found: dict[str, Tensor] = {}
    at = 0
    for entry in request.inputs:
        if entry.name in found:
            raise InvalidInput(f"input '{entry.name[:128]}' is given twice", param=entry.name)
        tensor, at = _input(entry, spec, binary, at, max_elements)
        found[entry.name] = tensor
    if at != binary.nbytes:
        raise InvalidInput(
            f"{binary.nbytes - at} bytes of binary data are left over after the inputs' binary_data_size",
            param="binary_data_size",
        )
    inputs = _ordered(found, spec)
    default_binary = _flag(parameters, "binary_data_output", False)
    outputs = _outputs(request.outputs, spec, default_binary)
    timeout = _whole(parameters, "timeout")
    plain = type(header) is bytes and len(header) <= oip_plan.HEADER_KEPT and binary.nbytes and not request.id
    result = InferRequest(
        id=request.id,
        inputs=inputs,
        outputs=outputs,
        priority=_whole(parameters, "priority") or DEFAULT_PRIORITY,
        timeout_ms=timeout / 1000 if timeout else None,
        names=tuple(wish.name for wish in outputs),
        answers={} if plain and all(wish.binary and not wish.classes for wish in outputs) else None,
    )
    if plain and list(found) == [t.name for t in inputs]:
        oip_plan.remember(bytes(header), binary.nbytes, result, spec, max_elements)
    return result


def _input(entry: InputEntry, spec: ModelSpec, binary: memoryview, at: int, max_elements: int) -> tuple[Tensor, int]:
    known = spec.input(entry.name)
    if known is None:
        names = ", ".join(t.name for t in spec.inputs)
        raise InvalidInput(f"the model has no input '{entry.name[:128]}' (it has: {names})", param=entry.name[:128])
    shape = check_shape(known, entry.datatype, entry.shape, max_elements)
    _refuse(entry.parameters, f"inputs['{entry.name}'].parameters")
    size = entry.parameters.get("binary_data_size")
    if size is None:
        if not entry.data:
            raise InvalidInput(f"input '{entry.name}' has neither data nor binary_data_size", param=entry.name)
        return Tensor(known.name, known.datatype, shape, json_data.encode(*_named(known, shape), entry.data)), at
    if entry.data:
        raise InvalidInput(f"input '{entry.name}' has both data and binary_data_size", param=entry.name)
    if type(size) is not int or size < 0 or at + size > binary.nbytes:
        raise InvalidInput(
            f"input '{entry.name}': binary_data_size is {str(size)[:32]}, {binary.nbytes - at} bytes are left",
            param=entry.name,
        )
    data = binary[at : at + size]
    _check_size(known, shape, data)
    return Tensor(known.name, known.datatype, shape, data), at + size


def _named(known: TensorSpec, shape: tuple[int, ...]) -> tuple[str, str, tuple[int, ...]]:
    return known.name, known.datatype, shape


def _check_size(known: TensorSpec, shape: tuple[int, ...], data: memoryview) -> None:
    if known.datatype == "BYTES":
        decode_bytes(data, count(shape), known.name)
        return
    wanted = size_of(known.datatype, shape)
    if wanted != data.nbytes:
        raise InvalidInput(
            f"input '{known.name}': {data.nbytes} bytes, {known.datatype} of shape {list(shape)} takes {wanted}",
            param=known.name,
        )


def check_shape(known: TensorSpec, datatype: str, shape: list[int], max_elements: int) -> tuple[int, ...]:
    """The shape, checked against the model's. Raises InvalidInput, InputTooLarge."""
    name = known.name
    if datatype != known.datatype:
        unknown = "" if datatype in DATATYPES else f" (known: {', '.join(DATATYPES)})"
        raise InvalidInput(
            f"input '{name}': datatype {datatype[:32]}, the model takes {known.datatype}{unknown}", param=name
        )
    if len(shape) != len(known.shape):
        raise InvalidInput(
            f"input '{name}': shape {shape[:16]} has rank {len(shape)}, the model takes {known.describe()}",
            param=name,
        )
    for axis, (size, want) in enumerate(zip(shape, known.shape, strict=True)):
        if size < 0:
            raise InvalidInput(f"input '{name}': axis {axis} of the shape is {str(size)[:32]}", param=name)
        if size > max_elements:
            raise InputTooLarge(
                f"input '{name}': axis {axis} is {str(size)[:32]}, the limit is {max_elements} elements", param=name
            )
        if want >= 0 and size != want:
            raise InvalidInput(
                f"input '{name}': axis {axis} is {size}, the model takes {want} ({known.describe()})", param=name
            )
    elements = count(shape)
    if elements > max_elements:
        raise InputTooLarge(f"input '{name}': {elements} elements, the limit is {max_elements}", param=name)
    return tuple(shape)


def _ordered(found: dict[str, Tensor], spec: ModelSpec) -> tuple[Tensor, ...]:
    missing = [t.name for t in spec.inputs if t.name not in found and not t.optional]
    if missing:
        raise InvalidInput(f"input '{missing[0]}' is missing", param=missing[0])
    return tuple(found[t.name] for t in spec.inputs if t.name in found)


def _outputs(entries: list[OutputEntry], spec: ModelSpec, binary: bool) -> tuple[OutputWish, ...]:
    if not entries:
        return tuple(OutputWish(t.name, binary) for t in spec.outputs)
    if len(entries) > len(spec.outputs):
        raise InvalidInput(
            f"outputs: {len(entries)} are asked for, the model has {len(spec.outputs)}", param="outputs"
        )
    wishes: dict[str, OutputWish] = {}
    for entry in entries:
        if spec.output(entry.name) is None:
            names = ", ".join(t.name for t in spec.outputs)
            raise InvalidInput(f"the model has no output '{entry.name[:128]}' (it has: {names})", param="outputs")
        if entry.name in wishes:
            raise InvalidInput(f"output '{entry.name}' is asked for twice", param="outputs")
        _refuse(entry.parameters, f"outputs['{entry.name}'].parameters")
        wishes[entry.name] = OutputWish(
            entry.name, _flag(entry.parameters, "binary_data", binary), _whole(entry.parameters, "classification")
        )
    return tuple(wishes.values())


def _parse_raw(body: memoryview, spec: ModelSpec, max_elements: int) -> InferRequest:
    """A raw binary request: the body is the one input's bytes, its shape follows from the model's."""
    if len(spec.inputs) != 1:
        raise InvalidInput(
            f"a raw binary request needs a model of one input, this one has {len(spec.inputs)}", param="body"
        )
    known = spec.inputs[0]
    data: Buffer = body
    shape = list(known.shape)
    if spec.max_batch and shape:
        shape[0] = 1
    if known.datatype == "BYTES":
        data = encode_bytes([bytes(body)])
        shape = [1 if d < 0 else d for d in shape]
    free = [axis for axis, d in enumerate(shape) if d < 0]
    if len(free) > 1:
        raise InvalidInput(f"input '{known.name}' {known.describe()} has more than one free axis", param=known.name)
    if free:
        shape[free[0]] = 1
        shape[free[0]], rest = divmod(body.nbytes, max(1, size_of(known.datatype, shape)))
        if rest:
            raise InvalidInput(
                f"input '{known.name}': {body.nbytes} bytes are no whole number of {known.describe()}",
                param=known.name,
            )
    checked = check_shape(known, known.datatype, shape, max_elements)
    _check_size(known, checked, memoryview(data))
    tensor = Tensor(known.name, known.datatype, checked, data)
    outputs = tuple(OutputWish(t.name, True) for t in spec.outputs)
    return InferRequest("", (tensor,), outputs, DEFAULT_PRIORITY, None, tuple(wish.name for wish in outputs))


def _refuse(parameters: dict[str, Any], where: str) -> None:
    if parameters:
        for name in _REFUSED:
            # A client library sends sequence_id 0 for "none".
            if parameters.get(name):
                raise InvalidInput(f"{where}: '{name}' is not offered by this server", param=name)


def _flag(parameters: dict[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidInput(f"parameter '{name}' must be true or false", param=name)
    return value


def _whole(parameters: dict[str, Any], name: str) -> int:
    value = parameters.get(name, 0)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise InvalidInput(f"parameter '{name}' must be a whole number from 0 to 2**63 - 1", param=name)
    return value
