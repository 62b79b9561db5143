"""What a run costs in memory: declared, measured, interpolated, estimated; an out-of-memory raises it. Pure.

A *bucket* is the shapes of a request's inputs without the batch axis: memory grows with the batch inside a bucket,
and in leaps between buckets. All sizes in bytes.
"""

import math
from typing import Literal

import msgspec

Bucket = tuple[tuple[int, ...], ...]
Source = Literal["declared", "measured", "interpolated", "estimated"]

_ESTIMATE_FACTOR = 4  # inputs, outputs, and about as much again twice over for what lies between
_LEAST = 1 << 20
_REMEMBERED = 1024
_OOM_FACTOR = 1.5
_TELLING = 1024  # elements: a measured run of fewer tells nothing of how memory grows with the shape


class Cost(msgspec.Struct, frozen=True):
    """``size`` in bytes and where it comes from. ``least``: the part of it that is sure, not a guess."""

    size: int
    source: Source
    least: int


class Profile:
    """The costs of one model version on one device. ``declared``: (fixed, per item) from the model's file.

    ``learned``: an earlier profile of the same version, whose out-of-memory events are not forgotten.
    """

    def __init__(self, declared: tuple[int, int] | None = None, learned: "Profile | None" = None) -> None:
        self._declared = declared
        self._measured: dict[Bucket, dict[int, int]] = {}
        self._floor: dict[Bucket, dict[int, int]] = learned._floor if learned else {}
        self._known: dict[tuple[Bucket, int, int], Cost] = {}  # answers given; the same question comes all the time

    def measured(self, bucket: Bucket, batch: int, size: int) -> None:
        """Warm-up measured the peak of a run."""
        self._measured.setdefault(bucket, {})[batch] = max(0, size)
        self._known.clear()

    def ran_out(self, bucket: Bucket, batch: int, booked: int, most: int) -> None:
        """A run that was booked with ``booked`` ran out of memory: it costs more than that.

        ``most``: what the device can give at all; a run that is booked with it has the device to itself.
        """
        if bucket not in self._floor and len(self._floor) >= _REMEMBERED:
            del self._floor[next(iter(self._floor))]
        floors = self._floor.setdefault(bucket, {})
        raised = min(math.ceil(max(booked, _LEAST) * _OOM_FACTOR), most)
        floors[batch] = max(floors.get(batch, 0), raised)
        self._known.clear()

    def cost(self, bucket: Bucket, batch: int, tensor_bytes: int) -> Cost:
        """What to book for a run of ``batch`` items. ``tensor_bytes``: its inputs together."""
        question = (bucket, batch, tensor_bytes)
        known = self._known.get(question)
        if known is None:
            base = self._base(bucket, batch, tensor_bytes)
            known = Cost(max(base.size, self._raised(bucket, batch), _LEAST), base.source, base.least)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[question] = known
        return known

    def _base(self, bucket: Bucket, batch: int, tensor_bytes: int) -> Cost:
        if self._declared is not None:
            fixed, each = self._declared
            return Cost(fixed + each * batch, "declared", fixed + each * batch)
        points = self._measured.get(bucket)
        if points:
            size = interpolate(points, batch)
            sure = max((points[n] for n in points if n <= batch), default=0)
            return Cost(size, "measured" if batch in points else "interpolated", sure)
        other = self._other_shapes(bucket, batch, tensor_bytes)
        if other is not None:
            return Cost(max(other, tensor_bytes), "interpolated", tensor_bytes)
        return Cost(tensor_bytes * _ESTIMATE_FACTOR, "estimated", tensor_bytes)

    def _other_shapes(self, bucket: Bucket, batch: int, tensor_bytes: int) -> int | None:
        """For shapes that were never measured, from those that were.

        The smallest measured ones that are larger: they cost no less. Else the largest, scaled by the elements; where
        those are so few that what was measured has nothing to do with the shape (the warm-up's guess is 1 for each
        free axis), what they took and the estimate together.
        """
        known = [b for b in self._measured if len(b) == len(bucket)]
        if not known:
            return None
        elements = _elements(bucket)
        larger = [b for b in known if _elements(b) >= elements]
        reference = min(larger, key=_elements) if larger else max(known, key=_elements)
        size = interpolate(self._measured[reference], batch)
        if larger:
            return size
        if _elements(reference) >= _TELLING:
            return math.ceil(size * elements / _elements(reference))
        return size + tensor_bytes * _ESTIMATE_FACTOR

    def _raised(self, bucket: Bucket, batch: int) -> int:
        floors = self._floor.get(bucket, {})
        return max((size for n, size in floors.items() if n <= batch), default=0)


def interpolate(points: dict[int, int], batch: int) -> int:
    """Linear between the measured batch sizes; beyond the largest, by the steeper of last slope and proportion.

    ``points`` must not be empty. Rounded up.
    """
    sizes = sorted(points)
    below = max((n for n in sizes if n <= batch), default=None)
    above = min((n for n in sizes if n >= batch), default=None)
    if below is None:
        return points[sizes[0]]
    if above is None:
        last = sizes[-1]
        slope = 0.0
        if len(sizes) > 1:
            slope = (points[last] - points[sizes[-2]]) / (last - sizes[-2])
        return math.ceil(points[last] + max(slope, points[last] / last, 0.0) * (batch - last))
    if below == above:
        return points[below]
    part = (batch - below) / (above - below)
    return math.ceil(points[below] + part * (points[above] - points[below]))


def _elements(bucket: Bucket) -> int:
    return sum(math.prod(shape) for shape in bucket)
