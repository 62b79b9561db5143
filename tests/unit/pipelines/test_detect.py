"""The detectors' formats, with outputs made by hand; every picture is 200×100, every model 64×64 if not said."""

import io

import numpy as np
import pytest
from PIL import Image
from pipeline_helpers import Canned, ask, ask_embedded, model_spec

from appliance.errors import InvalidInput, InvalidOutput, ModelLoadError
from appliance.models.spec import TensorSpec
from appliance.pipelines.base import Item, PipelineContext
from appliance.pipelines.boxes import FORMATS, recognise
from appliance.pipelines.build import build


def photo(width: int = 200, height: int = 100) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (255, 128, 0)).save(out, "PNG")
    return out.getvalue()


def detector(outputs: dict[str, tuple[int, ...]], labels: tuple[str, ...] = (), size: int = 64, **options):
    spec = model_spec(
        [TensorSpec("images", "FP32", (-1, 3, size, size))],
        [TensorSpec(n, "FP32", shape) for n, shape in outputs.items()],
    )
    return build(PipelineContext("m", {"task": "detect", **options}, spec, labels))


def found(pipeline, outputs: dict[str, np.ndarray], **parameters) -> list[tuple[str, float, list[float]]]:
    call = Canned({n: np.asarray(a, np.float32) for n, a in outputs.items()})
    result = ask(pipeline, Item("file", file=photo(), parameters=parameters), call).result
    assert (result["width"], result["height"]) == (200, 100)
    return [(d["label"], round(d["score"], 3), d["box"]) for d in result["detections"]]


def test_boxes_scores() -> None:
    boxes = [[[0.1, 0.2, 0.5, 0.6], [0.11, 0.2, 0.5, 0.6], [0, 0, 1, 1]]]
    scores = [[[0.9, 0.1], [0.8, 0.7], [0.2, 0.1]]]
    pipeline = detector({"boxes": (-1, 3, 4), "scores": (-1, 3, 2)}, ("cat", "dog"))
    assert found(pipeline, {"boxes": boxes, "scores": scores}) == [
        ("cat", 0.9, [20, 20, 100, 60]),  # the second cat is covered by the first; the dog is no cat
        ("dog", 0.7, [22, 20, 100, 60]),
    ]


def letterboxed(x1: float, y1: float, x2: float, y2: float) -> list[float]:
    """200×100 in 64×64: ratio 0.32, 16 rows of padding above. Original pixels → model pixels."""
    return [x1 * 0.32, y1 * 0.32 + 16, x2 * 0.32, y2 * 0.32 + 16]


