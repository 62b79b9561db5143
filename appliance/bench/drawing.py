"""A scene as SVG, and as PNG. The colours of the roles are here."""

import io
import math
from html import escape
from itertools import pairwise

from PIL import Image, ImageDraw, ImageFont

from appliance.bench.chart import Box, Dot, Line, Point, Role, Scene, Text

COLOURS: dict[Role, str] = {
    "ink": "#1b1f24",
    "soft": "#667080",
    "grid": "#dde1e6",
    "one": "#0b6bcb",
    "two": "#1a7f5a",
    "three": "#b26a00",
    "four": "#b4232f",
}
DARK: dict[Role, str] = {
    "ink": "#eef1f4",
    "soft": "#9aa5b3",
    "grid": "#343b45",
    "one": "#62aeff",
    "two": "#4cc596",
    "three": "#f0a83c",
    "four": "#ff7a80",
}
PAPER, DARK_PAPER = "#ffffff", "#16191d"

_SCALE = 2  # pixels of the PNG for one unit
_DASH = 7.0


def svg(scene: Scene) -> str:
    """An ``<svg>`` whose colours are the page's CSS variables ``--ink``, ``--one`` …"""
    parts = [
        f'<svg viewBox="0 0 {scene.width} {scene.height}" role="img" aria-label="{escape(scene.words)}" '
        'xmlns="http://www.w3.org/2000/svg">'
    ]
    for shape in scene.shapes:
        match shape:
            case Text(at=(x, y)):
                weight = ' font-weight="600"' if shape.bold else ""
                parts.append(
                    f'<text x="{x:.1f}" y="{y:.1f}" font-size="{shape.size}" text-anchor="{shape.anchor}"{weight} '
                    f'fill="var(--{shape.role})">{escape(shape.words)}</text>'
                )
            case Line():
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
                dash = f' stroke-dasharray="{_DASH:g}"' if shape.dashed else ""
                parts.append(
                    f'<polyline points="{points}" fill="none" stroke="var(--{shape.role})" '
                    f'stroke-width="{shape.width:g}"{dash}/>'
                )
            case Dot(at=(x, y)):
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{shape.radius:g}" fill="var(--{shape.role})"/>')
            case Box(at=(x, y), size=(width, height)):
                parts.append(
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" '
                    f'fill="var(--{shape.role})"/>'
                )
    return "\n".join([*parts, "</svg>"])


def png(scene: Scene) -> bytes:
    """The same as a picture, twice as large, on white. The font is the one that comes with Pillow."""
    picture = Image.new("RGB", (scene.width * _SCALE, scene.height * _SCALE), PAPER)
    draw = ImageDraw.Draw(picture)
    for shape in scene.shapes:
        colour = COLOURS[shape.role]
        match shape:
            case Text():
                font = ImageFont.load_default(shape.size * _SCALE)
                anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
                draw.text(
                    _pixels(shape.at), shape.words, colour, font, anchor=anchor, stroke_width=0.5 if shape.bold else 0
                )
            case Line():
                for part in dashes(shape.points) if shape.dashed else [shape.points]:
                    draw.line([_pixels(p) for p in part], colour, round(shape.width * _SCALE), joint="curve")
            case Dot(at=(x, y), radius=radius):
                draw.ellipse([*_pixels((x - radius, y - radius)), *_pixels((x + radius, y + radius))], colour)
            case Box(at=(x, y), size=(width, height)):
                draw.rectangle([*_pixels((x, y)), *_pixels((x + width, y + height))], colour)
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return out.getvalue()


def dashes(points: tuple[Point, ...]) -> list[tuple[Point, Point]]:
    """The strokes of a dashed line: strokes and gaps of equal length, begun anew at each point."""
    found = []
    for (x0, y0), (x1, y1) in pairwise(points):
        length = math.hypot(x1 - x0, y1 - y0)
        at = 0.0
        while at < length:
            until = min(at + _DASH, length)
            start, end = at / length, until / length
            found.append(
                ((x0 + (x1 - x0) * start, y0 + (y1 - y0) * start), (x0 + (x1 - x0) * end, y0 + (y1 - y0) * end))
            )
            at += 2 * _DASH
    return found


def _pixels(at: Point) -> tuple[float, float]:
    return at[0] * _SCALE, at[1] * _SCALE
