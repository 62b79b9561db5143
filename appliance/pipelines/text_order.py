"""The order in which a person would read pieces of text found on a page.

Pieces are put upright by their own common direction (a page may lie on its side, on its head, or askew), then
grouped in rows. Rows that share a wide empty gutter and have running text on both sides of it are columns, read
one after the other; all else is read row by row, so that a table keeps its rows.
"""

from typing import NamedTuple

import numpy as np

from appliance.models.tensors import Array

_GUTTER = 1.0  # narrowest gutter between columns, in heights of a line
_PROSE = 6.0  # a piece this many times as wide as high is running text
_FARTHEST = 200  # rows looked ahead; bounds the work on a page full of short pieces
_ROWS = 3  # fewest rows of running text on each side of a gutter


class _Piece(NamedTuple):
    which: int
    left: float
    top: float
    right: float
    bottom: float


_Row = list[_Piece]


def reading_order(quads: Array) -> list[list[int]]:
    """Rows of indices of ``quads`` ([N,4,2], each clockwise from the start of its own text), in reading order."""
    if not len(quads):
        return []
    upright = _straighten(quads)
    low, high = upright.min(axis=1).tolist(), upright.max(axis=1).tolist()
    pieces = [_Piece(i, a[0], a[1], b[0], b[1]) for i, (a, b) in enumerate(zip(low, high, strict=True))]
    # Rotated boxes are higher than their text; the quads' own left sides are not.
    height = float(np.median(np.hypot(*(quads[:, 3] - quads[:, 0]).T)))
    return [[piece.which for piece in row] for row in _read(_rows(pieces), height)]


def _straighten(quads: Array) -> Array:
    """The quads in a coordinate system whose x axis is the direction of their text (by the longest pieces)."""
    along = quads[:, 1] - quads[:, 0]
    direction = along[np.argsort(-np.hypot(*along.T), kind="stable")[: max(1, len(along) // 2)]].sum(axis=0)
    length = float(np.hypot(*direction))
    if length < 1e-6:  # as many upside down as not
        return quads
    x, y = direction / length
    turned: Array = quads @ np.array([[x, -y], [y, x]])
    return turned


def _rows(pieces: list[_Piece]) -> list[_Row]:
    """Pieces side by side, from top to bottom; each row from left to right."""
    rows: list[_Row] = []
    for piece in sorted(pieces, key=lambda p: p.top + p.bottom):
        row = next((r for r in reversed(rows[-3:]) if _beside(r, piece)), None)
        if row is None:
            rows.append([piece])
        else:
            row.append(piece)
    for row in rows:
        row.sort(key=lambda p: p.left)
    return rows


def _beside(row: _Row, piece: _Piece) -> bool:
    """Is the nearest piece of the row on the same line: do they overlap by half of the lower one's height?"""
    other = min(row, key=lambda p: max(p.left - piece.right, piece.left - p.right))
    shared = min(other.bottom, piece.bottom) - max(other.top, piece.top)
    aside = min(other.right, piece.right) - max(other.left, piece.left)
    flat = min(other.bottom - other.top, piece.bottom - piece.top)
    # Pieces that lie above each other are never one row, however closely they are set.
    narrow = min(other.right - other.left, piece.right - piece.left)
    return shared > 0.5 * flat and aside < 0.5 * narrow


def _read(rows: list[_Row], height: float) -> list[_Row]:
    done: list[_Row] = []
    at = 0
    while at < len(rows):
        taken, gutter = _columns(rows[at:], height)
        if gutter is None:
            done.append(rows[at])
            at += 1
            continue
        block = [piece for row in rows[at : at + taken] for piece in row]
        for side in (
            [p for p in block if p.right <= gutter],
            [p for p in block if p.right > gutter],
        ):
            done += _read(_rows(side), height)
        at += taken
    return done


def _columns(rows: list[_Row], height: float) -> tuple[int, float | None]:
    """The longest block of rows from the first one on that one gutter runs through: its length, the gutter's middle.

    The leftmost gutter that leaves running text on both sides; (0, None) if there is none.
    """
    free = [(-np.inf, np.inf)]
    gutters: list[float] = []
    count = 0
    for row in rows[:_FARTHEST]:
        for piece in row:
            free = _without(free, piece.left, piece.right, _GUTTER * height)
        inner = [(a + b) / 2 for a, b in free if np.isfinite(a) and np.isfinite(b)]
        if not inner and count:
            break
        gutters, count = inner, count + 1
    return next(((count, g) for g in gutters if _divides(rows[:count], g)), (0, None))


def _without(free: list[tuple[float, float]], left: float, right: float, least: float) -> list[tuple[float, float]]:
    parts = [part for a, b in free for part in ((a, min(b, left)), (max(a, right), b))]
    return [(a, b) for a, b in dict.fromkeys(parts) if b - a >= least]


def _divides(rows: list[_Row], gutter: float) -> bool:
    left = [p for row in rows for p in row if p.right <= gutter]
    right = [p for row in rows for p in row if p.right > gutter]
    return _is_prose(left) and _is_prose(right)


def _is_prose(pieces: list[_Piece]) -> bool:
    wide = sum(p.right - p.left >= _PROSE * (p.bottom - p.top) for p in pieces)
    return wide >= _ROWS and 2 * wide >= len(pieces)
