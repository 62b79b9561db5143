"""What is measured, and what may be said of it: load stages, percentiles, spread, noise. Pure."""

import math
import statistics
from collections.abc import Sequence

import msgspec


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One measured window of one stage. Latencies are of good answers alone, as the client sees them.

    ``queue_*``: the appliance's own ``Server-Timing``. ``batch``: mean items of a run, None where none ended.
    ``memory_bytes``: the peak that was seen, None where it is not told. ``errors``: code → answers.
    ``client_cpu``: share of one core that the measuring itself took.
    """

    seconds: float
    answers: int
    per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    queue_p50_ms: float
    queue_p99_ms: float
    batch: float | None
    memory_bytes: int | None
    errors: dict[str, int]
    client_cpu: float


class Stage(msgspec.Struct, frozen=True):
    """So many clients at once, each sending its next request when its answer is there; measured several times."""

    clients: int
    rounds: tuple[Round, ...]

    def values(self, name: str) -> list[float]:
        """One number of each round, without those that are not known."""
        found = (getattr(one, name) for one in self.rounds)
        return [float(value) for value in found if value is not None]

    def median(self, name: str) -> float | None:
        """The middle of the rounds; None where no round knows it."""
        values = self.values(name)
        return statistics.median(values) if values else None

    @property
    def per_second(self) -> float:
        """Median throughput."""
        return self.median("per_second") or 0.0

    @property
    def spread(self) -> float | None:
        """How far the rounds' throughputs lie apart, as a share of the median; None for one round."""
        return spread(self.values("per_second"))

    @property
    def memory_bytes(self) -> int | None:
        """The highest peak of the rounds."""
        return max((one.memory_bytes for one in self.rounds if one.memory_bytes is not None), default=None)

    @property
    def errors(self) -> dict[str, int]:
        """Of all rounds."""
        found: dict[str, int] = {}
        for one in self.rounds:
            for code, count in one.errors.items():
                found[code] = found.get(code, 0) + count
        return found

    @property
    def answers(self) -> int:
        """Good answers of all rounds."""
        return sum(one.answers for one in self.rounds)


def ladder(clients: int) -> list[int]:
    """1, 2, 4, 8 … and ``clients`` itself at the end."""
    powers = [1 << n for n in range(clients.bit_length()) if 1 << n < clients]
    return [*powers, clients]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least value that at least ``share`` of all values do not exceed (nearest rank). 0 for no values.

    ``ordered``: rising.
    """
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> float | None:
    """(largest - smallest) / median; None where that says nothing: fewer than two values, or a median of 0."""
    if len(values) < 2 or not (middle := statistics.median(values)):
        return None
    return (max(values) - min(values)) / abs(middle)


def apart(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two measurements differ by more than their noise: no value of one lies among the other's.

    Of equals measured n times each, chance tells 2·n!²/(2n)! apart: 10 % for 3 rounds, 0.8 % for 5.
    """
    return min(one) > max(other) or min(other) > max(one)


def number(value: float) -> str:
    """Three digits at least and no more than are needed: 1,200; 35; 2.5; 0.04."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
