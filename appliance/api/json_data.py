"""Numbers and texts in JSON ↔ tensor bytes, for the protocol's ``data`` arrays. Strict: 1.5 is no INT32."""

from itertools import chain
from typing import Any

import msgspec
import numpy as np

from appliance.errors import InvalidInput, InvalidOutput
from appliance.models.tensors import (
    FLOATS,
    Array,
    Buffer,
    Tensor,
    bfloat16_bits,
    count,
    decode_bytes,
    encode_bytes,
    numpy_dtype,
)

_ELEMENT: dict[str, Any] = {"BOOL": bool, "BYTES": str}
_LISTS = {
    kind: msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]  # built from the table
    for kind in (bool, str, int, float)
}


def element_type(datatype: str) -> Any:
    """The Python type of one JSON element of this datatype."""
    return _ELEMENT.get(datatype, float if datatype in FLOATS else int)


def encode(name: str, datatype: str, shape: tuple[int, ...], raw: msgspec.Raw) -> Buffer:
    """Tensor bytes of a ``data`` array, flat or nested as the shape says. Raises InvalidInput naming the input."""
    kind = element_type(datatype)
    field = f"input '{name}': data"
    try:
        flat = _LISTS[kind].decode(raw)
    except msgspec.ValidationError as error:
        flat = _nested(field, kind, shape, raw, error)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"{field}: {error}", param=name) from None
    wanted = count(shape)
    if len(flat) != wanted:
        raise InvalidInput(f"{field} has {len(flat)} elements, the shape {list(shape)} asks for {wanted}", param=name)
    return pack(name, datatype, flat)


def pack(name: str, datatype: str, flat: list[Any]) -> Buffer:
    """Tensor bytes of a flat list of the right Python type. Raises InvalidInput for values out of range."""
    if datatype == "BYTES":
        return encode_bytes(flat)
    if datatype == "BF16":
        rounded = bfloat16_bits(_floats(name, datatype, flat, np.dtype(np.float32)))
        if (rounded & 0x7F80 == 0x7F80).any():  # it was rounded up to infinity
            raise InvalidInput(f"input '{name}': a value is out of the range of {datatype}", param=name)
        return rounded.tobytes()
    dtype = numpy_dtype(datatype)
    if dtype.kind == "f":
        return _floats(name, datatype, flat, dtype).tobytes()
    try:
        return np.array(flat, dtype=dtype).tobytes()
    except OverflowError:
        raise InvalidInput(f"input '{name}': a value is out of the range of {datatype}", param=name) from None


def _floats(name: str, datatype: str, flat: list[float], dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):
        array = np.array(flat, dtype=np.float64).astype(dtype)
    if not np.isfinite(array).all():  # JSON has no infinity, so it came out of a value too large
        raise InvalidInput(f"input '{name}': a value is out of the range of {datatype}", param=name)
    return array


def _nested(
    field: str, kind: Any, shape: tuple[int, ...], raw: msgspec.Raw, fault: msgspec.ValidationError
) -> list[Any]:
    """A nested array, level by level, checked against the shape; or the fault of a flat one in words."""
    try:
        level: Any = msgspec.json.decode(raw)
        if not isinstance(level, list) or not level or not isinstance(level[0], list):
            raise InvalidInput(f"{field}: {fault}")
        for axis, size in enumerate(shape):
            if not all(isinstance(part, list) for part in level if axis):
                raise InvalidInput(f"{field} is not nested as the shape {list(shape)} says (axis {axis})")
            if axis == 0:
                level = [level]
            if any(len(part) != size for part in level):
                raise InvalidInput(f"{field}: axis {axis} is not {size} long everywhere")
            level = list(chain.from_iterable(level))
        return msgspec.convert(level, list[kind])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput(f"{field}: {error}") from None


def decode(tensor: Tensor) -> list[Any]:
    """A flat JSON list of an output. Raises InvalidOutput for what JSON cannot carry."""
    if tensor.datatype == "BYTES":
        try:
            return [e.decode() for e in decode_bytes(tensor.data, count(tensor.shape), tensor.name)]
        except UnicodeDecodeError:
            raise InvalidOutput(f"output '{tensor.name}' is not UTF-8 text; ask for it as binary data") from None
    array = np.frombuffer(tensor.data, dtype=numpy_dtype(tensor.datatype))
    if tensor.datatype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        at = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InvalidOutput(
            f"output '{tensor.name}' holds {array[at]} at element {at}, which JSON cannot carry; "
            "ask for it as binary data"
        )
    return array.tolist()  # type: ignore[no-any-return]
