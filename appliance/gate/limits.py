"""Formulas of the gate, pure."""

import math


class DrainRate:
    """Finished requests per second, as an exponentially weighted mean over the gaps between ends."""

    def __init__(self, weight: float = 0.1) -> None:
        self._weight = weight
        self._gap_s: float | None = None
        self._last: float | None = None

    def finished(self, now: float) -> None:
        """A request ended at ``now`` (seconds). Gaps over 5 s are idle time, not slowness, and do not count."""
        if self._last is not None and 0 <= now - self._last <= 5.0:
            gap = now - self._last
            self._gap_s = gap if self._gap_s is None else self._gap_s + self._weight * (gap - self._gap_s)
        self._last = now

    def wait_s(self, ahead: int) -> float | None:
        """Seconds until ``ahead`` requests have ended; None before anything was measured."""
        return None if self._gap_s is None else ahead * self._gap_s


def retry_after_s(wait_s: float | None) -> float:
    """Whole seconds for ``Retry-After``: the estimated wait rounded up, within 1 … 120; 1 when unknown."""
    return float(min(120, max(1, math.ceil(wait_s)))) if wait_s is not None else 1.0


def shortened(limit_s: float, wish_ms: float | None) -> float:
    """A request may only shorten a limit, never lengthen it. Seconds."""
    return limit_s if wish_ms is None or wish_ms <= 0 else min(limit_s, wish_ms / 1000)


def stood_still(now: float, due: float) -> bool:
    """Whether what was due at ``due`` is looked at so late (``now``, seconds) that nobody was awake meanwhile: the
    machine slept, or this process was stopped. On some systems the clock goes on then."""
    return now - due > 2.0
