"""The icon's pixels."""

import itertools
from typing import get_args

import pytest
from PIL import ImageChops

from appliance.tray import menu
from appliance.tray.drawing import draw, svg

SIZES = (16, 20, 24, 32, 48, 64, 256)


def looks() -> list[tuple[str, menu.Glyph]]:
    states = [menu.TrayState(state=name, address="", device="") for name in get_args(menu.State)]
    return [(menu.colour(state), menu.glyph(state)) for state in states]


@pytest.mark.parametrize("size", SIZES)
def test_size_colour_and_transparency(size: int) -> None:
    for colour, glyph in looks():
        image = draw(colour, glyph, size)
        assert image.size == (size, size)
        assert image.mode == "RGBA"
        assert image.getpixel((0, 0))[3] == 0
        wanted = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
        edge = image.getpixel((round(size * 6 / 32), round(size * 9 / 32)))  # beside every sign
        assert all(abs(a - b) < 25 for a, b in zip(edge, wanted, strict=False))


@pytest.mark.parametrize("size", [16, 32])
def test_the_signs_differ_even_without_colour(size: int) -> None:
    pictures = [draw("#0072b2", glyph, size) for glyph in get_args(menu.Glyph)]
    for one, other in itertools.combinations(pictures, 2):
        difference = ImageChops.difference(one.convert("L"), other.convert("L")).tobytes()
        assert sum(level > 60 for level in difference) >= size * size / 50


def test_the_scalable_picture_has_the_same_parts() -> None:
    for colour, glyph in looks():
        text = svg(colour, glyph)
        assert colour in text
        assert "polygon" in text or "circle" in text
