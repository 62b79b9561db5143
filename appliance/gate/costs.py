"""What a run costs in memory: declared, measured, interpolated, estimated; what it was seen to take, and an
out-of-memory, raise it. Pure.

A *bucket* is the shapes of a request's inputs without the batch axis: memory grows with the batch inside a bucket,
and in leaps between buckets. All sizes in bytes.
"""

import math
from collections import deque
from typing import Literal

import msgspec

from appliance.engine.messages import CostPoint
from appliance.gate.peaks import WINDOW, p95, raised

Bucket = tuple[tuple[int, ...], ...]
Source = Literal["declared", "measured", "interpolated", "estimated", "computed"]

_ESTIMATE_FACTOR = 4  # inputs, outputs, and about as much again twice over for what lies between
_LEAST = 1 << 20
_REMEMBERED = 1024
_BATCHES = 64  # sizes of one bucket that samples are kept of
_KEPT = 256  # kinds of run whose samples are kept over a restart
_OOM_FACTOR = 1.5
_TELLING = 1024  # elements: a measured run of fewer tells nothing of how memory grows with the shape


class Cost(msgspec.Struct, frozen=True):
    """``size`` in bytes and where it comes from. ``least``: the part of it that is sure, not a guess."""

    size: int
    source: Source
    least: int


class Samples(msgspec.Struct, frozen=True, array_like=True):
    """What runs of ``batch`` items were seen to take, the newest last; ``most``: what the device could give them."""

    bucket: Bucket
    batch: int
    sizes: tuple[int, ...]
    most: int


class Learned(msgspec.Struct, frozen=True):
    """What ordinary runs taught, as it is kept over a restart: it counts on the same ``device``. ``floors``: what
    out-of-memory events raised costs to."""

    device: str
    floors: tuple[CostPoint, ...] = ()
    samples: tuple[Samples, ...] = ()


class _Window:
    """The newest samples of one bucket and batch."""

    def __init__(self, sizes: tuple[int, ...] = (), most: int = 0) -> None:
        self.sizes = deque(sizes, WINDOW)
        self.most = most
        self.peak = p95(self.sizes) if sizes else 0

    def add(self, size: int, most: int) -> None:
        self.sizes.append(size)
        self.most, self.peak = most, p95(self.sizes)


class Profile:
    """The costs of one model version on one device. ``declared``: (fixed, per item) from the model's file.

    ``learned``: an earlier profile of the same version, whose events and samples are not forgotten.
    """

    def __init__(self, declared: tuple[int, int] | None = None, learned: "Profile | None" = None) -> None:
        self._declared = declared
        self._measured: dict[Bucket, dict[int, int]] = {}
        self._floor: dict[Bucket, dict[int, int]] = learned._floor if learned else {}
        self._seen: dict[Bucket, dict[int, _Window]] = learned._seen if learned else {}
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
        size = min(math.ceil(max(booked, _LEAST) * _OOM_FACTOR), most)
        floors[batch] = max(floors.get(batch, 0), size)
        self._known.clear()

    def observed(self, bucket: Bucket, batch: int, size: int, most: int) -> bool:
        """A run that had the device to itself was seen to take ``size``; ``most``: what the device can give at all.

        True if that was news: what it teaches is worth keeping. What the operator declared is not doubted by it.
        """
        if bucket not in self._seen and len(self._seen) >= _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        windows = self._seen.setdefault(bucket, {})
        if batch not in windows and len(windows) >= _BATCHES:
            del windows[next(iter(windows))]
        window = windows.setdefault(batch, _Window())
        before = window.peak
        window.add(size, most)
        if window.peak == before:
            return False
        self._known.clear()
        return True

    def learned(self, device: str) -> Learned:
        """What is worth keeping, the newest of very much."""
        floors = [CostPoint(b, n, size) for b, sizes in self._floor.items() for n, size in sizes.items()]
        samples = [Samples(b, n, tuple(w.sizes), w.most) for b, ws in self._seen.items() for n, w in ws.items()]
        return Learned(device, tuple(floors[-_REMEMBERED:]), tuple(samples[-_KEPT:]))

    def recall(self, learned: Learned) -> None:
        """What was kept counts again."""
        for point in learned.floors[-_REMEMBERED:]:
            self._floor.setdefault(point.bucket, {})[point.batch] = max(0, point.size)
        for kept in learned.samples[-_KEPT:]:
            self._seen.setdefault(kept.bucket, {})[kept.batch] = _Window(kept.sizes, kept.most)
        self._known.clear()

    def told(self) -> tuple[Source, list[tuple[int, int]]]:
        """For people: where costs come from, and (batch, bytes booked) for the largest shapes that were measured."""
        if self._declared is not None:
            fixed, each = self._declared
            return "declared", [(1, fixed + each)]
        if not self._measured:
            return "estimated", []
        bucket = max(self._measured, key=_elements)
        return "measured", [(batch, self.cost(bucket, batch, 0).size) for batch in sorted(self._measured[bucket])]

    def cost(self, bucket: Bucket, batch: int, tensor_bytes: int) -> Cost:
        """What to book for a run of ``batch`` items. ``tensor_bytes``: its inputs together."""
        question = (bucket, batch, tensor_bytes)
        known = self._known.get(question)
        if known is None:
            base = self._base(bucket, batch, tensor_bytes)
            size = max(base.size, self._raised(bucket, batch), _LEAST)
            if self._declared is None:
                size = max(size, self._with_seen(bucket, batch, base.size))
            known = Cost(size, base.source, base.least)
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

    def _with_seen(self, bucket: Bucket, batch: int, booked: int) -> int:
        """What is booked for it, raised by what such runs, and smaller ones, were seen to take."""
        windows = self._seen.get(bucket, {})
        return max((raised(w.peak, booked, w.most) for n, w in windows.items() if n <= batch), default=booked)


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
