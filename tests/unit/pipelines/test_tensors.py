import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline_helpers import Canned, ask, model_spec

from appliance.errors import ApplianceError, InvalidInput, InvalidOutput
from appliance.models.spec import TensorSpec
from appliance.pipelines.base import Item, PipelineContext
from appliance.pipelines.build import build
from appliance.pipelines.tensors import read

SPEC = model_spec(
    [TensorSpec("x", "FP32", (-1, 2)), TensorSpec("n", "INT64", (1,), optional=True)],
    [TensorSpec("y", "FP32", (-1,)), TensorSpec("t", "BYTES", (-1,)), TensorSpec("b", "BF16", (-1,))],
)


def run(item: Item, outputs=None, spec=SPEC):
    call = Canned(outputs or {})
    answer = ask(build(PipelineContext("m", {}, spec)), item, call)
    return answer.result["outputs"], call.inputs


def test_there_and_back() -> None:
    text = np.array(["käse".encode(), b"b"], dtype=object)
    outputs = {"y": np.array([[0.5, 2]], np.float32), "t": text, "b": np.array([0x3F80, 0xC020], np.uint16)}
    result, inputs = run(Item("inputs", inputs={"x": [[1, 2.5], [3, 4]], "n": [7]}), outputs)
    assert result == {
        "y": {"datatype": "FP32", "shape": [1, 2], "data": [0.5, 2.0]},
        "t": {"datatype": "BYTES", "shape": [2], "data": ["käse", "b"]},
        "b": {"datatype": "BF16", "shape": [2], "data": [1.0, -2.5]},
    }
    assert inputs["x"].dtype == np.float32
    assert inputs["x"].tolist() == [[1, 2.5], [3, 4]]
    assert inputs["n"].dtype == np.int64


@pytest.mark.parametrize(
    ("inputs", "field", "words"),
    [
        ({"z": [1]}, "z", "'x' FP32"),
        ({"n": [1]}, "x", "missing"),
        ({"x": [[1, 2], [3]]}, "x", "same length"),
        ({"x": [1, 2]}, "x", r"FP32\[-1,2\], got shape \[2\]"),
        ({"x": [[1, 2, 3]]}, "x", r"\[1, 3\]"),
        ({"x": [["a", "b"]]}, "x", "numbers"),
        ({"x": [[1, None]]}, "x", "numbers"),
        ({"x": [[1, {"a": 1}]]}, "x", "numbers"),
        ({"x": [[True, False]]}, "x", "numbers"),
        ({"x": [[1, 1e300]]}, "x", "too large"),
        ({"x": [[1, 10**400]]}, "x", "numbers"),
        ({"x": [[1, 2]], "n": [1.5]}, "n", "whole"),
        ({"x": [[1, 2]], "n": [2**63, 1]}, "n", "whole|outside"),
        ({"x": [[1, 2]], "n": [2**63]}, "n", "outside"),
        ({"x": [[1, 2]], "n": [2**70]}, "n", "whole"),
        ({"x": [[1, 2]], "n": [1, 2]}, "n", r"\[2\]"),
    ],
)
def test_what_does_not_fit_names_the_input(inputs: dict, field: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        run(Item("inputs", inputs=inputs))
    assert caught.value.param == field


def tensor(datatype: str, shape: tuple[int, ...], value: object) -> np.ndarray:
    return read(TensorSpec("x", datatype, shape), value)


def test_every_kind_of_number() -> None:
    assert tensor("UINT8", (2,), [0, 255]).tolist() == [0, 255]
    assert tensor("INT8", (1,), [-128]).dtype == np.int8
    assert tensor("UINT64", (1,), [2**64 - 1]).tolist() == [2**64 - 1]
    assert tensor("UINT64", (2,), [2**63, 1]).tolist() == [2**63, 1]
    assert tensor("BOOL", (2,), [True, False]).tolist() == [True, False]
    assert tensor("FP16", (1,), [0.5]).dtype == np.float16
    assert tensor("FP64", (), 3).shape == ()
    assert tensor("INT32", (-1,), []).shape == (0,)
    # 1 + 2**-8 lies between 1 and 1 + 2**-7: to even; 1 + 3 * 2**-8 too: to 1 + 2**-6.
    assert tensor("BF16", (4,), [1, -2.5, 1 + 2**-8, 1 + 3 * 2**-8]).tolist() == [0x3F80, 0xC020, 0x3F80, 0x3F82]
    for datatype, value in (("UINT8", [256]), ("UINT8", [-1]), ("FP16", [1e5]), ("BOOL", [1]), ("BF16", [1e39])):
        with pytest.raises(InvalidInput):
            tensor(datatype, (1,), value)


def test_text_elements() -> None:
    assert tensor("BYTES", (-1, 2), [["a", "ä"], ["", "d"]]).tolist() == [[b"a", "ä".encode()], [b"", b"d"]]
    for value in ([["a", 1]], [["a"], ["b", "c"]], ["a"], [[["a"]]], "a", [1]):
        with pytest.raises(InvalidInput, match="'x'"):
            tensor("BYTES", (-1, 2), value)


nested = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=12,
)


@given(nested, st.sampled_from(["FP32", "FP16", "INT8", "UINT64", "BOOL", "BYTES", "BF16"]))
def test_any_json_is_an_array_or_a_named_error(value: object, datatype: str) -> None:
    try:
        array = tensor(datatype, (-1, -1), value)
        assert array.ndim == 2
    except ApplianceError as error:
        assert isinstance(error, InvalidInput)
        assert error.param == "x"


def test_text_for_a_model_that_takes_one() -> None:
    spec = model_spec([TensorSpec("prompt", "BYTES", (-1, 1))], [])
    _, inputs = run(Item("text", text="grüß"), spec=spec)
    assert inputs["prompt"].tolist() == [["grüß".encode()]]
    with pytest.raises(InvalidInput, match="'x' FP32"):
        run(Item("text", text="hello"))


def test_a_file_is_refused_with_what_is_wanted() -> None:
    with pytest.raises(InvalidInput, match="'x' FP32"):
        run(Item("file", file=b"abc"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("y", np.array([np.inf], np.float32)),
        ("b", np.array([0x7FC0], np.uint16)),
        ("t", np.array([b"\xff"], dtype=object)),
    ],
)
def test_what_json_cannot_say_is_an_error(name: str, value: np.ndarray) -> None:
    with pytest.raises(InvalidOutput, match=f"'{name}'"):
        run(Item("inputs", inputs={"x": [[1, 2]]}), {name: value})
