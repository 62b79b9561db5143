"""From a text detector's probability map to rotated boxes: the post-processing of Differentiable Binarization
(Liao et al., "Real-time Scene Text Detection with Differentiable Binarization", 2020, section 3.5).

The map is thresholded; each connected region is the shrunken kernel of a piece of text; the smallest rectangle
around it is grown by distance = area * ratio / perimeter to get the text's own outline back.
"""

from typing import NamedTuple

import numpy as np
import shapely

from appliance.models.tensors import Array

_THINNEST = 3.0  # pixels of the map: narrower kernels are noise


class Runs(NamedTuple):
    """Horizontal runs of set pixels, sorted by row, then start: int [R] each. ``stop`` is exclusive."""

    row: Array
    start: Array
    stop: Array


def find(
    probability: Array, *, threshold: float, box_threshold: float, unclip: float, most: int
) -> tuple[Array, Array]:
    """Rotated boxes of text in a probability map, float [H,W], values 0–1.

    Regions over ``threshold`` whose mean probability is at least ``box_threshold``, grown by the ratio ``unclip``;
    at most ``most``, the likeliest. Returns quads float64 [K,4,2] (x,y in pixels of the map, clockwise from the
    top left, not clipped to the map) and their means float64 [K].
    """
    bitmap = _thicken(probability > threshold)
    runs = runs_of(bitmap)
    if not runs.row.size:
        return np.empty((0, 4, 2)), np.empty(0)
    region = connect(runs, bitmap.shape[1])
    scores = _means(probability, runs, region)
    good = np.nonzero(scores >= box_threshold)[0]
    good = good[np.argsort(-scores[good], kind="stable")][:most]
    quads, kept = [], []
    for index, quad in zip(good, _rectangles(runs, region, good), strict=True):
        grown = _grow(quad, unclip)
        if grown is not None:
            quads.append(grown)
            kept.append(scores[index])
    return np.array(quads).reshape(-1, 4, 2), np.array(kept)


def _thicken(bitmap: Array) -> Array:
    """Dilate by one pixel to the right and down, so that hairline cracks do not split a word."""
    out = bitmap.copy()
    out[:, 1:] |= bitmap[:, :-1]
    out[1:] |= out[:-1].copy()
    return out


def runs_of(bitmap: Array) -> Runs:
    """The runs of True in a bool array [H,W]."""
    height, width = bitmap.shape
    edged = np.zeros((height, width + 2), np.int8)
    edged[:, 1:-1] = bitmap
    steps = np.diff(edged, axis=1)
    row, start = np.nonzero(steps == 1)
    return Runs(row, start, np.nonzero(steps == -1)[1])


def connect(runs: Runs, width: int) -> Array:
    """The region of each run, int [R], numbered from 0: runs of neighbouring rows that touch, also by a corner."""
    above, below = _touching(runs, width)
    label = np.arange(runs.row.size)
    while True:
        low = np.minimum(label[above], label[below])
        # Hook the roots, not the runs: with the jumps below this settles in about log2(R) rounds.
        new = label.copy()
        np.minimum.at(new, label[above], low)
        np.minimum.at(new, label[below], low)
        while True:
            jumped = new[new]
            if np.array_equal(jumped, new):
                break
            new = jumped
        if np.array_equal(new, label):
            break
        label = new
    regions: Array = np.unique(label, return_inverse=True)[1]
    return regions


def _touching(runs: Runs, width: int) -> tuple[Array, Array]:
    """Pairs (run, run of the next row) with start ≤ the other's stop and the other way round."""
    pitch = width + 2  # no run reaches from one row's range of keys into the next one's
    starts, stops = runs.row * pitch + runs.start, runs.row * pitch + runs.stop
    first = np.searchsorted(stops, starts + pitch, side="left")
    last = np.searchsorted(starts, stops + pitch, side="right")
    counts = np.maximum(last - first, 0)
    above = np.repeat(np.arange(starts.size), counts)
    skipped = np.repeat(np.cumsum(counts) - counts, counts)
    below = np.arange(above.size) - skipped + np.repeat(first, counts)
    return above, below


def _means(probability: Array, runs: Runs, region: Array) -> Array:
    """Mean probability of each region, float64."""
    total = np.concatenate([[0.0], np.cumsum(probability, dtype=np.float64)])
    at = runs.row * probability.shape[1]
    sums = np.bincount(region, total[at + runs.stop] - total[at + runs.start])
    means: Array = sums / np.bincount(region, runs.stop - runs.start)
    return means


def _rectangles(runs: Runs, region: Array, wanted: Array) -> list[Array]:
    """The smallest rectangle around each wanted region, [4,2] each; sides of 0 for what is not wide enough."""
    order = np.argsort(region, kind="stable")
    ends = np.cumsum(np.bincount(region))
    found = []
    for index in wanted:
        mine = order[ends[index - 1] if index else 0 : ends[index]]
        # Both ends of every run, at both edges of its row: all that the hull can touch.
        x = np.concatenate([runs.start[mine], runs.stop[mine]])
        y = np.concatenate([runs.row[mine]] * 2)
        points = np.stack([np.concatenate([x, x]), np.concatenate([y, y + 1])], axis=1)
        rectangle = shapely.oriented_envelope(shapely.multipoints(points))
        found.append(upright(shapely.get_coordinates(rectangle)[:4]))
    return found


def upright(quad: Array) -> Array:
    """The rectangle's corners, clockwise, from the one where the side nearest to "rightwards" begins. [4,2]."""
    sides = np.roll(quad, -1, axis=0) - quad
    if sides[0, 0] * sides[1, 1] - sides[0, 1] * sides[1, 0] < 0:
        quad = quad[::-1]
        sides = np.roll(quad, -1, axis=0) - quad
    lengths = np.maximum(np.hypot(sides[:, 0], sides[:, 1]), 1e-9)
    return np.roll(quad, -int(np.argmax(sides[:, 0] / lengths)), axis=0)


def _grow(quad: Array, ratio: float) -> Array | None:
    """The rectangle with every side moved out by area * ratio / perimeter; None for one that is too thin."""
    across, down = quad[1] - quad[0], quad[3] - quad[0]
    width, height = float(np.hypot(*across)), float(np.hypot(*down))
    if min(width, height) < _THINNEST:
        return None
    distance = width * height * ratio / (2 * (width + height))
    right, under = across / width * distance, down / height * distance
    grown: Array = quad + np.array([-right - under, right - under, right + under, under - right])
    return grown