def centred(x1: float, y1: float, x2: float, y2: float) -> list[float]:
    return [(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1]


BOX = [50.0, 25.0, 150.0, 75.0]


def test_yolov5() -> None:
    rows = np.zeros((1, 252, 7))
    rows[0, 10] = [*centred(*letterboxed(*BOX)), 0.8, 0.1, 0.9]
    rows[0, 11] = [*centred(*letterboxed(*BOX)), 0.9, 0.3, 0.2]  # 0.27: under the threshold
    pipeline = detector({"output0": (1, 252, 7)}, ("cat", "dog"))
    assert found(pipeline, {"output0": rows}) == [("dog", 0.72, BOX)]


def test_yolov8() -> None:
    columns = np.zeros((1, 6, 84))
    columns[0, :, 3] = [*centred(*letterboxed(*BOX)), 0.2, 0.75]
    columns[0, :, 4] = [*centred(*letterboxed(52, 25, 150, 75)), 0.1, 0.7]  # covered
    columns[0, :, 5] = [*centred(*letterboxed(0, 0, 20, 10)), 0.5, 0.1]
    pipeline = detector({"output0": (1, 6, 84)}, ("cat", "dog"))
    assert found(pipeline, {"output0": columns}) == [("dog", 0.75, BOX), ("cat", 0.5, [0, 0, 20, 10])]


def test_yolov8_in_a_picture_of_unknown_size_and_without_labels() -> None:
    columns = np.zeros((1, 6, 84))
    columns[0, :, 3] = [*centred(*letterboxed(*BOX)), 0.2, 0.75]
    assert found(detector({"o": (-1, 6, -1)}), {"o": columns}) == [("1", 0.75, BOX)]


def test_yolov10() -> None:
    rows = np.zeros((1, 300, 6))
    rows[0, 0] = [*letterboxed(*BOX), 0.9, 1]
    rows[0, 1] = [*letterboxed(*BOX), 0.8, 1]  # its authors suppress nothing
    pipeline = detector({"output0": (1, 300, 6)}, ("cat", "dog"))
    assert found(pipeline, {"output0": rows}) == [("dog", 0.9, BOX), ("dog", 0.8, BOX)]
    rows[0, 1, 5] = 2
    with pytest.raises(InvalidOutput, match="class 2"):
        found(pipeline, {"output0": rows})


def test_yolox() -> None:
    # 64×64: 8×8 cells of 8 pixels, 4×4 of 16, 2×2 of 32.
    rows = np.zeros((1, 84, 7))
    # Cell (column 3, row 2) of stride 8: centre (3.5*8, 2.25*8) = (28, 18), size (8e, 8).
    rows[0, 2 * 8 + 3] = [0.5, 0.25, 1.0, 0.0, 0.9, 1.0, 0.0]
    # Cell (1, 0) of stride 32: centre (1.25*32, 0.5*32) = (40, 16), size (32, 32).
    rows[0, 64 + 16 + 1] = [0.25, 0.5, 0.0, 0.0, 0.8, 0.0, 1.0]
    pipeline = detector({"output": (1, 84, 7)}, ("cat", "dog"), format="yolox")
    wide = 8 * np.e / 2
    expected = [(28 - wide) / 0.32, 14 / 0.32, (28 + wide) / 0.32, 22 / 0.32]
    (first, second) = found(pipeline, {"output": rows})
    assert first[:2] == ("cat", 0.9)
    assert first[2] == pytest.approx(expected, abs=0.01)
    assert second == ("dog", 0.8, [75, 0, 175, 100])


def test_yolox_is_fed_as_its_authors_do() -> None:
    call = Canned({"output": np.zeros((1, 84, 7), np.float32)})
    ask(detector({"output": (1, 84, 7)}, format="yolox"), Item("file", file=photo()), call)
    x = call.inputs["images"][0]
    assert x[:, 0, 0].tolist() == [0, 128, 255]
    assert x[:, 40, 0].tolist() == [114] * 3


def test_yolox_of_another_size_is_an_error() -> None:
    with pytest.raises(InvalidOutput, match="84"):
        found(detector({"o": (1, 85, 7)}, format="yolox"), {"o": np.zeros((1, 85, 7))})


def test_detr() -> None:
    logits = np.full((1, 100, 3), -9.0)
    logits[0, :, 2] = 9
    logits[0, 7] = [np.log(6), np.log(3), np.log(1)]  # 0.6, 0.3 and 0.1 for nothing
    boxes = np.zeros((1, 100, 4))
    boxes[0, 7] = [0.5, 0.5, 0.5, 0.5]
    outputs = {"logits": (-1, 100, 3), "pred_boxes": (-1, 100, 4)}
    for labels in (("cat", "dog"), ("cat", "dog", "nothing")):
        pipeline = detector(outputs, labels, **({"format": "detr"} if len(labels) == 3 else {}))
        assert found(pipeline, {"logits": logits, "pred_boxes": boxes}) == [("cat", 0.6, BOX)]


def test_rtdetr() -> None:
    logits = np.full((1, 100, 2), -9.0)
    logits[0, 7] = [np.log(0.3 / 0.7), np.log(0.8 / 0.2)]
    boxes = np.zeros((1, 100, 4))
    boxes[0, 7] = [0.5, 0.5, 0.5, 0.5]
    pipeline = detector({"logits": (-1, 100, 2), "pred_boxes": (-1, 100, 4)}, ("cat", "dog"))
    assert found(pipeline, {"logits": logits, "pred_boxes": boxes}) == [("dog", 0.8, BOX)]


@pytest.mark.parametrize(
    ("outputs", "labels", "expected"),
    [
        ({"boxes": (-1, 1917, 4), "scores": (-1, 1917, 23)}, 23, "boxes-scores"),
        ({"scores": (-1, 8, 4), "boxes": (-1, 8, 4)}, 0, "boxes-scores"),
        ({"a": (1, 25200, 85)}, 80, "yolov5"),
        ({"a": (1, 8400, 85)}, 80, "yolov5"),  # could be yolox
        ({"a": (1, 25200, 6)}, 1, "yolov5"),
        ({"a": (-1, -1, 85)}, 0, "yolov5"),
        ({"a": (1, 84, 8400)}, 80, "yolov8"),
        ({"a": (-1, 84, -1)}, 0, "yolov8"),
        ({"a": (1, 5, 8400)}, 1, "yolov8"),
        ({"a": (1, 300, 6)}, 80, "yolov10"),
        ({"logits": (1, 100, 92), "pred_boxes": (1, 100, 4)}, 91, "detr"),
        ({"logits": (1, 100, 92), "pred_boxes": (1, 100, 4)}, 0, "detr"),
        ({"logits": (1, 300, 80), "pred_boxes": (1, 300, 4)}, 80, "rtdetr"),
    ],
)
def test_formats_are_recognised(outputs: dict[str, tuple[int, ...]], labels: int, expected: str) -> None:
    spec = model_spec([], [TensorSpec(n, "FP32", s) for n, s in outputs.items()])
    assert recognise(spec, None, labels).format == expected


@pytest.mark.parametrize(
    "outputs",
    [
        {"a": (1, 1000)},
        {"a": (-1, -1, -1)},
        {"a": (1, 84, 8400), "protos": (1, 32, 160, 160)},
        {"a": (1, 10, 10), "b": (1, 20, 20)},
        {},
    ],
)
def test_what_is_not_recognised_lists_the_formats(outputs: dict[str, tuple[int, ...]]) -> None:
    spec = model_spec([], [TensorSpec(n, "FP32", s) for n, s in outputs.items()])
    with pytest.raises(ModelLoadError) as caught:
        recognise(spec, None, 0)
    assert all(name in caught.value.message for name in FORMATS)


def test_a_format_that_does_not_fit() -> None:
    with pytest.raises(ModelLoadError, match="boxes-scores"):
        detector({"a": (1, 84, 8400)}, format="boxes-scores")
    with pytest.raises(ModelLoadError, match="labels"):
        detector({"a": (1, 84, 8400)}, ("cat", "dog"), format="yolov8")


def two_cats() -> tuple[object, dict[str, list]]:
    boxes = [[[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.4], [0.5, 0.5, 1, 1]]]
    scores = [[[0.9], [0.6], [0.3]]]
    return detector({"boxes": (-1, 3, 4), "scores": (-1, 3, 1)}, ("cat",)), {"boxes": boxes, "scores": scores}


def test_request_parameters() -> None:
    pipeline, outputs = two_cats()
    assert len(found(pipeline, outputs)) == 1
    assert len(found(pipeline, outputs, threshold="0.2")) == 2
    assert len(found(pipeline, outputs, threshold=0.2, iou=0.9)) == 3
    assert len(found(pipeline, outputs, threshold=0.2, iou=0.9, max_detections="2")) == 2
    assert found(pipeline, outputs, threshold=0.95) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("threshold", "high"), ("threshold", 1.5), ("threshold", "nan"), ("iou", -1), ("max_detections", 0)],
)
def test_bad_request_parameters_are_named(name: str, value: object) -> None:
    pipeline, outputs = two_cats()
    with pytest.raises(InvalidInput, match=name) as caught:
        found(pipeline, outputs, **{name: value})
    assert caught.value.param == name


