"""What is counted of each request, as a collector of prometheus-client's.

The library's own counters take a lock for every bucket, some 3 µs a request; these are numbers that one thread adds
to, and become the library's families when they are asked for.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
# 10 µs to 10 min in steps of 5 %: fine enough for percentiles of a moment.
LATENCY = tuple(1e-5 * 1.05**step for step in range(368))
_TOKENS = {
    "prompt_tokens": "Tokens of prompts whose answer has begun.",
    "generated_tokens": "Tokens of answers.",
}
_TOKEN_SECONDS = {
    "first_token_seconds": "From admission to the first token of an answer.",
    "inter_token_seconds": "From one token of an answer to the next.",
}
_HISTOGRAMS = {
    "request_seconds": "From admission to the end, successful requests.",
    "queue_seconds": "From admission to the start of the run.",
    "run_seconds": "Time of a run in the backend.",
    "batch_rows": "Items of a run.",
}


class Tally:
    """A histogram's numbers. A value counts for the first of ``bounds`` (rising) that is not below it."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """(bound, how many are not above it), the last for all of them."""
        found, below = [], 0
        for bound, count in zip((*self._bounds, float("inf")), self.counts, strict=True):
            below += count
            found.append((floatToGoString(bound), float(below)))  # type: ignore[no-untyped-call]
        return found

    @property
    def sum(self) -> float:
        return self._sum

    @property
    def counts(self) -> tuple[int, ...]:
        """How many there were for each bound, and over the last one."""
        return tuple(self._counts)

    @property
    def count(self) -> int:
        return sum(self.counts)


class LanguageMeter:
    """What is counted of a language model's answers. ``prompt_tokens``: of those whose answer has begun;
    ``first_token_seconds``: from admission; ``inter_token_seconds``: from one to the next."""

    __slots__ = ("first_token_seconds", "generated_tokens", "inter_token_seconds", "prompt_tokens")

    def __init__(self) -> None:
        self.prompt_tokens = self.generated_tokens = 0
        self.first_token_seconds = Tally(_SECONDS)
        self.inter_token_seconds = Tally(_SECONDS)

    def began(self, prompt: int, tokens: int, seconds: float) -> None:
        """The first part of an answer is there."""
        self.prompt_tokens += prompt
        self.generated_tokens += tokens
        self.first_token_seconds.add(seconds)

    def went_on(self, tokens: int, seconds: float) -> None:
        """A later part is there, so long after the one before."""
        self.generated_tokens += tokens
        for _ in range(tokens):
            self.inter_token_seconds.add(seconds / tokens)


class Fault(NamedTuple):
    """The newest error of a model version. ``at``: Unix seconds."""

    at: float
    code: str
    message: str


class ModelMeter:
    """One model version's numbers. ``codes``: requests that ended, by ``ok`` or the error code; ``latency``: the
    seconds of those that ended well, as ``request_seconds``, by ``LATENCY``. ``language``: of a language model that
    was asked."""

    __slots__ = (
        "batch_rows",
        "codes",
        "fault",
        "language",
        "latency",
        "queue_seconds",
        "request_seconds",
        "run_seconds",
    )

    def __init__(self) -> None:
        self.codes: dict[str, int] = {"ok": 0}  # a rate needs a first value to rise from
        self.fault: Fault | None = None
        self.language: LanguageMeter | None = None
        self.latency = Tally(LATENCY)
        self.request_seconds = Tally(_SECONDS)
        self.queue_seconds = Tally(_SECONDS)
        self.run_seconds = Tally(_SECONDS)
        self.batch_rows = Tally(_ROWS)

    def ended(self, code: str) -> None:
        """A request ended, with ``ok`` or an error code."""
        self.codes[code] = self.codes.get(code, 0) + 1


class ModelMetrics(Collector):
    """All model versions'. One thread adds, the server's loop. Another one may ask: it sees each number whole, but
    perhaps a request in one family and not yet in the next."""

    def __init__(self) -> None:
        self._meters: dict[tuple[str, str], ModelMeter] = {}

    def meter(self, model: str, version: str) -> ModelMeter:
        """The numbers of one version; made on first use and kept."""
        try:
            return self._meters[model, version]
        except KeyError:
            return self._meters.setdefault((model, version), ModelMeter())

    def language(self, model: str, version: str) -> LanguageMeter:
        """The numbers of one version of a language model; made on first use and kept."""
        meter = self.meter(model, version)
        if meter.language is None:
            meter.language = LanguageMeter()
        return meter.language

    @property
    def meters(self) -> Mapping[tuple[str, str], ModelMeter]:
        """Of each version that had a request."""
        return self._meters

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily(
            "appliance_requests",
            "Requests to models that ended, by code (`ok` or the error code).",
            labels=["model", "version", "code"],
        )
        for key, meter in list(self._meters.items()):
            for code, count in list(meter.codes.items()):
                requests.add_metric([*key, code], count)
        yield requests
        yield self._counter("inferences", "Items of all runs that came back.", lambda rows: rows.sum)
        yield self._counter("executions", "Runs that came back.", lambda rows: rows.count)
        yield from self._histograms()
        yield from self._languages()

    def _counter(self, name: str, words: str, value: Callable[[Tally], float]) -> Metric:
        """A counter that a run's items tell as well."""
        family = CounterMetricFamily(f"appliance_{name}", words, labels=["model", "version"])
        for key, meter in list(self._meters.items()):
            family.add_metric(list(key), value(meter.batch_rows))
        return family

    def _histograms(self) -> Iterator[Metric]:
        for name, words in _HISTOGRAMS.items():
            family = HistogramMetricFamily(f"appliance_{name}", words, labels=["model", "version"])
            for key, meter in list(self._meters.items()):
                tally: Tally = getattr(meter, name)
                family.add_metric(list(key), tally.buckets(), tally.sum)
            yield family

    def _languages(self) -> Iterator[Metric]:
        """Of language models alone."""
        meters = [(list(key), meter.language) for key, meter in list(self._meters.items()) if meter.language]
        labels = ["model", "version"]
        for name, words in _TOKENS.items():
            counter = CounterMetricFamily(f"appliance_{name}", words, labels=labels)
            for key, meter in meters:
                counter.add_metric(key, getattr(meter, name))
            yield counter
        for name, words in _TOKEN_SECONDS.items():
            family = HistogramMetricFamily(f"appliance_{name}", words, labels=labels)
            for key, meter in meters:
                tally: Tally = getattr(meter, name)
                family.add_metric(key, tally.buckets(), tally.sum)
            yield family
