"""Lengths that are filled up: which, to what, and what does not suit a model."""

import numpy as np
import pytest

from appliance.models.padding import combinations, faults, filled_shapes, lengths_of, value_for, with_lengths
from appliance.models.spec import Pad, TensorSpec

LENGTH = Pad((8, 16), {"ids": 1, "mask": 1}, {"y": 1})
SIZES = {"height": Pad((32, 64), {"image": 2}), "width": Pad((100,), {"image": 3})}


@pytest.mark.parametrize(
    ("ids", "mask", "length", "filled"),
    [(1, 1, 1, 8), (8, 8, 8, 8), (9, 9, 9, 16), (16, 16, 16, 16), (17, 17, None, None), (0, 0, None, None)],
)
def test_the_next_bucket(ids: int, mask: int, length: int | None, filled: int | None) -> None:
    pads, shapes = {"length": LENGTH}, {"ids": (2, ids), "mask": (2, mask), "other": (2, 5)}
    assert lengths_of(pads, shapes) == (None if length is None else {"length": length})
    expected = None if filled is None else {"ids": (2, filled), "mask": (2, filled), "other": (2, 5)}
    assert filled_shapes(pads, shapes) == expected


def test_inputs_of_different_length_are_not_filled_and_one_that_is_left_out_does_not_count() -> None:
    pads = {"length": LENGTH}
    assert filled_shapes(pads, {"ids": (1, 3), "mask": (1, 4)}) is None
    assert filled_shapes(pads, {"ids": (1, 3)}) == {"ids": (1, 8)}
    assert filled_shapes(pads, {"other": (1, 3)}) is None


def test_several_lengths_of_one_input() -> None:
    assert filled_shapes(SIZES, {"image": (4, 3, 33, 100)}) == {"image": (4, 3, 64, 100)}
    assert filled_shapes(SIZES, {"image": (4, 3, 33, 101)}) is None
    assert combinations(SIZES) == [{"height": 32, "width": 100}, {"height": 64, "width": 100}]
    assert combinations({}) == [{}]
    assert with_lengths(SIZES, {"image": [1, 3, 1, 1]}, {"height": 5}) == {"image": (1, 3, 5, 1)}


@pytest.mark.parametrize(
    ("datatype", "value", "bits"),
    [
        ("INT64", 7, [7]),
        ("INT8", -128, [-128]),
        ("UINT8", 255.0, [255]),
        ("BOOL", True, [True]),
        ("FP32", 0.5, [0.5]),
        ("FP16", float("-inf"), [float("-inf")]),
        ("BF16", 1, [0x3F80]),
        ("FP64", 0, [0.0]),
    ],
)
def test_values(datatype: str, value: float, bits: list[float]) -> None:
    assert value_for(datatype, value).tolist() == bits


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("UINT8", 256), ("UINT8", -1), ("INT64", 0.5), ("INT32", float("nan")), ("BOOL", 2), ("FP16", 1e6)],
)
def test_values_that_a_datatype_cannot_hold(datatype: str, value: float) -> None:
    with pytest.raises((ValueError, OverflowError)):
        value_for(datatype, value)


def test_a_bool_is_what_the_runtime_expects() -> None:
    assert value_for("BOOL", False).dtype == np.bool_


def told(pad: Pad) -> list[str]:
    inputs = (
        TensorSpec("ids", "UINT8", (-1, -1)),
        TensorSpec("fixed", "FP32", (-1, 7)),
        TensorSpec("texts", "BYTES", (-1, -1)),
    )
    outputs = (TensorSpec("y", "FP32", (-1, -1, 4)), TensorSpec("unknown", "FP32", ()))
    return list(faults({"length": pad}, inputs, outputs))


def test_what_suits_a_model() -> None:
    assert told(Pad((8,), {"ids": 1}, {"y": 1, "unknown": 5}, {"ids": 255})) == []


@pytest.mark.parametrize(
    ("pad", "words"),
    [
        (Pad((8,), {"idz": 1}), "batching.pad.length.inputs: the model has no input 'idz'"),
        (Pad((8,), {"ids": 2}), "batching.pad.length.inputs: 'ids' UINT8[-1,-1] has no axis 2"),
        (Pad((8,), {"fixed": 1}), "batching.pad.length.inputs: axis 1 of 'fixed' FP32[-1,7] is not free"),
        (Pad((8,), {"texts": 1}), "batching.pad.length.inputs: 'texts' holds texts, which cannot be filled up"),
        (
            Pad((8,), {"ids": 1}, values={"ids": 300}),
            "batching.pad.length.values: 300 is no value of 'ids' UINT8[-1,-1]",
        ),
        (Pad((8,), {"ids": 1}, {"z": 1}), "batching.pad.length.outputs: the model has no output 'z'"),
        (Pad((8,), {"ids": 1}, {"y": 3}), "batching.pad.length.outputs: 'y' FP32[-1,-1,4] has no axis 3"),
        (Pad((8,), {"ids": 1}, {"y": 2}), "batching.pad.length.outputs: axis 2 of 'y' FP32[-1,-1,4] is not free"),
    ],
)
def test_what_does_not(pad: Pad, words: str) -> None:
    assert told(pad) == [words]
