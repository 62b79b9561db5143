import asyncio
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pipeline_helpers import PHOTOS, Direct, ask_embedded, embedded

from appliance.errors import InvalidInput, InvalidOutput
from appliance.pipelines import text_boxes, text_read
from appliance.pipelines.base import Item
from appliance.pipelines.ocr import detector_size
from appliance.pipelines.text_order import reading_order

# Typed by a person from the photo. The line that the lower edge cuts through is not legible and left out.
PAGE = """\
Region-based segmentation
Let us first determine markers of the coins and the
background. These markers are pixels that we can label
unambiguously as either object or background. Here,
the markers are found at the two extreme parts of the
histogram of grey values:
>>> markers = np.zeros_like(coins)"""


def error_rate(truth: str, read: str) -> float:
    """Levenshtein distance per character of the truth."""
    row = list(range(len(read) + 1))
    for i, a in enumerate(truth, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(read, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1] / len(truth)


def turned(angle: int) -> bytes:
    out = io.BytesIO()
    with Image.open(PHOTOS / "page.png") as page:
        page.rotate(angle, expand=True).save(out, "PNG")
    return out.getvalue()


def test_error_rate_by_hand() -> None:
    assert error_rate("abcd", "abcd") == 0
    assert error_rate("abcd", "abxd") == 0.25
    assert error_rate("abcd", "") == 1


@pytest.mark.parametrize("angle", [0, 90, 180, 270])
def test_the_page_is_read_in_any_position(angle: int) -> None:
    result = ask_embedded("ocr", turned(angle)).result
    rate = error_rate(PAGE, result["text"])
    print(f"character error rate at {angle}°: {rate:.2%}")
    assert rate <= (0.02 if angle == 0 else 0.06)
    # At times a part of the line that the edge cuts through is seen, and read with little certainty.
    assert sum(line["score"] > 0.9 for line in result["lines"]) == 7
    assert len(result["lines"]) <= 8
    size = np.array([result["width"], result["height"]])
    heading = np.array(result["lines"][0]["quad"])
    assert (heading >= 0).all()
    assert (heading <= size).all()
    along = {0: (1, 0), 90: (0, -1), 180: (-1, 0), 270: (0, 1)}[angle]
    direction = (heading[1] - heading[0]) / np.hypot(*(heading[1] - heading[0]))
    assert direction == pytest.approx(along, abs=0.1)
    assert np.hypot(*(heading[1] - heading[0])) == pytest.approx(285, abs=12)  # the heading's width on the page


def test_a_page_without_text() -> None:
    out = io.BytesIO()
    Image.new("RGB", (300, 200), (240, 240, 240)).save(out, "PNG")
    result = ask_embedded("ocr", out.getvalue()).result
    assert result == {"text": "", "lines": [], "width": 300, "height": 200}


def test_a_picture_of_one_pixel() -> None:
    out = io.BytesIO()
    Image.new("RGB", (1, 1)).save(out, "PNG")
    assert ask_embedded("ocr", out.getvalue()).result["text"] == ""


def test_parts_are_called_in_batches_of_few_shapes() -> None:
    call = Direct("ocr")
    asyncio.run(embedded("ocr").run(Item("file", file=(PHOTOS / "page.png").read_bytes()), call, None))
    detect = [shape for name, shape in call.shapes if name == "ocr-detect"]
    assert detect == [(1, 3, 640, 1280)]
    reads = [shape for name, shape in call.shapes if name == "ocr-read"]
    assert sum(shape[0] for shape in reads) == 7
    assert len({shape[3] for shape in reads}) == len(reads)
    assert all(shape[3] % 64 == 0 and shape[0] <= 8 for shape in reads)
    assert all(shape[0] <= 8 for name, shape in call.shapes if name == "ocr-orient")


def test_a_line_reads_the_same_in_any_company() -> None:
    data = (PHOTOS / "page.png").read_bytes()
    results = []
    for batch in (1, 3, 8):
        pipeline = embedded("ocr", batch=batch)
        results.append(asyncio.run(pipeline.run(Item("file", file=data), Direct("ocr"), None)).result)
    for other in results[1:]:
        assert other["text"] == results[0]["text"]
        for a, b in zip(other["lines"], results[0]["lines"], strict=True):
            assert a["score"] == pytest.approx(b["score"], abs=1e-4)


def test_request_parameters() -> None:
    data = (PHOTOS / "page.png").read_bytes()
    assert len(ask_embedded("ocr", data, min_score="0.97").result["lines"]) < 7
    with pytest.raises(InvalidInput, match="min_score"):
        ask_embedded("ocr", data, min_score="2")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((384, 191), (1280, 640)),  # 736 on the short side would be 1480 on the long one
        ((1000, 1000), (992, 992)),
        ((300, 300), (736, 736)),
        ((4000, 3000), (1280, 960)),
        ((10_000, 10), (1280, 32)),
        ((1, 1), (736, 736)),
    ],
)
def test_detector_size(size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert detector_size(size, 736, 1280) == expected


# --- boxes -----------------------------------------------------------------------------------------------------


def naive_regions(bitmap: np.ndarray) -> list[set[tuple[int, int]]]:
    left = {(int(y), int(x)) for y, x in np.argwhere(bitmap)}
    regions = []
    while left:
        todo, region = [left.pop()], set()
        while todo:
            y, x = todo.pop()
            region.add((y, x))
            near = {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            todo += near
        regions.append(region)
    return regions


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.floats(0.1, 0.9), st.integers(0, 10_000))
def test_regions_are_what_a_flood_fill_finds(height: int, width: int, share: float, seed: int) -> None:
    bitmap = np.random.default_rng(seed).random((height, width)) < share
    runs = text_boxes.runs_of(bitmap)
    labels = text_boxes.connect(runs, width)
    found: dict[int, set[tuple[int, int]]] = {}
    for row, start, stop, label in zip(*runs, labels, strict=True):
        found.setdefault(int(label), set()).update((int(row), x) for x in range(start, stop))
    assert sorted(map(sorted, found.values())) == sorted(map(sorted, naive_regions(bitmap)))


def test_a_spiral_is_one_region() -> None:
    bitmap = np.zeros((101, 101), bool)
    y, x, length, (dy, dx) = 50, 50, 2, (0, 1)
    while 0 <= y < 101 and 0 <= x < 101:
        for _ in range(length):
            if 0 <= y < 101 and 0 <= x < 101:
                bitmap[y, x] = True
            y, x = y + dy, x + dx
        dy, dx, length = dx, -dy, length + 2
    runs = text_boxes.runs_of(bitmap)
    assert runs.row.size > 100
    assert text_boxes.connect(runs, 101).max() == 0


def find(probability: np.ndarray, **options) -> tuple[np.ndarray, np.ndarray]:
    settings = {"threshold": 0.3, "box_threshold": 0.5, "unclip": 0.0, "most": 100} | options
    return text_boxes.find(probability.astype(np.float32), **settings)


def test_a_box_by_hand() -> None:
    probability = np.zeros((50, 100))
    probability[10:20, 30:70] = 0.8
    quads, scores = find(probability)
    # Thickening adds one pixel to the right and below.
    assert quads.tolist() == [[[30, 10], [71, 10], [71, 21], [30, 21]]]
    assert scores[0] == pytest.approx(0.8 * 400 / 451)


def test_growing_by_hand() -> None:
    probability = np.zeros((50, 100))
    probability[10:19, 30:69] = 0.8  # 40×10 after thickening: 400 * 1.5 / 100 = 6 pixels on every side
    quads, _ = find(probability, unclip=1.5)
    assert quads[0] == pytest.approx(np.array([[24, 4], [76, 4], [76, 26], [24, 26]]))


def test_faint_thin_and_too_many_regions() -> None:
    probability = np.zeros((60, 100))
    probability[5:15, 5:40] = 0.4
    probability[30, 5:40] = 0.9
    assert len(find(probability)[0]) == 0
    for at, value in ((5, 0.7), (30, 0.9), (45, 0.8)):
        probability[at : at + 10, 50:90] = value
    quads, _ = find(probability, most=2)
    assert sorted(quads[:, 0, 1].tolist()) == [30, 45]


def test_a_tilted_box() -> None:
    angle = np.deg2rad(20)
    y, x = np.mgrid[:200, :200] - 100.0
    along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
    quads, _ = find((np.abs(along) < 60) & (np.abs(across) < 10))
    assert len(quads) == 1
    side = quads[0, 1] - quads[0, 0]
    assert np.hypot(*side) == pytest.approx(120, abs=3)
    assert np.rad2deg(np.arctan2(side[1], side[0])) == pytest.approx(20, abs=1)
    assert np.hypot(*(quads[0, 3] - quads[0, 0])) == pytest.approx(20, abs=3)


# --- reading ---------------------------------------------------------------------------------------------------


def test_ctc_by_hand() -> None:
    alphabet = ("a", "b", " ")
    steps = [0, 1, 1, 0, 1, 3, 2, 2, 0]
    probabilities = np.full((2, len(steps), 4), 0.1, np.float32)
    for t, c in enumerate(steps):
        probabilities[0, t, c] = 0.7
    probabilities[0, 1, 1] = 0.9  # the first step of a run counts
    probabilities[1, :, 0] = 0.7
    (first, empty) = text_read.decode(probabilities, alphabet)
    assert first.text == "aa b"
    assert first.score == pytest.approx((0.9 + 0.7 + 0.7 + 0.7) / 4)
    assert empty == ("", 0.0)
    with pytest.raises(InvalidOutput, match="do not fit"):
        text_read.decode(probabilities, ("a",))
    probabilities[0, 0, 0] = np.nan
    with pytest.raises(InvalidOutput, match="finite"):
        text_read.decode(probabilities, alphabet)


def test_full_width_forms() -> None:
    assert text_read.plain("f（x），A！") == "f(x),A!"
    assert text_read.plain("你好（x）") == "你好（x）"
    assert text_read.characters(("a", "", "\u3000")) == ("a", " ", " ", " ")


def test_cut_takes_the_tilted_part() -> None:
    page = Image.new("RGB", (100, 100), (255, 255, 255))
    page.paste((255, 0, 0), (20, 30, 60, 40))
    page.paste((0, 0, 255), (60, 30, 80, 40))
    quad = np.array([[20.0, 30], [80, 30], [80, 40], [20, 40]])
    for angle in (0, 90, 180, 270):
        middle = np.deg2rad(-angle)  # Pillow turns counter-clockwise, about the middle
        turn = np.array([[np.cos(middle), np.sin(middle)], [-np.sin(middle), np.cos(middle)]])
        piece = text_read.cut(page.rotate(angle), (quad - 50) @ turn + 50)
        assert piece.size == (60, 10)
        assert piece.getpixel((10, 5)) == (255, 0, 0)
        assert piece.getpixel((50, 5)) == (0, 0, 255)


def test_tall_pieces_are_turned() -> None:
    tall = np.array([[0.0, 0], [10, 0], [10, 40], [0, 40]])
    assert text_read.lengthwise(tall)[0].tolist() == [10, 0]
    assert text_read.lengthwise(tall * [4, 1])[0].tolist() == [0, 0]


# --- order -----------------------------------------------------------------------------------------------------


def quad(x: float, y: float, width: float, height: float = 10) -> list[list[float]]:
    return [[x, y], [x + width, y], [x + width, y + height], [x, y + height]]


def rows_of(*quads: list[list[float]], turn: float = 0) -> list[list[int]]:
    angle = np.deg2rad(turn)
    matrix = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return reading_order(np.array(quads).reshape(-1, 4, 2) @ matrix)


@pytest.mark.parametrize("turn", [0, 3, -7, 90, 180, 270, 200])
def test_rows_in_any_position(turn: float) -> None:
    quads = [quad(60, 1, 30), quad(0, 0, 50), quad(0, 40, 90), quad(0, 20, 90)]
    assert rows_of(*quads, turn=turn) == [[1, 0], [3], [2]]


@pytest.mark.parametrize("turn", [0, 2, 180])
def test_columns_of_running_text(turn: float) -> None:
    title = quad(10, -30, 180)
    left = [quad(0, 15 * i, 95) for i in range(5)]
    right = [quad(115, 15 * i + 2, 95) for i in range(4)]
    foot = quad(0, 100, 210)
    assert rows_of(title, *left, *right, foot, turn=turn) == [[i] for i in range(11)]


def test_a_table_is_read_by_rows() -> None:
    cells = [quad(x, 15 * row, 30) for row in range(5) for x in (0, 80, 160)]
    assert rows_of(*cells) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]


def test_two_boxes_of_prose_are_not_yet_columns() -> None:
    assert rows_of(quad(0, 0, 95), quad(120, 0, 95), quad(0, 15, 95), quad(120, 15, 95)) == [[0, 1], [2, 3]]


def test_nothing_to_order() -> None:
    assert reading_order(np.empty((0, 4, 2))) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 300)] * 2, st.integers(1, 120), st.integers(5, 15)), max_size=40))
def test_every_piece_comes_exactly_once(pieces: list[tuple[int, int, int, int]]) -> None:
    rows = rows_of(*[quad(*p) for p in pieces])
    assert sorted(i for row in rows for i in row) == list(range(len(pieces)))
