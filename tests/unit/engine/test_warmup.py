"""The proof of the batch axis, with real small models in ONNX Runtime."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from appliance.backends.base import LoadRequest, Session
from appliance.backends.onnx import OnnxBackend
from appliance.engine import warmup
from appliance.engine.warmup import Warmed, sample, shape_for, warm_up
from appliance.errors import InsufficientMemory, ModelLoadError
from appliance.models.spec import ModelConfig, TensorSpec, Warmup
from appliance.models.tensors import DATATYPES, Array
from tests.support import nets

F32, I64 = T.FLOAT, T.INT64


def opened(path: Path) -> Session:
    return OnnxBackend().open(LoadRequest("m", path, path.parent, "cpu", 1, ModelConfig()))


def net(folder: Path, nodes: list[Any], inputs: Any = None, outputs: Any = None, weights: Any = None) -> Session:
    inputs = inputs or [("x", F32, ["N", 4])]
    outputs = outputs or [("y", F32, ["N", 4])]
    return opened(nets.save(folder / "model.onnx", nodes, inputs, outputs, weights))


def proof(session: Session, candidate: int = 8, declared: bool = False, **config: Any) -> Warmed:
    """Without the costs and the times, which have tests of their own."""
    return msgspec.structs.replace(warm_up(session, Warmup(**config), candidate, declared), costs=(), good_batch=0)


class Spy:
    """A session whose batches can be made to fail; ``shapes``: what it was run with."""

    def __init__(self, session: Session, fails_from: int = 10**9) -> None:
        self.session = session
        self.opened = session.opened
        self.fails_from = fails_from
        self.shapes: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def run(self, inputs: Any, outputs: Any, handle: Any) -> list[Array]:
        first = next(iter(inputs.values()))
        self.shapes.append(first.shape)
        if first.shape[0] >= self.fails_from:
            raise InsufficientMemory("too much")
        return self.session.run(inputs, outputs, handle)


def test_a_true_batch_axis_is_proven_and_the_largest_batch_is_warm(tmp_path: Path) -> None:
    spy = Spy(opened(nets.mlp(tmp_path / "m.onnx")))
    assert proof(spy) == Warmed(8, ())
    assert (1, 784) in spy.shapes and (2, 784) in spy.shapes and spy.shapes[-1] == (8, 784)


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    session = net(
        tmp_path,
        [h.make_node("Add", ["a", "b"], ["s"]), h.make_node("ReduceMax", ["s"], ["m"], axes=[1], keepdims=0)],
        [("a", F32, ["N", 3]), ("b", F32, ["N", 3])],
        [("s", F32, ["N", 3]), ("m", F32, ["N"])],
    )
    assert proof(session).max_batch == 8


@pytest.mark.parametrize(
    "nodes",
    [
        [h.make_node("Softmax", ["x"], ["y"], axis=0)],
        [h.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1), h.make_node("Sub", ["x", "m"], ["y"])],
        [h.make_node("CumSum", ["x", "zero"], ["y"])],
        [h.make_node("LpNormalization", ["x"], ["y"], axis=0)],
    ],
    ids=["softmax", "mean", "running sum", "norm"],
)
def test_items_that_change_with_their_neighbours_are_never_merged(tmp_path: Path, nodes: list[Any]) -> None:
    warmed = proof(net(tmp_path, nodes, weights={"zero": np.int64(0)}))
    assert warmed == Warmed(0, ("requests are never merged: output 'y' of an item changes with its neighbours",))


def test_an_operator_s_word_does_not_replace_the_proof(tmp_path: Path) -> None:
    session = net(tmp_path, [h.make_node("Softmax", ["x"], ["y"], axis=0)])
    assert proof(session, declared=True).max_batch == 0


def test_an_output_that_loses_the_axis(tmp_path: Path) -> None:
    session = net(tmp_path, [h.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], outputs=[("y", F32, [])])
    assert proof(session).notes == (
        "requests are never merged: output 'y' loses the first axis ([] alone, [] for two)",
    )


def test_an_output_that_keeps_one_row_for_all(tmp_path: Path) -> None:
    session = net(tmp_path, [h.make_node("ReduceMax", ["x"], ["y"], axes=[0], keepdims=1)])
    assert "([1, 4] alone, [1, 4] for two)" in proof(session).notes[0]


def test_a_random_model_is_never_merged(tmp_path: Path) -> None:
    nodes = [h.make_node("RandomUniformLike", ["x"], ["r"]), h.make_node("Add", ["x", "r"], ["y"])]
    assert proof(net(tmp_path, nodes)).max_batch == 0


def test_a_batch_of_two_that_fails(tmp_path: Path) -> None:
    # Reshape to a fixed [1, 4]: one item passes, two do not.
    session = net(tmp_path, [h.make_node("Reshape", ["x", "s"], ["y"])], weights={"s": np.array([1, 4])})
    warmed = proof(session)
    assert warmed.max_batch == 0
    assert warmed.notes[0].startswith("requests are never merged: a batch of two fails: ")


def test_batches_are_doubled_until_one_is_too_large_for_the_machine(tmp_path: Path) -> None:
    spy = Spy(opened(nets.scale(tmp_path / "m.onnx")), fails_from=5)
    warmed = proof(spy, candidate=16)
    assert warmed == Warmed(4, ("at most 4 requests are merged, a batch of 8 fails: too much",))
    assert [s[0] for s in spy.shapes[3:6]] == [2, 4, 8], "then the good ones are timed"
    assert max(s[0] for s in spy.shapes[6:]) == 4
    assert proof(Spy(spy.session, fails_from=3), candidate=16).max_batch == 2


def test_a_batch_of_more_elements_than_a_warm_up_makes_is_halved_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "MAX_ELEMENTS", 20)
    assert proof(opened(nets.scale(tmp_path / "m.onnx")), candidate=16).max_batch == 4


def test_no_batch_axis_is_only_warmed(tmp_path: Path) -> None:
    spy = Spy(net(tmp_path, [h.make_node("Relu", ["x"], ["y"])], [("x", F32, [3, 4])], [("y", F32, [3, 4])]))
    assert proof(spy, candidate=0) == Warmed(0, ())
    assert spy.shapes == [(3, 4)]
    one = Spy(opened(nets.scale(tmp_path / "scale.onnx")))
    assert proof(one, candidate=1) == Warmed(0, ())
    assert one.shapes == [(1, 4)]


# --- shapes --------------------------------------------------------------------------------------------------


def needs_width(folder: Path, width: int = 5) -> Session:
    """A dynamic axis that must be ``width`` although the file does not say so."""
    return net(
        folder,
        [h.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", F32, ["N", "K"])],
        [("y", F32, ["N", 1])],
        {"w": np.ones((width, 1), np.float32)},
    )


def test_guessed_shapes_that_do_not_suit_leave_the_model_cold_and_unmerged(tmp_path: Path) -> None:
    warmed = proof(needs_width(tmp_path))
    assert warmed.max_batch == 0
    assert warmed.notes[0].startswith("not warmed up, the guessed shapes do not suit it (set warmup.shapes): ")


def test_then_the_operator_s_word_counts(tmp_path: Path) -> None:
    assert proof(needs_width(tmp_path), declared=True).max_batch == 8


def test_configured_shapes_prove_it(tmp_path: Path) -> None:
    spy = Spy(needs_width(tmp_path))
    assert proof(spy, shapes={"x": [1, 5]}) == Warmed(8, ())
    assert spy.shapes[-1] == (8, 5)


def test_configured_shapes_that_fail_are_a_fault_of_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"^the warm-up failed: "):
        proof(needs_width(tmp_path), shapes={"x": [1, 4]})


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": [1, 4]}, "the model has no input 'z'"),
        ({"x": [1]}, r"\[1\] does not fit input 'x' FP32\[-1,4\]"),
        ({"x": [1, 5]}, "does not fit"),
        ({"x": [-1, 4]}, "does not fit"),
        ({"x": [10**11, 4]}, ""),
    ],
)
def test_shapes_that_cannot_be(tmp_path: Path, shapes: dict[str, list[int]], words: str) -> None:
    session = opened(nets.scale(tmp_path / "m.onnx"))
    if words:
        with pytest.raises(ModelLoadError, match=words):
            proof(session, shapes=shapes)
        with pytest.raises(ModelLoadError, match=words):
            proof(session, enabled=False, shapes=shapes)
    else:  # the batch axis is set by the warm-up
        assert proof(session, shapes=shapes).max_batch == 8


def test_too_many_elements(tmp_path: Path) -> None:
    session = net(tmp_path, [h.make_node("Relu", ["x"], ["y"])], [("x", F32, ["N", "M"])], [("y", F32, ["N", "M"])])
    for size in (1 << 27, 2**40, 2**62, 2**63):
        with pytest.raises(ModelLoadError, match="too many elements"):
            proof(session, shapes={"x": [1, size]})


def test_switched_off(tmp_path: Path) -> None:
    spy = Spy(opened(nets.scale(tmp_path / "m.onnx")))
    assert proof(spy, enabled=False) == Warmed(0, ("warm-up is switched off",))
    assert proof(spy, enabled=False, declared=True).max_batch == 8
    assert spy.shapes == []


def test_shape_for() -> None:
    spec = TensorSpec("x", "FP32", (-1, 3, -1))
    assert shape_for(spec, 4, {}, batched=True) == (4, 3, 1)
    assert shape_for(spec, 4, {}, batched=False) == (1, 3, 1)
    assert shape_for(spec, 4, {"x": [9, 3, 7]}, batched=True) == (4, 3, 7)
    assert shape_for(spec, 4, {"x": [9, 3, 7]}, batched=False) == (9, 3, 7)
    assert shape_for(TensorSpec("x", "FP32", ()), 4, {}, batched=True) == ()


@pytest.mark.parametrize("datatype", DATATYPES)
def test_samples_are_tame_and_the_same_for_a_seed(datatype: str) -> None:
    spec = TensorSpec("x", datatype, (2, 3))
    one, again, other = sample(spec, (2, 3), 1), sample(spec, (2, 3), 1), sample(spec, (2, 300), 2)
    assert one.shape == (2, 3)
    assert one.tolist() == again.tolist()
    assert other[:, :3].tolist() != one.tolist()
    if datatype == "BYTES":
        assert all(v.isdigit() for v in one.reshape(-1))
        return
    values = one
    if datatype == "BF16":
        assert one.dtype == np.uint16
        values = (one.astype(np.uint32) << 16).view(np.float32)
    assert float(values.min()) >= 0
    assert float(values.max()) <= 1


def test_integers_and_texts_are_compared_exactly(tmp_path: Path) -> None:
    session = net(
        tmp_path,
        [h.make_node("Add", ["x", "one"], ["y"])],
        [("x", I64, ["N", 2])],
        [("y", I64, ["N", 2])],
        {"one": np.int64(1)},
    )
    assert proof(session).max_batch == 8
    assert warmup.same("INT64", np.array([1]), np.array([1]))
    assert not warmup.same("INT64", np.array([1]), np.array([2]))
    assert not warmup.same("BYTES", np.array([b"a"], object), np.array([b"b"], object))


def test_floats_are_compared_by_what_their_datatype_can_hold() -> None:
    a = np.array([1.0, 100.0, np.nan, np.inf], np.float32)
    assert warmup.same("FP32", a, a * np.float32(1.001))
    assert not warmup.same("FP32", a, np.array([1.0, 101.0, np.nan, np.inf], np.float32))
    assert not warmup.same("FP32", a, np.array([1.0, 100.0, 0.0, np.inf], np.float32))
    assert warmup.same("FP32", np.zeros((0,), np.float32), np.zeros((0,), np.float32))
    one = np.array([0x3F80], np.uint16)  # 1.0 in bfloat16
    assert warmup.same("BF16", one, one + 1)  # the next one: 1.0078
    assert not warmup.same("BF16", one, np.array([0x3FA0], np.uint16))  # 1.25
