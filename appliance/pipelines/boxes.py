"""What the families of detectors give out, turned into one thing: candidates in the model's pixels.

==============  =============================================================================================
boxes-scores    boxes [B,N,4] (x1,y1,x2,y2 as shares of the picture, 0–1), scores [B,N,C] (0–1)
yolov5          [B,N,5+C]: centre x, centre y, width, height in model pixels, objectness, class scores (0–1)
yolov8          [B,4+C,N]: centre x, centre y, width, height in model pixels, class scores (also YOLO11)
yolov10         [B,N,6]: x1,y1,x2,y2 in model pixels, score, class; N ≤ 1000, suppression done (also YOLO26)
yolox           [B,N,5+C], raw: x = (tx + column) * stride, w = exp(tw) * stride, for strides 8, 16, 32 in order
detr            logits [B,Q,C+1] (softmax, the last class is "nothing"), boxes [B,Q,4] centre/size, 0–1
rtdetr          logits [B,Q,C] (sigmoid), boxes as detr
==============  =============================================================================================
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, get_args

import numpy as np

from appliance.errors import InvalidOutput, ModelLoadError
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Array
from appliance.pipelines.outputs import finite, sigmoid, softmax

Format = Literal["boxes-scores", "yolov5", "yolov8", "yolov10", "yolox", "detr", "rtdetr"]
FORMATS: tuple[Format, ...] = get_args(Format)
TWO_OUTPUTS: tuple[Format, ...] = ("boxes-scores", "detr", "rtdetr")
_END_TO_END = 1000
_STRIDES = (8, 16, 32)


class Candidates(NamedTuple):
    """``boxes`` float [K,4] (x1,y1,x2,y2, model pixels), ``scores`` float [K], ``classes`` int [K]."""

    boxes: Array
    scores: Array
    classes: Array


class Layout(NamedTuple):
    """``names``: the outputs to read, boxes first (or the only one). ``classes``: their number, or -1."""

    format: Format
    names: tuple[str, ...]
    classes: int


def recognise(spec: ModelSpec, wanted: Format | None, labels: int) -> Layout:
    """Which format the outputs are in, by ``wanted`` or their shapes; ``labels``: how many, 0 if not known.

    Shapes cannot tell yolov5 from yolox: taken as yolov5. Nor detr from rtdetr: decided by the number of labels,
    else detr. ModelLoadError, listing the formats, if they fit none.
    """
    shapes = {t.name: t.shape for t in spec.outputs if len(t.shape) == 3 and t.datatype in ("FP32", "FP16")}
    pair = _pair(shapes)
    if wanted in TWO_OUTPUTS or (wanted is None and pair is not None):
        if pair is None:
            raise _unknown(spec, wanted)
        classes = shapes[pair[1]][2]
        found: Format = wanted or _kind_of_pair(pair[1], classes, labels)
        return Layout(found, pair, classes - 1 if found == "detr" and classes > 0 else classes)
    # A further map beside the boxes means mask coefficients among the columns, which would pass for classes.
    masks = any(len(t.shape) == 4 for t in spec.outputs)
    if not shapes or (wanted is None and (len(shapes) > 1 or masks)):
        raise _unknown(spec, wanted)
    name, (_, rows, columns) = next(iter(shapes.items()))
    found = wanted or _kind_of_one(spec, rows, columns, labels)
    if found == "yolov10":
        return Layout(found, (name,), -1)
    size, before = (rows, 4) if found == "yolov8" else (columns, 5)
    if 0 < size <= before:
        raise _unknown(spec, wanted)
    return Layout(found, (name,), size - before if size > 0 else -1)


def _pair(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, str] | None:
    """(boxes, scores) among two or more outputs. With four classes the names must tell."""
    boxes = [n for n, shape in shapes.items() if shape[2] == 4]
    named = [n for n in boxes if "box" in n.lower()]
    for name in named or boxes[:1]:
        rest = [n for n, shape in shapes.items() if n != name and shape[1] == shapes[name][1]]
        if rest:
            return name, rest[0]
    return None


def _kind_of_pair(scores: str, classes: int, labels: int) -> Format:
    if "logit" not in scores.lower():
        return "boxes-scores"
    return "rtdetr" if labels and labels == classes else "detr"


def _kind_of_one(spec: ModelSpec, rows: int, columns: int, labels: int) -> Format:
    if columns == 6 and 0 < rows <= _END_TO_END:
        return "yolov10"
    if rows > 4 and (columns == -1 or columns > rows) and (not labels or rows == 4 + labels):
        return "yolov8"
    if columns > 5 and (rows == -1 or rows > columns) and (not labels or columns == 5 + labels):
        return "yolov5"
    raise _unknown(spec, None)


def _unknown(spec: ModelSpec, wanted: Format | None) -> ModelLoadError:
    have = ", ".join(f"{t.name} {t.describe()}" for t in spec.outputs)
    what = f"do not fit format '{wanted}'" if wanted else "are in no format that can be told by the shapes"
    return ModelLoadError(
        f"model '{spec.name}': its outputs ({have}) {what}; [pipeline] format can be one of {', '.join(FORMATS)}"
    )


def read(layout: Layout, outputs: Mapping[str, Array], size: tuple[int, int], threshold: float) -> Candidates:
    """The candidates scoring ``threshold`` or more of one picture; ``size``: the model's (width, height).

    InvalidOutput if a value is not finite or the shapes are not the format's.
    """
    arrays = [finite(outputs[name], name) for name in layout.names]
    if any(a.ndim != 3 or a.shape[0] != 1 for a in arrays):
        raise InvalidOutput(f"the model's outputs {[list(a.shape) for a in arrays]} are not one picture's detections")
    return _READERS[layout.format]([a[0] for a in arrays], size, threshold)


def _boxes_scores(arrays: list[Array], size: tuple[int, int], threshold: float) -> Candidates:
    boxes, scores = arrays
    # Independent scores: one box may be a candidate of several classes.
    rows, classes = np.nonzero(scores >= threshold)
    return Candidates(boxes[rows] * _twice(size), scores[rows, classes], classes)


def _yolov5(arrays: list[Array], size: tuple[int, int], threshold: float) -> Candidates:
    (rows,) = arrays
    rows = rows[rows[:, 4] >= threshold]  # the product below cannot be more than the objectness
    best, scores, keep = _best(rows[:, 5:] * rows[:, 4:5], threshold)
    return Candidates(_corners(rows[keep, :4]), scores, best)


def _yolov8(arrays: list[Array], size: tuple[int, int], threshold: float) -> Candidates:
    (columns,) = arrays
    scores = columns[4:].max(axis=0)
    keep = np.nonzero(scores >= threshold)[0]
    return Candidates(_corners(columns[:4, keep].T), scores[keep], columns[4:, keep].argmax(axis=0))


def _yolov10(arrays: list[Array], size: tuple[int, int], threshold: float) -> Candidates:
    rows = arrays[0][arrays[0][:, 4] >= threshold]
    return Candidates(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64))


def _yolox(arrays: list[Array], size: tuple[int, int], threshold: float) -> Candidates:
    (rows,) = arrays
    cells = _cells(size)
    if len(cells) != len(rows):
        raise InvalidOutput(f"yolox at {size[0]}×{size[1]} gives {len(cells)} boxes, the model gave {len(rows)}")
    best, scores, keep = _best(rows[:, 5:] * rows[:, 4:5], threshold)
    stride = cells[keep, 2:]
    centre = (rows[keep, :2] + cells[keep, :2]) * stride
    with np.errstate(over="ignore"):
        extent = np.exp(rows[keep, 2:4]) * stride
    return Candidates(_corners(finite(np.concatenate([centre, extent], axis=1), "boxes")), scores, best)


def _detr(arrays: list[Array], size: tuple[int, int], threshold: float) -> Candidates:
    boxes, logits = arrays
    best, scores, keep = _best(softmax(logits)[:, :-1], threshold)
    return Candidates(_corners(boxes[keep]) * _twice(size), scores, best)


def _rtdetr(arrays: list[Array], size: tuple[int, int], threshold: float) -> Candidates:
    boxes, logits = arrays
    best, scores, keep = _best(sigmoid(logits), threshold)
    return Candidates(_corners(boxes[keep]) * _twice(size), scores, best)


_READERS: dict[Format, Callable[[list[Array], tuple[int, int], float], Candidates]] = {
    "boxes-scores": _boxes_scores,
    "yolov5": _yolov5,
    "yolov8": _yolov8,
    "yolov10": _yolov10,
    "yolox": _yolox,
    "detr": _detr,
    "rtdetr": _rtdetr,
}


def _best(scores: Array, threshold: float) -> tuple[Array, Array, Array]:
    """Of scores [N,C]: class and score of each row's best that is good enough, and those rows' numbers."""
    top = scores.max(axis=1)
    keep = np.nonzero(top >= threshold)[0]
    return scores[keep].argmax(axis=1), top[keep], keep


def _corners(boxes: Array) -> Array:
    """[N,4] centre x, centre y, width, height → x1, y1, x2, y2."""
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def _twice(size: tuple[int, int]) -> Array:
    return np.array(size * 2, np.float32)


def _cells(size: tuple[int, int]) -> Array:
    """float32 [N,3]: column, row, stride of yolox's cells: row by row, the finest stride first."""
    parts = []
    for stride in _STRIDES:
        rows, columns = np.mgrid[: size[1] // stride, : size[0] // stride]
        parts.append(np.stack([columns.ravel(), rows.ravel(), np.full(rows.size, stride)], axis=1))
    return np.concatenate(parts).astype(np.float32)
