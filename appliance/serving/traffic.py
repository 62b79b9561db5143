"""Requests a second and percentiles of the last seconds, from counters that only grow. Pure: the clock is given.

What is counted are the gate's requests: a task of several models counts once for each run.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import msgspec

from appliance.model_metrics import LATENCY, ModelMeter

Key = tuple[str, str]

_FRESH_S = 0.5  # asked for by several at once, it is worked out once


class Mark(msgspec.Struct, frozen=True):
    """The counters at one moment. ``at``: the clock's seconds; ``latency``: as ``Tally.counts``; ``tokens``: of
    language models, in and out."""

    at: float
    ended: dict[Key, int]
    latency: dict[Key, tuple[int, ...]]
    tokens: dict[Key, tuple[int, int]] = {}


class Figures(msgspec.Struct, frozen=True):
    """What ended between two moments. The percentiles are of what ended well, None where that was nothing; the tokens
    None where no language model was asked yet."""

    requests_per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    tokens_in_per_s: float | None = None
    tokens_out_per_s: float | None = None


class Traffic:
    """``meters()``: the numbers of each model version. ``mark`` is to be called every few seconds; what is told is of
    the time since the oldest of the last three marks."""

    def __init__(self, meters: Callable[[], Mapping[Key, ModelMeter]], clock: Callable[[], float]) -> None:
        self._meters = meters
        self._clock = clock
        self._marks: deque[Mark] = deque([self._now()], maxlen=3)
        self._told: tuple[dict[Key, Figures], Figures] | None = None
        self._told_at = 0.0

    def mark(self) -> Figures:
        """The figures of all models together since the last mark; makes a new one."""
        before, now = self._marks[-1], self._now()
        self._marks.append(now)
        self._told = None
        return between(before, now, list(now.ended))

    def figures(self) -> tuple[dict[Key, Figures], Figures]:
        """The figures of each model version, and of all together, of the last ten to fifteen seconds."""
        if self._told is None or self._clock() - self._told_at >= _FRESH_S:
            before, now = self._marks[0], self._now()
            each = {key: between(before, now, [key]) for key in now.ended}
            self._told, self._told_at = (each, between(before, now, list(now.ended))), now.at
        return self._told

    def _now(self) -> Mark:
        meters = self._meters()
        return Mark(
            self._clock(),
            {key: sum(meter.codes.values()) for key, meter in meters.items()},
            {key: meter.latency.counts for key, meter in meters.items()},
            {
                key: (meter.language.prompt_tokens, meter.language.generated_tokens)
                for key, meter in meters.items()
                if meter.language is not None
            },
        )


def between(before: Mark, now: Mark, keys: Sequence[Key]) -> Figures:
    """The figures of the versions ``keys`` together."""
    ended = sum(now.ended[key] - before.ended.get(key, 0) for key in keys)
    seconds = now.at - before.at
    tokens = _tokens(before, now, keys, seconds)
    if not ended or seconds <= 0:
        return Figures(0.0, None, None, *tokens)
    moved = [key for key in keys if now.latency[key] != before.latency.get(key)]
    counts = [0] * (len(LATENCY) + 1)
    for key in moved:
        old = before.latency.get(key) or (0,) * len(counts)
        counts = [sum(three) for three in zip(counts, now.latency[key], (-n for n in old), strict=True)]
    p50, p99 = percentile(counts, 0.5), percentile(counts, 0.99)
    return Figures(round(ended / seconds, 2), _ms(p50), _ms(p99), *tokens)


def _tokens(before: Mark, now: Mark, keys: Sequence[Key], seconds: float) -> tuple[float | None, float | None]:
    asked = [key for key in keys if key in now.tokens]
    if not asked:
        return None, None

    def rate(at: int) -> float:
        count = sum(now.tokens[key][at] - before.tokens.get(key, (0, 0))[at] for key in asked)
        return round(count / seconds, 2) if seconds > 0 else 0.0

    return rate(0), rate(1)


def percentile(counts: Sequence[int], share: float, bounds: Sequence[float] = LATENCY) -> float | None:
    """The value that ``share`` of all do not exceed, linear within its bucket; None of nothing.

    ``counts`` has one number more than the rising ``bounds``: those over the last one, which count as it.
    """
    total = sum(counts)
    if not total:
        return None
    wanted = share * total
    for index, (count, below) in enumerate(zip(counts, accumulate(counts), strict=True)):
        if count and below >= wanted:
            if index == len(bounds):
                break
            low = bounds[index - 1] if index else 0.0
            part = (wanted - (below - count)) / count
            return low + (bounds[index] - low) * part
    return bounds[-1]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
