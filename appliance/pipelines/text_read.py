"""Cutting pieces of text out of a page, and reading what the recogniser makes of them."""

import math
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from appliance.errors import InvalidOutput
from appliance.models.tensors import Array

_WIDEST = 4096  # pixels; a longer strip is squeezed
_TALL = 1.5  # a piece this many times as high as wide is text that runs up or down


def lengthwise(quad: Array) -> Array:
    """The quad with the side along its text first: a tall piece is turned by a quarter, counter-clockwise."""
    width, height = side_lengths(quad)
    return np.roll(quad, -1, axis=0) if height >= _TALL * width else quad


def side_lengths(quad: Array) -> tuple[float, float]:
    """Width (mean of top and bottom) and height (mean of left and right) of a quad [4,2]."""
    sides = np.hypot(*(np.roll(quad, -1, axis=0) - quad).T)
    return float(sides[0] + sides[2]) / 2, float(sides[1] + sides[3]) / 2


def cut(page: Image.Image, quad: Array) -> Image.Image:
    """The quad as an upright picture, at the page's own resolution. Corners must lie within the page."""
    width, height = (max(1, round(side)) for side in side_lengths(quad))
    top_left, top_right, bottom_right, bottom_left = quad.tolist()
    corners = (*top_left, *bottom_left, *bottom_right, *top_right)  # Pillow's order
    return page.transform((width, height), Image.Transform.QUAD, corners, Image.Resampling.BICUBIC)


def strip(picture: Image.Image, height: int, widest: int) -> Image.Image:
    """The picture at this height, in proportion, but not wider than ``widest``."""
    width = math.ceil(height * picture.width / picture.height)
    size = min(max(width, 1), widest), height
    return picture.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def windows(picture: Image.Image, size: tuple[int, int], most: int) -> list[Image.Image]:
    """Up to ``most`` pieces of this size (width, height) from a strip, evenly spread; the strip itself if shorter."""
    width, height = size
    whole = strip(picture, height, _WIDEST)
    count = min(most, math.ceil(whole.width / width))
    if count <= 1:
        return [whole.crop((0, 0, min(whole.width, width), height))]
    lefts = [round(i * (whole.width - width) / (count - 1)) for i in range(count)]
    return [whole.crop((left, 0, left + width, height)) for left in lefts]


def batch(strips: Sequence[Image.Image], width: int) -> Array:
    """float32 [N,3,height,width], blue-green-red, (x - 127.5) / 127.5, filled up with zeros on the right."""
    out = np.zeros((len(strips), 3, strips[0].height, width), np.float32)
    for row, picture in zip(out, strips, strict=True):
        pixels = np.asarray(picture)[:, :, ::-1].transpose(2, 0, 1)
        row[:, :, : picture.width] = pixels * np.float32(1 / 127.5) - np.float32(1)
    return out


def plain(text: str) -> str:
    """The text with full-width forms (``（``, ``，``, ``Ａ``) as ASCII, unless something in it is East Asian.

    The reader was taught on Chinese and at times puts a Chinese bracket in a line of Latin text.
    """
    if any(unicodedata.east_asian_width(c) == "W" for c in text):
        return text
    return "".join(chr(ord(c) - 0xFEE0) if "\uff01" <= c <= "\uff5e" else c for c in text)


class Text(NamedTuple):
    """``score``: the mean probability of the characters, 0–1; 0 for no text."""

    text: str
    score: float


def characters(labels: Sequence[str]) -> tuple[str, ...]:
    """The recogniser's classes from 1 on: one label each, then the space that the list leaves out.

    A label of nothing but white space is a space, too.
    """
    return (*(label.strip() or " " for label in labels), " ")


def decode(probabilities: Array, alphabet: Sequence[str]) -> list[Text]:
    """Greedy CTC decoding of float [N,T,C]: each time step's best class, repeats merged, blank (0) dropped.
    The text is made ``plain``.


    InvalidOutput if C is not one more than the alphabet, or a best value is not finite.
    """
    if probabilities.ndim != 3 or probabilities.shape[2] != len(alphabet) + 1:
        raise InvalidOutput(
            f"the reader gives {list(probabilities.shape)}, its {len(alphabet)} characters and the blank do not fit"
        )
    best = probabilities.argmax(axis=2)
    sure = np.take_along_axis(probabilities, best[:, :, None], axis=2)[:, :, 0]
    if not np.isfinite(sure).all():
        raise InvalidOutput("the reader's output has values that are not finite numbers")
    fresh = best != 0
    fresh[:, 1:] &= best[:, 1:] != best[:, :-1]
    return [
        Text(plain("".join(alphabet[c - 1] for c in row[new].tolist())), float(p[new].mean()) if new.any() else 0.0)
        for row, p, new in zip(best, sure, fresh, strict=True)
    ]
