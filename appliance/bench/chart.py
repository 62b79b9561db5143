"""From measured stages to a drawing: lines, dots and words at places in a fixed frame. Pure; drawn by ``drawing``."""

import math
import textwrap
from collections.abc import Sequence
from typing import Literal

import msgspec

from appliance.bench.recommend import Goal, Tried, told
from appliance.bench.stages import Stage, number

WIDTH = 1120
_TOP = 160  # of the panels, below the heading
_PANEL = 300
_FOOT = 92  # below the panels: ticks, the axis' name
_ROW = 30
_LABEL_GAP = 17
_SIDE = 250  # of the words beside the bars of what was tried

Role = Literal["ink", "soft", "grid", "one", "two", "three", "four"]
Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


class Text(msgspec.Struct, frozen=True):
    """``at``: the baseline, left, middle or right by ``anchor``."""

    at: Point
    words: str
    size: int = 14
    role: Role = "ink"
    anchor: Anchor = "start"
    bold: bool = False


class Line(msgspec.Struct, frozen=True):
    points: tuple[Point, ...]
    role: Role
    width: float = 2.0
    dashed: bool = False


class Dot(msgspec.Struct, frozen=True):
    at: Point
    role: Role
    radius: float = 4.5


class Box(msgspec.Struct, frozen=True):
    """``at``: the upper left corner."""

    at: Point
    size: Point
    role: Role


Shape = Text | Line | Dot | Box


class Scene(msgspec.Struct, frozen=True):
    """Shapes in their order of drawing. ``words``: what it shows, for who cannot see it."""

    width: int
    height: int
    shapes: tuple[Shape, ...]
    words: str


class Panel(msgspec.Struct, frozen=True):
    """A frame with ``columns`` evenly spaced places and values from 0 to ``top``."""

    left: float
    upper: float
    width: float
    height: float
    columns: int
    top: float

    def x(self, column: int) -> float:
        """The middle of a column."""
        return self.left + self.width * (column + 0.5) / self.columns

    def y(self, value: float) -> float:
        return self.upper + self.height * (1 - value / self.top)


def ticks(highest: float) -> list[float]:
    """From 0 in steps of 1, 2 or 5 times a power of ten; three to six of them, and the last is not below."""
    if highest <= 0:
        return [0.0, 0.5, 1.0]
    power = 10.0 ** math.floor(math.log10(highest / 5))
    step = next(power * n for n in (1, 2, 5, 10) if power * n * 5 >= highest * (1 - 1e-9))
    return [step * n for n in range(math.ceil(highest / step * (1 - 1e-9)) + 1)]


def spaced(wanted: Sequence[float], gap: float) -> list[float]:
    """Places as near to those wanted as can be, in their order, no two nearer than ``gap``. ``wanted``: rising."""
    groups: list[tuple[float, int]] = []  # (middle, how many)
    for place in wanted:
        middle, many = place, 1
        while groups and middle - groups[-1][0] < gap * (many + groups[-1][1]) / 2 - 1e-9:
            before, count = groups.pop()
            middle, many = (before * count + middle * many) / (count + many), count + many
        groups.append((middle, many))
    return [middle + gap * (n - (many - 1) / 2) for middle, many in groups for n in range(many)]


def scene(title: str, about: str, stages: Sequence[Stage], goal: Goal | None, tried: Sequence[Tried]) -> Scene:
    """Throughput and latency by clients, and below what was tried for a goal."""
    shapes: list[Shape] = [Text((40, 48), title, 24, bold=True)]
    for n, line in enumerate(textwrap.wrap(about, 140)[:2]):
        shapes.append(Text((40, 76 + 20 * n), line, 14, "soft"))
    half = WIDTH / 2
    shapes += _throughput(stages, 84, half - 84 - 24)
    shapes += _latency(stages, half + 72, half - 72 - 128, goal)
    height = _TOP + _PANEL + _FOOT
    if goal is not None and tried:
        shapes += _tried(goal, tried, height)
        height += 64 + _ROW * len(tried)
    best = max(stages, key=lambda stage: stage.per_second)
    words = f"{title}: at most {number(best.per_second)} answers a second, with {best.clients} clients"
    return Scene(WIDTH, height, tuple(shapes), words)


def _frame(panel: Panel, marks: Sequence[float], stages: Sequence[Stage], title: str) -> list[Shape]:
    right = panel.left + panel.width
    shapes: list[Shape] = [Text((panel.left - 44, panel.upper - 16), title, 15, bold=True)]
    for mark in marks:
        y = panel.y(mark)
        shapes.append(Line(((panel.left, y), (right, y)), "grid", 1))
        shapes.append(Text((panel.left - 10, y + 5), number(mark), 13, "soft", "end"))
    bottom = panel.upper + panel.height
    for n, stage in enumerate(stages):
        shapes.append(Text((panel.x(n), bottom + 24), str(stage.clients), 13, "soft", "middle"))
    shapes.append(Text((panel.left + panel.width / 2, bottom + 50), "clients at once", 13, "soft", "middle"))
    return shapes