def test_unknown_request_parameters_are_named() -> None:
    pipeline, outputs = two_cats()
    with pytest.raises(InvalidInput, match=r"treshold.*threshold, iou, max_detections") as caught:
        found(pipeline, outputs, treshold=0.5)
    assert caught.value.param == "treshold"


def test_not_finite() -> None:
    pipeline, outputs = two_cats()
    outputs["scores"] = [[[np.nan], [0.6], [0.3]]]
    with pytest.raises(InvalidOutput, match="scores"):
        found(pipeline, outputs)


def test_a_threshold_of_zero_is_bounded_work() -> None:
    rng = np.random.default_rng(0)
    columns = np.concatenate([rng.uniform(0, 64, (1, 4, 8400)), rng.uniform(0, 1, (1, 80, 8400))], axis=1)
    pipeline = detector({"a": (1, 84, 8400)})
    assert len(found(pipeline, {"a": columns}, threshold=0, iou=1, max_detections=10_000)) == 8400
    assert len(found(pipeline, {"a": columns}, threshold=0)) == 100


@pytest.mark.parametrize(
    ("name", "label", "score", "inside", "outside"),
    [
        ("chelsea.png", "Cat", 0.85, (40, 20, 400, 280), (0, 0, 451, 300)),
        ("coffee.png", "Coffee cup", 0.55, (200, 60, 400, 300), (150, 0, 460, 360)),
        ("astronaut.png", "Person", 0.59, (60, 30, 330, 480), (0, 0, 420, 512)),
    ],
)
def test_embedded(name: str, label: str, score: float, inside: tuple, outside: tuple) -> None:
    result = ask_embedded("detect", name).result
    (best, *_) = result["detections"]
    assert best["label"] == label
    assert best["score"] == pytest.approx(score, abs=0.01)
    x1, y1, x2, y2 = best["box"]
    assert outside[0] <= x1 <= inside[0]
    assert outside[1] <= y1 <= inside[1]
    assert inside[2] <= x2 <= outside[2]
    assert inside[3] <= y2 <= outside[3]
