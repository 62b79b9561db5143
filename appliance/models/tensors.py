"""Tensors as they travel: a name, an Open Inference Protocol datatype, a shape and raw bytes.

Numbers are little-endian, C order. BYTES tensors use the protocol's own encoding: each element is a 4-byte
little-endian length followed by its bytes. BF16 stays raw (2 bytes an element): numpy has no such type.
"""

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from appliance.errors import InvalidInput

Array = npt.NDArray[Any]
Buffer = bytes | bytearray | memoryview

_NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}

ITEM_BYTES: dict[str, int] = {name: dtype.itemsize for name, dtype in _NUMPY.items()} | {"BF16": 2}
"""Bytes of one element, for every datatype of fixed size."""

DATATYPES: tuple[str, ...] = (*_NUMPY, "BF16", "BYTES")
"""Every datatype of the Open Inference Protocol."""

FLOATS = frozenset({"FP16", "FP32", "FP64", "BF16"})


class Tensor(msgspec.Struct, frozen=True):
    """One named tensor. ``data`` holds ``size_of(datatype, shape)`` bytes (BYTES: the protocol's encoding)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer

    @property
    def nbytes(self) -> int:
        return len(self.data) if isinstance(self.data, bytes | bytearray) else self.data.nbytes


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """The numpy dtype of a fixed-size datatype; BF16 reads as ``uint16`` (its raw bits). KeyError otherwise."""
    return np.dtype("<u2") if datatype == "BF16" else _NUMPY[datatype]


def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a numpy dtype; object and string arrays are BYTES. KeyError if there is none."""
    if dtype.kind in "OSU":
        return "BYTES"
    return _NAMES[dtype.newbyteorder("<")]


def bfloat16_bits(values: Array) -> Array:
    """The bits of float32 values as bfloat16: the upper half, rounded to the nearest, ties to even, as hardware does.

    uint16 of the same shape. Values beyond the largest bfloat16 become infinity.
    """
    bits = values.view(np.uint32).astype(np.uint64)
    rounded: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def count(shape: Iterable[int]) -> int:
    """Number of elements of a shape without dynamic axes; 1 for a scalar's ``()``."""
    return math.prod(shape)


def size_of(datatype: str, shape: Sequence[int]) -> int:
    """Bytes that a tensor of a fixed-size datatype takes. KeyError for BYTES."""
    return ITEM_BYTES[datatype] * count(shape)


def encode_bytes(elements: Iterable[bytes | str]) -> bytes:
    """The protocol's encoding of BYTES elements, in C order; text is encoded as UTF-8."""
    parts: list[bytes] = []
    for element in elements:
        raw = element.encode() if isinstance(element, str) else bytes(element)
        parts += (struct.pack("<I", len(raw)), raw)
    return b"".join(parts)


def decode_bytes(data: Buffer, expected: int, name: str) -> list[bytes]:
    """The BYTES elements in ``data``. ``InvalidInput`` unless there are exactly ``expected`` of them."""
    view, at = memoryview(data).cast("B"), 0
    found: list[bytes] = []
    end = view.nbytes
    while at < end and len(found) <= expected:
        if at + 4 > end:
            raise InvalidInput(f"input '{name}': a BYTES element's length is cut off at byte {at}", param=name)
        (length,) = struct.unpack_from("<I", view, at)
        at += 4
        if at + length > end:
            raise InvalidInput(
                f"input '{name}': a BYTES element of {length} bytes at byte {at} reaches past the end ({end})",
                param=name,
            )
        found.append(bytes(view[at : at + length]))
        at += length
    if len(found) != expected or at != end:
        raise InvalidInput(
            f"input '{name}': the shape asks for {expected} BYTES elements, the data holds "
            f"{'more' if len(found) > expected or at != end else len(found)}",
            param=name,
        )
    return found


def to_array(tensor: Tensor) -> Array:
    """The tensor as a read-only numpy array of its shape: BYTES as objects (``bytes``), BF16 as raw uint16."""
    if tensor.datatype == "BYTES":
        elements = decode_bytes(tensor.data, count(tensor.shape), tensor.name)
        array = np.empty(len(elements), dtype=object)
        array[:] = elements
        return array.reshape(tensor.shape)
    return np.frombuffer(tensor.data, dtype=numpy_dtype(tensor.datatype)).reshape(tensor.shape)


def from_array(name: str, array: Array) -> Tensor:
    """A tensor of an array, without a copy where it is contiguous. KeyError for a dtype without a datatype."""
    datatype = datatype_of(array.dtype)
    if datatype == "BYTES":
        return Tensor(name, datatype, array.shape, encode_bytes(array.reshape(-1).tolist()))
    wanted = np.ascontiguousarray(array, dtype=_NUMPY[datatype])
    # A zero-sized array cannot be cast to bytes by memoryview.
    data: Buffer = wanted.reshape(-1).view(np.uint8).data if wanted.size else b""
    return Tensor(name, datatype, array.shape, data)
