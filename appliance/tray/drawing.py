"""The icon: a chip whose colour and sign tell the state. Pillow is imported when something is drawn."""

from typing import TYPE_CHECKING, Any

from appliance.tray.menu import Glyph

if TYPE_CHECKING:
    from PIL.Image import Image

_GRID = 32  # the units all shapes are given in
_SMOOTH = 8  # drawn this much larger, then reduced: Pillow's shapes have hard edges
_PINS = "#8a93a3"
_LIGHT, _DARK = "#ffffff", "#111827"

_PLACES = (9, 16, 23)  # centres of the pins along each side

# Polygons in grid units; a stroke is drawn as the polygon of its outline, so that every size is crisp.
_SHAPES: dict[Glyph, tuple[tuple[tuple[float, float], ...], ...]] = {
    "check": (((8.5, 16.5), (11, 14), (14.2, 17.2), (21, 10.2), (23.5, 12.7), (14.2, 22.2)),),
    "play": (((11.5, 8.5), (24, 16), (11.5, 23.5)),),
    "bang": (
        ((14, 7), (18, 7), (17.4, 18), (14.6, 18)),
        ((14.2, 20.5), (17.8, 20.5), (17.8, 24), (14.2, 24)),
    ),
    "cross": (
        ((9, 11.5), (11.5, 9), (23, 20.5), (20.5, 23)),
        ((20.5, 9), (23, 11.5), (11.5, 23), (9, 20.5)),
    ),
    "bars": (((10.5, 9), (14.2, 9), (14.2, 23), (10.5, 23)), ((17.8, 9), (21.5, 9), (21.5, 23), (17.8, 23))),
}
_DOTS = ((10, 16), (16, 16), (22, 16))
_DOT_RADIUS = 2.3


def draw(colour: str, glyph: Glyph, size: int) -> "Image":
    """The icon as an RGBA image of `size` by `size` pixels, transparent around the chip.

    `colour` is ``#rrggbb``; the sign on it is white or near black, whichever stands out more.
    """
    from PIL import Image, ImageDraw

    scale = size * _SMOOTH / _GRID
    image = Image.new("RGBA", (size * _SMOOTH, size * _SMOOTH), (0, 0, 0, 0))
    pen = ImageDraw.Draw(image)
    _chip(pen, scale, colour)
    ink = _ink(colour)
    for polygon in _SHAPES.get(glyph, ()):
        pen.polygon([(x * scale, y * scale) for x, y in polygon], fill=ink)
    if glyph == "dots":
        for x, y in _DOTS:
            pen.ellipse(_box(x - _DOT_RADIUS, y - _DOT_RADIUS, x + _DOT_RADIUS, y + _DOT_RADIUS, scale), fill=ink)
    return image.resize((size, size), Image.Resampling.LANCZOS)


def svg(colour: str, glyph: Glyph) -> str:
    """The same icon as a scalable picture."""
    pins = "".join(
        f'<rect x="{p - 1.5}" y="0.5" width="3" height="31" rx="1"/>'
        f'<rect x="0.5" y="{p - 1.5}" width="31" height="3" rx="1"/>'
        for p in _PLACES
    )
    ink = _ink(colour)
    signs = "".join(
        f'<polygon points="{" ".join(f"{x},{y}" for x, y in polygon)}" fill="{ink}"/>'
        for polygon in _SHAPES.get(glyph, ())
    )
    if glyph == "dots":
        signs = "".join(f'<circle cx="{x}" cy="{y}" r="{_DOT_RADIUS}" fill="{ink}"/>' for x, y in _DOTS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_GRID} {_GRID}">'
        f'<g fill="{_PINS}">{pins}</g>'
        f'<rect x="3" y="3" width="26" height="26" rx="5" fill="{colour}"/>{signs}</svg>\n'
    )


def _chip(pen: Any, scale: float, colour: str) -> None:
    for place in _PLACES:
        pen.rounded_rectangle(_box(place - 1.5, 0.5, place + 1.5, 31.5, scale), radius=scale, fill=_PINS)
        pen.rounded_rectangle(_box(0.5, place - 1.5, 31.5, place + 1.5, scale), radius=scale, fill=_PINS)
    pen.rounded_rectangle(_box(3, 3, 29, 29, scale), radius=5 * scale, fill=colour)


def _box(left: float, top: float, right: float, bottom: float, scale: float) -> tuple[float, ...]:
    return (left * scale, top * scale, right * scale - 1, bottom * scale - 1)


def _ink(colour: str) -> str:
    """White on dark colours, near black on light ones (relative luminance as in WCAG 2)."""
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return _DARK if luminance > 0.35 else _LIGHT


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else float(((channel + 0.055) / 1.055) ** 2.4)
