import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.pipelines.nms import iou_with, suppress


def naive_iou(a: list[float], b: list[float]) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    shared = max(0.0, wide) * max(0.0, high)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


def naive(boxes: list[list[float]], scores: list[float], classes: list[int], iou: float, limit: int) -> list[int]:
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        if all(classes[i] != classes[k] or naive_iou(boxes[i], boxes[k]) <= iou for k in kept):
            kept.append(i)
    return kept[:limit]


def test_iou_by_hand() -> None:
    box = np.array([0.0, 0, 10, 10])
    others = np.array([[0.0, 0, 10, 10], [5, 0, 15, 10], [10, 10, 20, 20], [3, 3, 3, 3]])
    assert iou_with(box, others) == pytest.approx([1, 1 / 3, 0, 0])
    assert iou_with(np.zeros(4), np.zeros((1, 4))).tolist() == [0]


corner = st.integers(0, 12)
piece = st.tuples(corner, corner, st.integers(0, 8), st.integers(0, 8), st.integers(0, 5), st.integers(0, 2))


@settings(max_examples=300, deadline=None)
@given(st.lists(piece, max_size=25), st.sampled_from([0.0, 0.3, 0.45, 0.5, 0.9]), st.integers(1, 30))
def test_suppression_is_what_the_plain_loop_gives(pieces: list[tuple[int, ...]], iou: float, limit: int) -> None:
    boxes = [[float(x), float(y), float(x + w), float(y + h)] for x, y, w, h, _, _ in pieces]
    scores = [p[4] / 5 for p in pieces]
    classes = [p[5] for p in pieces]
    got = suppress(
        np.array(boxes, np.float32).reshape(-1, 4), np.array(scores), np.array(classes, np.int64), iou, limit
    )
    assert got.tolist() == naive(boxes, scores, classes, iou, limit)


def test_an_iou_of_one_keeps_all_in_order() -> None:
    boxes = np.array([[0.0, 0, 1, 1]] * 3)
    assert suppress(boxes, np.array([0.1, 0.9, 0.5]), np.zeros(3, int), 1.0, 2).tolist() == [1, 2]
