"""Tensors and arrays: the same values both ways, in the protocol's byte order."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from appliance.errors import InvalidInput
from appliance.models.tensors import (
    DATATYPES,
    FLOATS,
    ITEM_BYTES,
    Array,
    Tensor,
    count,
    datatype_of,
    decode_bytes,
    encode_bytes,
    from_array,
    numpy_dtype,
    size_of,
    to_array,
)

NUMBERS = [name for name in DATATYPES if name not in ("BYTES", "BF16")]


def test_the_protocol_s_datatypes_and_their_sizes() -> None:
    assert set(DATATYPES) == {
        *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
        *("FP16", "FP32", "FP64", "BF16", "BYTES"),
    }
    expected = {"BOOL": 1, "BF16": 2} | {f"{k}{n}": n // 8 for k in ("INT", "UINT") for n in (8, 16, 32, 64)}
    assert expected | {"FP16": 2, "FP32": 4, "FP64": 8} == ITEM_BYTES
    assert {"FP16", "FP32", "FP64", "BF16"} == FLOATS
    with pytest.raises(KeyError):
        size_of("BYTES", (1,))
    with pytest.raises(KeyError):
        numpy_dtype("BYTES")


@pytest.mark.parametrize("datatype", NUMBERS)
def test_names_both_ways(datatype: str) -> None:
    dtype = numpy_dtype(datatype)
    assert datatype_of(dtype) == datatype
    assert datatype_of(dtype.newbyteorder(">")) == datatype
    assert dtype.itemsize == ITEM_BYTES[datatype]


def test_other_dtypes() -> None:
    assert [datatype_of(np.dtype(d)) for d in (object, "U3", "S3", np.longlong)] == ["BYTES"] * 3 + ["INT64"]
    assert numpy_dtype("BF16") == np.uint16
    for dtype in (np.complex64, "M8[s]"):
        with pytest.raises(KeyError):
            datatype_of(np.dtype(dtype))


@given(
    st.sampled_from(NUMBERS).flatmap(
        lambda d: hn.arrays(numpy_dtype(d), hn.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    )
)
def test_numbers_both_ways(array: Array) -> None:
    tensor = from_array("x", array)
    assert tensor.shape == array.shape
    assert tensor.nbytes == size_of(tensor.datatype, tensor.shape) == array.nbytes
    back = to_array(tensor)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_the_bytes_are_little_endian_c_order() -> None:
    assert bytes(from_array("x", np.array([[1, 2], [3, 4]], ">i2").T).data) == struct.pack("<4h", 1, 3, 2, 4)
    assert bytes(from_array("x", np.array([True, False])).data) == b"\x01\x00"
    assert bytes(from_array("x", np.arange(6, dtype=np.uint8)[::2]).data) == b"\x00\x02\x04"


def test_no_copy_where_none_is_needed() -> None:
    array = np.arange(4, dtype=np.float32)
    tensor = from_array("x", array)
    array[0] = 9
    assert to_array(tensor)[0] == 9


def test_bfloat16_is_raw() -> None:
    array = to_array(Tensor("x", "BF16", (2, 1), b"\x80\x3f\x20\xc0"))
    assert (array.dtype, array.tolist()) == (np.uint16, [[0x3F80], [0xC020]])


@pytest.mark.parametrize("data", [b"1234", bytearray(b"1234"), memoryview(b"1234"), memoryview(np.zeros(1, "f4"))])
def test_nbytes(data: bytes) -> None:
    assert Tensor("x", "FP32", (1,), data).nbytes == 4


def test_count() -> None:
    assert (count(()), count((2, 3)), count((2, 0)), count((2**40, 2**40))) == (1, 6, 0, 2**80)


# --- BYTES ---------------------------------------------------------------------------------------------------


def test_the_encoding_of_bytes() -> None:
    assert encode_bytes([b"ab", "ü", b""]) == b"\x02\x00\x00\x00ab\x02\x00\x00\x00\xc3\xbc\x00\x00\x00\x00"
    assert encode_bytes([]) == b""


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_bytes_both_ways(elements: list[bytes]) -> None:
    assert decode_bytes(encode_bytes(elements), len(elements), "x") == elements


@given(st.lists(st.one_of(st.binary(max_size=5), st.text(max_size=5)), min_size=4, max_size=4))
def test_arrays_of_texts_both_ways(elements: list[bytes | str]) -> None:
    array = np.empty((2, 2), dtype=object)
    array[:] = [elements[:2], elements[2:]]
    tensor = from_array("x", array)
    assert (tensor.datatype, tensor.shape) == ("BYTES", (2, 2))
    raw = [e.encode() if isinstance(e, str) else e for e in elements]
    assert to_array(tensor).tolist() == [raw[:2], raw[2:]]


def test_numpy_s_own_strings() -> None:
    assert to_array(from_array("x", np.array(["ä", "bc"]))).tolist() == ["ä".encode(), b"bc"]
    assert to_array(from_array("x", np.array(b"a"))).shape == ()
    assert to_array(Tensor("x", "BYTES", (0, 3), b"")).shape == (0, 3)


@pytest.mark.parametrize(
    ("data", "expected", "words"),
    [
        (b"\x01\x00\x00", 1, "length is cut off at byte 0"),
        (b"\x01\x00\x00\x00a\x02", 2, "length is cut off at byte 5"),
        (b"\x05\x00\x00\x00ab", 1, "5 bytes at byte 4 reaches past the end"),
        (b"\xff\xff\xff\xff", 1, "reaches past the end"),
        (b"\x01\x00\x00\x00a", 2, "asks for 2 BYTES elements, the data holds 1"),
        (b"", 1, "asks for 1 BYTES elements, the data holds 0"),
        (b"\x00\x00\x00\x00" * 3, 2, "the data holds more"),
        (b"\x00\x00\x00\x00", 0, "the data holds more"),
    ],
)
def test_bytes_that_are_not_what_the_shape_says(data: bytes, expected: int, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        decode_bytes(data, expected, "x")
    assert caught.value.param == "x"


@given(st.binary(max_size=60), st.integers(0, 6))
def test_any_bytes_are_read_whole_or_refused(data: bytes, expected: int) -> None:
    try:
        found = decode_bytes(memoryview(bytearray(data)), expected, "x")
    except InvalidInput:
        return
    assert len(found) == expected
    assert encode_bytes(found) == data


def test_a_long_list_beyond_what_is_expected_is_not_read_to_its_end() -> None:
    with pytest.raises(InvalidInput, match="holds more"):
        decode_bytes(b"\x00\x00\x00\x00" * 1_000_000, 3, "x")
