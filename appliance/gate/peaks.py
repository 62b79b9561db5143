"""What ordinary runs really take: from the readings of a device's memory that come with each heartbeat. Pure.

A reading tells what the engine holds of a device, not who took it. So it counts only where there is one possible
taker: since a reading at which nothing ran (the *level*), runs of one kind alone were sent, and never two at once.
What the device's use grew by since the level, and what the model's allocator held already, is then what such a run
takes. Allocators that keep what they took show it also when the run is over.
"""

import math
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

WINDOW = 64
"""Samples of one kind of run that are looked at: the newest."""

_SAFETY = 1.3
_QUANTILE = 0.95


def p95(samples: Sequence[int]) -> int:
    """The nearest-rank 95th percentile: of fewer than 20 the largest, beyond that the largest few count as noise."""
    ordered = sorted(samples)
    return ordered[math.ceil(_QUANTILE * len(ordered)) - 1]


def raised(peak: int, booked: int, most: int) -> int:
    """What to book for a run that was seen to take ``peak`` where ``booked`` was thought to do.

    Never less than ``booked``. What was enough stays; what was not is raised to the peak and 30 %, up to ``most``.
    """
    return booked if peak <= booked else max(booked, min(math.ceil(peak * _SAFETY), most))


@runtime_checkable
class Kind(Protocol):
    """A run in flight. ``kind``: equal (the same object) only for runs of one model, shape and size; ``model``: whose
    it is; ``overlaps``: another of its model may run beside it."""

    @property
    def kind(self) -> object: ...

    @property
    def model(self) -> Hashable: ...

    @property
    def overlaps(self) -> bool: ...


class Seen(NamedTuple):
    """``run`` is one of those that took ``size`` bytes each."""

    run: Kind
    size: int


class Watch:
    """One device. ``least``: growth in bytes that is told from noise."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._level: int | None = None  # what was held when nothing ran
        self._first: Kind | None = None  # the first run since
        self._mixed = False  # others than its kind, or two at once, ran since
        self._held: dict[Hashable, int] = {}  # by each model's allocator at the level

    def loaded(self, model: Hashable, held: int) -> None:
        """A model has come, and left ``held`` bytes beyond its weights taken. A new level is needed."""
        self._held[model] = max(0, held)
        self._level = None

    def unloaded(self, model: Hashable) -> None:
        self._held.pop(model, None)
        self._level = None

    def disturbed(self) -> None:
        """Something else than runs has taken memory, or given some back: a new level is needed."""
        self._level = None

    def cleared(self) -> None:
        """The engine is gone."""
        self._held.clear()
        self._level = None

    def began(self, run: Kind, beside: int) -> None:
        """A run was sent while ``beside`` others are in flight. On the way of every request, so it is short."""
        first = self._first
        if first is None:
            self._first = run
        elif run.kind is not first.kind:
            self._mixed = True
        if beside and run.overlaps:
            self._mixed = True

    def read(self, ours: int, idle: bool, in_flight: Collection[object]) -> Seen | None:
        """A reading. ``idle``: nothing ran when it was taken; ``in_flight``: what is booked now, runs and loads."""
        level, first = self._level, self._first
        if not all(isinstance(run, Kind) for run in in_flight):
            self._mixed = True  # a load takes memory too
        seen = None
        if level is not None and first is not None and not self._mixed:
            growth, held = ours - level, self._held.get(first.model, 0)
            if growth > self._least:
                seen = Seen(first, held + growth)
            if idle:  # it stays taken, or the allocator has given some back
                self._held[first.model] = max(0, held + growth)
        if idle:
            self._level, self._first, self._mixed = ours, None, False
            for beside, run in enumerate(in_flight):  # sent since the reading was taken
                if isinstance(run, Kind):
                    self.began(run, beside)
                else:
                    self._mixed = True
        return seen
