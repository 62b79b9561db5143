import io

import numpy as np
import pytest
from PIL import Image
from pipeline_helpers import Canned, ask, ask_embedded, model_spec

from appliance.errors import InvalidInput, InvalidOutput, UnsupportedMedia
from appliance.models.spec import TensorSpec
from appliance.pipelines.base import Item, PipelineContext
from appliance.pipelines.build import build

SPEC = model_spec([TensorSpec("x", "FP32", (-1, 3, 8, 8))], [TensorSpec("y", "FP32", (-1, -1))])


def photo() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (9, 9)).save(out, "PNG")
    return out.getvalue()


def scores(values: list[float], labels: tuple[str, ...] = (), parameters=None, **options) -> list[tuple[str, float]]:
    pipeline = build(PipelineContext("m", {"task": "classify", **options}, SPEC, labels))
    call = Canned({"y": np.array([values], np.float32)})
    result = ask(pipeline, Item("file", file=photo(), parameters=parameters or {}), call).result
    return [(entry["label"], entry["score"]) for entry in result["labels"]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("chelsea.png", [("Egyptian cat", 0.77), ("tiger cat", 0.10)]), ("coffee.png", [("espresso", 0.90)])],
)
def test_embedded(name: str, expected: list[tuple[str, float]]) -> None:
    found = ask_embedded("classify", name).result["labels"]
    assert len(found) == 5
    for entry, (label, score) in zip(found, expected, strict=False):
        assert entry["label"].split(",")[0] == label
        assert entry["score"] == pytest.approx(score, abs=0.02)


def test_softmax_by_hand() -> None:
    assert scores([0, float(np.log(3))]) == [("1", 0.75), ("0", 0.25)]
    assert scores([1000, 1000], ("a", "b")) == [("a", 0.5), ("b", 0.5)]


def test_probabilities_are_left_alone() -> None:
    assert scores([0.25, 0.75]) == [("1", 0.75), ("0", 0.25)]
    assert scores([0.25, 0.75], activation="softmax")[0][1] == pytest.approx(0.6225, abs=1e-4)


def test_other_activations() -> None:
    assert scores([0.0], activation="sigmoid") == [("0", 0.5)]
    assert scores([float(np.log(3))]) == [("0", 0.75)]
    assert scores([3.0, -2.0], activation="none") == [("0", 3.0), ("1", -2.0)]


def test_top_k() -> None:
    assert len(scores(list(range(10)))) == 5
    assert len(scores(list(range(10)), top_k=3)) == 3
    assert len(scores(list(range(10)), parameters={"top_k": "7"})) == 7
    assert len(scores(list(range(10)), parameters={"top_k": 99})) == 10
    with pytest.raises(InvalidInput, match="top_k"):
        scores([0, 1], parameters={"top_k": "0"})


def test_not_finite_and_wrong_count() -> None:
    with pytest.raises(InvalidOutput, match="'y'"):
        scores([0, float("nan")])
    with pytest.raises(InvalidOutput, match="3 classes"):
        scores([0, 1, 2], ("a", "b"))


def test_what_is_no_picture() -> None:
    with pytest.raises(UnsupportedMedia):
        ask_embedded("classify", b"some text")
    pipeline = build(PipelineContext("m", {"task": "classify"}, SPEC))
    with pytest.raises(InvalidInput, match="image file"):
        ask(pipeline, Item("text", text="hello"), Canned({}))
