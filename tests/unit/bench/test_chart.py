"""Where things are drawn, worked out by hand; and that both drawings come out whole."""

import io
import xml.etree.ElementTree as ET

import pytest
from PIL import Image

from appliance.bench.chart import WIDTH, Dot, Panel, Text, scene, spaced, ticks
from appliance.bench.drawing import dashes, png, svg
from appliance.bench.recommend import Goal, Setting, Tried
from appliance.bench.stages import Stage, number
from tests.unit.bench.test_stages import round_of

STAGES = (
    Stage(1, (round_of(per_second=90.0), round_of(per_second=100.0), round_of(per_second=110.0))),
    Stage(2, tuple(round_of(per_second=200.0, p50_ms=4.0, p95_ms=8.0, p99_ms=10.0) for _ in range(3))),
)


@pytest.mark.parametrize(
    ("highest", "marks"),
    [
        (0.0, [0.0, 0.5, 1.0]),
        (1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (176.0, [0.0, 50.0, 100.0, 150.0, 200.0]),
        (10.0, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
        (10.1, [0.0, 5.0, 10.0, 15.0]),
        (2789.0, [0.0, 1000.0, 2000.0, 3000.0]),
        (0.033, [0.0, 0.01, 0.02, 0.03, 0.04]),
    ],
)
def test_ticks(highest: float, marks: list[float]) -> None:
    assert ticks(highest) == pytest.approx(marks)


def test_numbers() -> None:
    shown = [number(value) for value in (0.0, 0.0361, 2.5, 35.0, 35.46, 100.4, 1234.5, 2e6)]
    assert shown == ["0", "0.0361", "2.5", "35", "35.5", "100", "1,234", "2,000,000"]


def test_a_panel_has_its_values_from_the_bottom_up() -> None:
    panel = Panel(left=100, upper=50, width=400, height=300, columns=4, top=200)
    assert [panel.x(n) for n in range(4)] == [150.0, 250.0, 350.0, 450.0]
    assert (panel.y(0), panel.y(100), panel.y(200)) == (350.0, 200.0, 50.0)


def test_labels_keep_their_distance() -> None:
    assert spaced([10.0, 50.0, 90.0], 20) == [10.0, 50.0, 90.0]
    assert spaced([50.0, 50.0], 20) == [40.0, 60.0]
    assert spaced([50.0, 50.0, 50.0], 20) == [30.0, 50.0, 70.0]
    # The pair 40, 44 is spread to 32 and 52; so is 60 pushed, and all three are centred on 48.
    assert spaced([40.0, 44.0, 60.0], 20) == [28.0, 48.0, 68.0]
    assert spaced([], 20) == []


def test_dashes() -> None:
    assert dashes(((0.0, 0.0), (20.0, 0.0))) == [((0.0, 0.0), (7.0, 0.0)), ((14.0, 0.0), (20.0, 0.0))]
    assert dashes(((3.0, 5.0), (3.0, 5.0))) == []


def test_the_throughput_is_where_it_belongs() -> None:
    drawn = scene("m: 1 to 2 clients", "about", STAGES, None, ())
    dots = [shape for shape in drawn.shapes if isinstance(shape, Dot) and shape.role == "one"]
    # Left panel: from 84 on, 1120/2 - 84 - 24 = 452 wide, 160 to 460; ticks to 200.
    assert [dot.at for dot in dots] == [(84 + 113, 160 + 150), (84 + 339, 160)]
    words = [shape.words for shape in drawn.shapes if isinstance(shape, Text)]
    assert "100" in words and "p99  10" in words and "queue p50  0.1" in words
    assert drawn.words == "m: 1 to 2 clients: at most 200 answers a second, with 2 clients"
    assert all(0 <= shape.at[0] <= WIDTH for shape in drawn.shapes if isinstance(shape, Text))


def test_a_bound_is_drawn_unless_it_is_far_away() -> None:
    def words(goal: Goal) -> list[str]:
        drawn = scene("m", "about", STAGES, goal, ())
        return [shape.words for shape in drawn.shapes if isinstance(shape, Text)]

    assert "bound 20 ms" in words(Goal(20.0))
    assert not [text for text in words(Goal(31.0)) if text.startswith("bound")]  # over three times 10 ms


def test_both_drawings() -> None:
    tried = [
        Tried(Setting(1, 1), None, (90.0, 110.0), None, "as it is", taken=True),
        Tried(Setting(2, 1), "batch", (), "<not> & never"),
        Tried(Setting(1, 2), "instances", (-1.5, -1.25), None, "worse"),
    ]
    drawn = scene('a "b" <c>', "about", STAGES, Goal(20.0), tried)
    root = ET.fromstring(svg(drawn))  # noqa: S314 - our own
    assert root.attrib["viewBox"] == f"0 0 {drawn.width} {drawn.height}"
    texts = [node.text for node in root.iter() if node.text and node.text.strip()]
    assert 'a "b" <c>' in texts and "<not> & never" in texts and "p99 25 ms to p99 30 ms: worse" not in texts
    assert "p99 30 ms to p99 25 ms: worse" in texts
    picture = Image.open(io.BytesIO(png(drawn)))
    assert picture.size == (2 * drawn.width, 2 * drawn.height)
    colours = {colour for _, colour in picture.getcolors(1 << 20) or []}
    assert {(255, 255, 255), (0x0B, 0x6B, 0xCB), (0xB4, 0x23, 0x2F)} <= colours
