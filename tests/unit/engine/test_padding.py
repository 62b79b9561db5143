"""Items of different length as one batch: filled up, run, cut back, each its own."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h

from appliance.backends.base import LoadRequest, Session
from appliance.backends.onnx import OnnxBackend
from appliance.engine import warmup
from appliance.engine.canary import watch
from appliance.engine.merge import Padding
from appliance.engine.messages import CostPoint, Known
from appliance.engine.padded import PaddedModel
from appliance.engine.warmup import Warmed, bucket_shapes, smallest, warm_again, warm_up
from appliance.errors import InsufficientMemory, ModelError, ModelLoadError
from appliance.models.spec import ModelConfig, ModelSpec, Pad, TensorSpec, Warmup
from appliance.models.tensors import Array
from tests.support import nets
from tests.unit.engine.test_lanes import Host, run_message

X = TensorSpec("x", "FP32", (-1, -1))
PAD = Pad((4, 8), {"x": 1}, {"y": 1}, {"x": 0.5})
PADS = {"length": PAD}


def opened(path: Path) -> Session:
    return OnnxBackend().open(LoadRequest("m", path, path.parent, "cpu", 1, ModelConfig()))


def net(folder: Path, nodes: list[Any], outputs: Any = None, weights: Any = None) -> Session:
    outputs = outputs or [("y", T.FLOAT, ["N", "L"])]
    return opened(nets.save(folder / "model.onnx", nodes, [("x", T.FLOAT, ["N", "L"])], outputs, weights))


def plus_sum(folder: Path) -> Session:
    """y = x + the sum of x over its length, so that what it is filled up with shows: 0.5 a place."""
    nodes = [h.make_node("ReduceSum", ["x", "a"], ["s"], keepdims=1), h.make_node("Add", ["x", "s"], ["y"])]
    outputs = [("y", T.FLOAT, ["N", "L"]), ("s", T.FLOAT, ["N", 1])]
    return net(folder, nodes, outputs, {"a": np.array([1], np.int64)})


# --- pure -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(5, 8)), min_size=1, max_size=6))
def test_each_item_comes_back_as_it_went_in(items: list[tuple[int, int]]) -> None:
    """With a model that changes nothing; (rows, length) of each item, all of one bucket, each with its own mark."""
    padding = Padding(PADS, (X,))
    arrays = [np.full((rows, length), mark, np.float32) for mark, (rows, length) in enumerate(items, 1)]
    group = padding.filled([{"x": a} for a in arrays])
    assert group is not None and group.bucket == {"length": 8}
    whole = group.batch["x"]
    assert whole.shape == (sum(rows for rows, _ in items), 8) and whole.dtype == np.float32
    assert (whole == 0.5).sum() == sum(rows * (8 - length) for rows, length in items)
    at = 0
    for array, size, own in zip(arrays, group.sizes, group.own, strict=True):
        (found,) = padding.cut(["y"], [whole[at : at + size]], own, group.bucket)
        np.testing.assert_array_equal(found, array)
        at += size


def test_several_inputs_lengths_and_datatypes() -> None:
    pads = {"h": Pad((2, 4), {"x": 1, "m": 2}, {"y": 2}, {"m": 1}), "w": Pad((3,), {"x": 2}, {"y": 1})}
    inputs = (
        TensorSpec("x", "INT16", (-1, -1, -1)),
        TensorSpec("m", "BOOL", (-1, 1, -1)),
        TensorSpec("z", "FP64", (-1,)),
    )
    padding = Padding(pads, inputs)
    item: dict[str, Array] = {
        "x": np.full((1, 3, 2), 9, np.int16),
        "m": np.zeros((1, 1, 3), np.bool_),
        "z": np.array([2.5]),
    }
    group = padding.filled([item, item])
    assert group is not None
    assert group.own == [{"h": 3, "w": 2}] * 2 and group.bucket == {"h": 4, "w": 3}
    assert group.batch["x"].tolist() == [[[9, 9, 0], [9, 9, 0], [9, 9, 0], [0, 0, 0]]] * 2
    assert group.batch["m"].tolist() == [[[False, False, False, True]]] * 2
    assert group.batch["z"].tolist() == [2.5, 2.5]
    y = np.arange(24).reshape(2, 3, 4)
    (cut,) = padding.cut(["y"], [y[:1]], group.own[0], group.bucket)
    assert cut.tolist() == [[[0, 1, 2], [4, 5, 6]]]


def test_bf16_is_filled_with_bits() -> None:
    padding = Padding({"l": Pad((2,), {"x": 1}, {}, {"x": 1.0})}, (TensorSpec("x", "BF16", (-1, -1)),))
    group = padding.filled([{"x": np.array([[0x4000]], np.uint16)}])
    assert group is not None and group.batch["x"].tolist() == [[0x4000, 0x3F80]]


@pytest.mark.parametrize("shapes", [[(1, 9)], [(1, 0)], [(1, 3), (1, 5)], [(1, 3), (1, 9)]])
def test_items_that_are_not_filled_together(shapes: list[tuple[int, int]]) -> None:
    assert Padding(PADS, (X,)).filled([{"x": np.zeros(shape, np.float32)} for shape in shapes]) is None


def test_items_that_differ_elsewhere_are_never_filled_up_there() -> None:
    spec = TensorSpec("x", "FP32", (-1, -1, -1))
    items = [{"x": np.zeros((1, 3, width), np.float32)} for width in (2, 3)]
    assert Padding(PADS, (spec,)).filled(items) is None


def test_an_output_that_has_not_the_length_is_an_error_not_a_wrong_cut() -> None:
    padding = Padding(PADS, (X,))
    for shape in ((1, 7), (1,)):
        with pytest.raises(ModelError, match=r"output 'y' \[.*\] cannot be cut back: axis 1 has not the 8"):
            padding.cut(["y"], [np.zeros(shape)], {"length": 5}, {"length": 8})


# --- a loaded model -------------------------------------------------------------------------------------------


def loaded(session: Any, host: Host) -> PaddedModel:
    spec = ModelSpec("m", "1", "onnx", "onnx", session.opened.inputs, session.opened.outputs, max_batch=8, pads=PADS)
    return PaddedModel(spec, session, host)


def test_the_answers_are_the_model_s_for_the_filled_up_input_cut_back(tmp_path: Path) -> None:
    host = Host()
    model = loaded(plus_sum(tmp_path), host)
    model.submit(*run_message(1, [[1, 2, 3]], [[10], [20]], [[1, 1, 1, 1]]))
    # Sums of four: 1 + 2 + 3 + 0.5; 10 + 3 × 0.5, 20 + 3 × 0.5; 4.
    assert host.values(1) == [[[7.5, 8.5, 9.5]], [[21.5], [41.5]], [[5, 5, 5, 5]]]
    model.submit(*run_message(2, [[1, 2, 3]]))
    assert host.values(2) == [[[7.5, 8.5, 9.5]]], "alone as in company"
    model.submit(*run_message(3, [[1, 2, 3, 4, 5]]))
    assert host.values(3) == [[[17.5, 18.5, 19.5, 20.5, 21.5]]]
    model.submit(*run_message(4, [[1] * 9]))
    assert host.values(4) == [[[10] * 9]], "longer than the largest bucket: as it is"
    model.submit(*run_message(5, [[1] * 9], [[1, 2, 3]]))
    assert host.values(5) == [[[10] * 9], [[7.5, 8.5, 9.5]]], "the host would not send it, but nothing is mixed up"


def test_values_that_are_not_finite_count_only_where_they_are_answered(tmp_path: Path) -> None:
    """1 / (x − 0.5) is infinite where it is filled up."""
    nodes = [h.make_node("Sub", ["x", "half"], ["d"]), h.make_node("Reciprocal", ["d"], ["y"])]
    session = net(tmp_path, nodes, weights={"half": np.float32(0.5)})
    host = Host()
    spec = ModelSpec("m", "1", "onnx", "onnx", session.opened.inputs, session.opened.outputs, max_batch=8, pads=PADS)
    health = watch(session, "m", ModelConfig(finite=True), batched=True)
    model = PaddedModel(spec, session, host, health)
    model.submit(*run_message(1, [[1, 1.5]], [[0.5, 1]], [[2.5]]))
    assert host.values(1) == [[[2, 1]], "invalid_output", [[0.5]]]


class Fails:
    """A session that fails with ``error`` for batches of ``rows``, or for items that hold a value."""

    def __init__(self, session: Session, rows: int = 10**9, value: float | None = None, error: Any = None) -> None:
        self.session, self.rows, self.value = session, rows, value
        self.error = error or ModelError("no")
        self.opened = session.opened
        self.shapes: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, inputs: Any, outputs: Any, handle: Any) -> list[Array]:
        x = inputs["x"]
        self.shapes.append(x.shape)
        if len(x) >= self.rows or (self.value is not None and (x == self.value).any()):
            raise self.error
        return self.session.run(inputs, outputs, handle)


def test_one_bad_item_harms_no_other(tmp_path: Path) -> None:
    host = Host()
    session = Fails(plus_sum(tmp_path), value=99)
    model = loaded(session, host)
    model.submit(*run_message(1, [[1, 2, 3]], [[99]], [[1, 1, 1, 1]]))
    assert host.values(1) == [[[7.5, 8.5, 9.5]], "model_error", [[5, 5, 5, 5]]]
    assert session.shapes == [(3, 4), (1, 4), (1, 4), (1, 4)], "filled up also when they run alone"


def test_a_batch_that_runs_out_of_memory_says_so(tmp_path: Path) -> None:
    host = Host()
    model = loaded(Fails(plus_sum(tmp_path), rows=2, error=InsufficientMemory("full")), host)
    model.submit(*run_message(1, [[1, 2, 3]], [[10]]))
    assert host.values(1) == [[[7.5, 8.5, 9.5]], [[21.5]]] and host.answer(1).ran_out
    model = loaded(Fails(plus_sum(tmp_path), rows=1, error=InsufficientMemory("full")), host)
    model.submit(*run_message(2, [[1, 2, 3]]))
    assert host.answer(2).code == "insufficient_memory"


# --- warm-up ---------------------------------------------------------------------------------------------------


def warm(session: Any, pads: dict[str, Pad] = PADS, candidate: int = 4, **config: Any) -> Warmed:
    found = warm_up(session, Warmup(**config), candidate, False, pads=pads)
    return msgspec.structs.replace(found, costs=(), good_batch=0)


def test_every_bucket_is_measured_at_every_size_from_small_to_large(tmp_path: Path) -> None:
    """A session with an arena: 40 bytes an element, and it keeps what it took. 1000 are taken before."""

    class Arena(Fails):
        taken = 1000

        def run(self, inputs: Any, outputs: Any, handle: Any) -> list[Array]:
            self.taken = max(self.taken, 1000 + 40 * inputs["x"].size)
            return super().run(inputs, outputs, handle)

    session = Arena(plus_sum(tmp_path))
    found = warm_up(session, Warmup(), 4, False, lambda: session.taken, PADS)
    assert found.max_batch == 4 and found.held == 4 * 8 * 40
    # Filled up before it was proven, which is not measured: that is the size of (4, batch 1).
    assert set(found.costs) == {
        CostPoint(((4,),), 1, 160),
        CostPoint(((4,),), 2, 320),
        CostPoint(((4,),), 4, 640),
        CostPoint(((8,),), 1, 320),
        CostPoint(((8,),), 2, 640),
        CostPoint(((8,),), 4, 1280),
    }


def test_what_filling_up_changes_is_told(tmp_path: Path) -> None:
    note = "output 'y' changes when its inputs are filled up (batching.pad declares that safe)"
    found = warm(plus_sum(tmp_path))
    assert found.max_batch == 4 and found.notes[0] == note
    safe = net(tmp_path, [h.make_node("Mul", ["x", "two"], ["y"])], weights={"two": np.float32(2)})
    assert warm(safe) == Warmed(4, ())


def test_an_output_that_grows_and_is_not_named(tmp_path: Path) -> None:
    safe = net(tmp_path, [h.make_node("Mul", ["x", "two"], ["y"])], weights={"two": np.float32(2)})
    words = (
        r"^batching.pad: output 'y' is \[1, 4\] where the input was filled up, and \[1, 3\] without; name its axis"
    )
    with pytest.raises(ModelLoadError, match=words):
        warm(safe, {"length": Pad((4, 8), {"x": 1})})


def test_an_output_that_cannot_be_cut(tmp_path: Path) -> None:
    nodes = [h.make_node("Concat", ["x", "x"], ["y"], axis=1)]
    with pytest.raises(ModelLoadError, match=r"^batching.pad: output 'y' \[1, 8\] cannot be cut back"):
        warm(net(tmp_path, nodes, [("y", T.FLOAT, ["N", "M"])]))


def test_a_bucket_that_the_model_does_not_take(tmp_path: Path) -> None:
    """It adds a table of 6 places: longer inputs fail."""
    nodes = [
        h.make_node("Shape", ["x"], ["l"], start=1),
        h.make_node("Slice", ["table", "zero", "l", "zero"], ["part"]),
        h.make_node("Add", ["x", "part"], ["y"]),
    ]
    session = net(tmp_path, nodes, weights={"table": np.arange(6, dtype=np.float32), "zero": np.array([0], np.int64)})
    with pytest.raises(ModelLoadError, match=r"^batching.pad: x \[1, 8\] fails: "):
        warm(session)


def test_a_batch_that_is_too_large_for_the_largest_bucket(tmp_path: Path) -> None:
    class Full(Fails):
        def run(self, inputs: Any, outputs: Any, handle: Any) -> list[Array]:
            if inputs["x"].size > 8 * 4:
                raise InsufficientMemory("full")
            return super().run(inputs, outputs, handle)

    session = Full(net(tmp_path, [h.make_node("Mul", ["x", "x"], ["y"])]))
    note = "at most 4 requests are merged, a batch of 8 fails: full"
    assert warm(session, candidate=16) == Warmed(4, (note,))


def test_a_model_that_takes_no_other_lengths_needs_it(tmp_path: Path) -> None:
    """Its inputs must be 4 or 8 long: it is folded by four."""
    nodes = [
        h.make_node("Reshape", ["x", "four"], ["f"]),
        h.make_node("Shape", ["x"], ["s"]),
        h.make_node("Reshape", ["f", "s"], ["y"]),
    ]
    assert warm(net(tmp_path, nodes, weights={"four": np.array([-1, 4])})) == Warmed(4, ())


def test_where_requests_are_never_merged_nothing_is_filled_up(tmp_path: Path) -> None:
    spy = Fails(net(tmp_path, [h.make_node("CumSum", ["x", "zero"], ["y"])], weights={"zero": np.array(0, np.int64)}))
    assert warm(spy).max_batch == 0
    spy.shapes.clear()
    assert warm_up(spy, Warmup(), 0, False, pads=PADS).max_batch == 0
    assert spy.shapes == [(1, 1)]


def test_warm_again_runs_each_bucket_once_at_both_ends(tmp_path: Path) -> None:
    spy = Fails(plus_sum(tmp_path))
    known = Known("cpu", 4, (CostPoint(((4,),), 1, 160),), providers=spy.opened.providers)
    assert warm_again(spy, Warmup(), 4, known, pads=PADS) == Warmed(4, (), known.costs)
    assert spy.shapes == [(1, 4), (4, 4), (1, 8), (4, 8)]


def test_shapes_of_the_buckets() -> None:
    inputs = (X, TensorSpec("i", "FP32", (-1, 3, -1, -1)))
    pads = {"b": Pad((2, 5), {"i": 2}), **PADS}
    found = bucket_shapes(inputs, {"i": [1, 3, 9, 7]}, pads)
    assert found == [
        {"x": (1, 4), "i": (1, 3, 2, 7)},
        {"x": (1, 8), "i": (1, 3, 2, 7)},
        {"x": (1, 4), "i": (1, 3, 5, 7)},
        {"x": (1, 8), "i": (1, 3, 5, 7)},
    ]
    assert smallest(inputs, Warmup(), {}) == Warmup()
    assert smallest(inputs, Warmup(shapes={"i": [1, 3, 9, 7]}), pads).shapes == {"x": [1, 4], "i": [1, 3, 2, 7]}
    assert warmup.bucket_shapes(inputs, {"i": [1, 3, 9, 7]}, {}) == [{"i": [1, 3, 9, 7]}]
