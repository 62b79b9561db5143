"""The last fifteen minutes in samples, so that a page that is opened now shows what was. Kept in memory only."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from appliance.serving.traffic import Traffic

EVERY_S = 5.0
KEPT = 180


class MemoryReading(msgspec.Struct, frozen=True):
    """Of one device, in bytes: all of it, what the engine holds, what other programs hold."""

    total: int
    ours: int
    others: int


class Reading(msgspec.Struct, frozen=True):
    """The state now. ``errors``: answers with an error since the start; ``memory``: by the device's id."""

    waiting: int
    running: int
    errors: int
    memory: dict[str, MemoryReading]


class Sample(msgspec.Struct, frozen=True):
    """One moment (``at``: Unix seconds) and what happened since the one before it."""

    at: float
    reading: Reading
    requests_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    errors: int


class History:
    """``KEPT`` samples, the oldest are forgotten. ``read()`` tells the state at each, ``wall()`` Unix seconds."""

    def __init__(self, traffic: Traffic, read: Callable[[], Reading], wall: Callable[[], float]) -> None:
        self._traffic = traffic
        self._read = read
        self._wall = wall
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    def take(self) -> None:
        """One sample more."""
        reading, figures = self._read(), self._traffic.mark()
        before = self._samples[-1].reading.errors if self._samples else 0
        self._samples.append(
            Sample(
                round(self._wall(), 3),
                reading,
                figures.requests_per_s,
                figures.p50_ms,
                figures.p99_ms,
                max(0, reading.errors - before),
            )
        )

    def columns(self, since: float = 0.0) -> dict[str, Any]:
        """The samples after ``since`` (Unix seconds), a list for each quantity, the oldest first: ``docs/api.md``.

        A device that was not known yet at a moment has null there.
        """
        samples = [sample for sample in self._samples if sample.at > since]
        devices = dict.fromkeys(device for sample in samples for device in sample.reading.memory)
        return {
            "every_s": EVERY_S,
            "at": [sample.at for sample in samples],
            "waiting": [sample.reading.waiting for sample in samples],
            "running": [sample.reading.running for sample in samples],
            "requests_per_s": [sample.requests_per_s for sample in samples],
            "p50_ms": [sample.p50_ms for sample in samples],
            "p99_ms": [sample.p99_ms for sample in samples],
            "errors": [sample.errors for sample in samples],
            "memory": {device: _memory(device, samples) for device in devices},
        }

    async def run(self) -> None:
        """A sample now and every five seconds, for ever."""
        while True:
            self.take()
            await asyncio.sleep(EVERY_S)


def _memory(device: str, samples: list[Sample]) -> dict[str, list[int | None]]:
    found = [sample.reading.memory.get(device) for sample in samples]
    return {kind: [getattr(m, kind) if m else None for m in found] for kind in ("total", "ours", "others")}