def _throughput(stages: Sequence[Stage], left: float, width: float) -> list[Shape]:
    marks = ticks(max(value for stage in stages for value in stage.values("per_second")))
    panel = Panel(left, _TOP, width, _PANEL, len(stages), marks[-1])
    shapes = _frame(panel, marks, stages, "answers a second")
    points = [(panel.x(n), panel.y(stage.per_second)) for n, stage in enumerate(stages)]
    shapes.append(Line(tuple(points), "one", 2.5))
    for (x, y), stage in zip(points, stages, strict=True):
        values = stage.values("per_second")
        low, high = panel.y(min(values)), panel.y(max(values))
        shapes += [Line(((x, low), (x, high)), "one", 1.5), Dot((x, y), "one")]
        shapes += [Line(((x - 5, end), (x + 5, end)), "one", 1.5) for end in (low, high)]
        above = min(high, y) - 12
        shapes.append(Text((x, above), number(stage.per_second), 13, "ink", "middle", bold=True))
    return shapes


def _latency(stages: Sequence[Stage], left: float, width: float, goal: Goal | None) -> list[Shape]:
    lines: dict[str, tuple[Role, list[float]]] = {
        "p99": ("four", [stage.median("p99_ms") or 0.0 for stage in stages]),
        "p95": ("three", [stage.median("p95_ms") or 0.0 for stage in stages]),
        "p50": ("two", [stage.median("p50_ms") or 0.0 for stage in stages]),
        "queue p50": ("soft", [stage.median("queue_p50_ms") or 0.0 for stage in stages]),
    }
    bound = goal.p99_ms if goal is not None else None
    highest = max(value for _, values in lines.values() for value in values)
    # A bound far above what was measured would press everything flat.
    shown = bound if bound is not None and bound <= 3 * highest else None
    marks = ticks(max(highest, shown or 0.0))
    panel = Panel(left, _TOP, width, _PANEL, len(stages), marks[-1])
    shapes = _frame(panel, marks, stages, "latency in ms")
    if shown is not None:
        y = panel.y(shown)
        shapes.append(Line(((left, y), (left + width, y)), "ink", 1.5, dashed=True))
        shapes.append(Text((left + 6, y + 17), f"bound {number(shown)} ms", 13))
    ends: list[tuple[float, str, Role]] = []
    for name, (role, values) in reversed(lines.items()):
        points = tuple((panel.x(n), panel.y(value)) for n, value in enumerate(values))
        shapes.append(Line(points, role, 2.5 if role != "soft" else 1.5, dashed=role == "soft"))
        shapes += [Dot(point, role) for point in points]
        ends.append((points[-1][1], f"{name}  {number(values[-1])}", role))
    ends.reverse()  # those of one height in the order of the names, the highest first
    ends.sort(key=lambda end: end[0])
    places = spaced([y for y, _, _ in ends], _LABEL_GAP)
    for place, (_, words, role) in zip(places, ends, strict=True):
        shapes.append(Text((left + width + 4, place + 5), words, 13, role, bold=role != "soft"))
    return shapes


def _tried(goal: Goal, tried: Sequence[Tried], top: float) -> list[Shape]:
    """A bar for each setting, from the least to the most of its rounds; what was taken over in colour."""
    shapes: list[Shape] = [Text((40, top + 16), f"tried, one change at a time, for {goal.words()}", 15, bold=True)]
    reached = [score for one in tried for score in one.scores if score >= 0]
    marks = ticks(max(reached, default=0.0))
    left, width = 40.0 + _SIDE, WIDTH - 2 * 40 - _SIDE - 330.0
    for n, one in enumerate(tried):
        y = top + 52 + _ROW * n
        role: Role = "one" if one.taken else "soft"
        shapes.append(Text((40, y + 5), one.setting.words(), 13, "ink" if one.taken else "soft", bold=one.taken))
        shapes.append(Line(((left, y), (left + width, y)), "grid", 1))
        if one.scores and min(one.scores) >= 0:
            low, high = (left + width * score / marks[-1] for score in (min(one.scores), max(one.scores)))
            shapes.append(Box((low, y - 6), (max(3.0, high - low), 12), role))
        words = one.fault or f"{_range(goal, one.scores)}: {one.verdict}"
        shapes.append(Text((left + width + 14, y + 5), textwrap.shorten(words, 52, placeholder="…"), 13, role))
    return shapes


def _range(goal: Goal, scores: Sequence[float]) -> str:
    low, high = told(goal, min(scores)), told(goal, max(scores))
    return low if low == high else f"{low} to {high}"
