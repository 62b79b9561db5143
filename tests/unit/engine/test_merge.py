"""Items as one batch and back."""

from typing import Any

import numpy as np
import pytest

from appliance.engine.merge import joined, merged, parted
from appliance.engine.messages import Run, buffers, describe
from appliance.models.tensors import Array, from_array, to_array


def run_of(*items: dict[str, Array]) -> tuple[Run, memoryview]:
    tensors = [tuple(from_array(name, a) for name, a in item.items()) for item in items]
    payload = b"".join(bytes(b) for item in tensors for b in buffers(item))
    return Run(1, 1, tuple(describe(t) for t in tensors), ("y",)), memoryview(payload)


def test_items_of_one_input_are_one_array_without_a_copy() -> None:
    message, payload = run_of(*({"x": np.full((rows, 2), rows, np.int16)} for rows in (1, 3, 0, 2)))
    found = joined(message, payload)
    assert found is not None
    batch, sizes = found
    assert sizes == [1, 3, 0, 2]
    assert batch["x"].tolist() == [[1, 1], [3, 3], [3, 3], [3, 3], [2, 2], [2, 2]]
    assert np.shares_memory(batch["x"], np.frombuffer(payload, np.uint8))


@pytest.mark.parametrize(
    "items",
    [
        [{"a": np.ones((1, 2)), "b": np.ones((1, 2))}] * 2,
        [{"x": np.array([[b"text"]], dtype=object)}] * 2,
        [{"x": np.ones((1, 2))}, {"x": np.ones((1, 3))}],
        [{"x": np.ones((1, 2))}, {"x": np.ones((1, 2), np.float32)}],
        [{"x": np.ones((1, 2))}, {"z": np.ones((1, 2))}],
        [{"x": np.float32(1).reshape(())}] * 2,
    ],
    ids=["two inputs", "texts", "shapes", "datatypes", "names", "scalars"],
)
def test_other_items_are_not(items: Any) -> None:
    assert joined(*run_of(*items)) is None


def test_a_payload_of_another_size_is_an_error() -> None:
    message, payload = run_of({"x": np.ones((1, 2))}, {"x": np.ones((1, 2))})
    with pytest.raises(ValueError, match="reshape"):
        joined(message, payload[:-8])


def test_merged_items() -> None:
    batch, sizes = merged([{"a": np.ones((1, 2)), "b": np.zeros((1,))}, {"a": np.ones((2, 2)), "b": np.ones((2,))}])
    assert (batch["a"].shape, batch["b"].tolist(), sizes) == ((3, 2), [0, 1, 1], [1, 2])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(4, 3),
        np.arange(24, dtype=np.int64).reshape(4, 3, 2)[:, ::-1],
        np.arange(4, dtype=np.uint8),
        np.zeros((4, 0), np.float32),
        np.array([[b"a"], [b"bc"], [b""], ["d"]], dtype=object),
    ],
    ids=["rows", "not contiguous", "flat", "empty", "texts"],
)
def test_each_item_gets_its_rows(array: Array) -> None:
    items = parted(["y"], frozenset(), [array], [1, 0, 3])
    told = [b"d" if value == "d" else value for value in array.reshape(-1).tolist()]
    assert [t.shape for (t,) in items] == [(n, *array.shape[1:]) for n in (1, 0, 3)]
    assert [v for (t,) in items for v in to_array(t).reshape(-1).tolist()] == told


def test_bf16_keeps_its_name() -> None:
    items = parted(["y"], frozenset({"y"}), [np.array([1, 2], np.uint16)], [1, 1])
    assert [(t.datatype, bytes(t.data)) for (t,) in items] == [("BF16", b"\x01\x00"), ("BF16", b"\x02\x00")]
