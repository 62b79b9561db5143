"""What Prometheus can ask for. Every name here stands in ``docs/metrics.md``."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from appliance.errors import Cancelled, codes
from appliance.model_metrics import ModelMetrics


class _Family(NamedTuple):
    words: str
    labels: tuple[str, ...] = ()
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily


_VERSION = ("model", "version")
_STATE = {
    "build_info": _Family("1, with the program's version and what it runs on.", ("version", "python", "system")),
    "runtime_info": _Family("1 for each runtime of an engine.", ("engine", "runtime", "version")),
    "start_time_seconds": _Family("When the appliance was started, as Unix time."),
    "ready": _Family("1 when every model that must be loaded is warm."),
    "paused": _Family("1 while a person has paused it."),
    "models": _Family("Model versions by state.", ("state",)),
    "model_ready": _Family("1 while this model version is warm.", _VERSION),
    "degraded_models": _Family("Model versions that run on another device than was asked for."),
    "queue_length": _Family("Requests that wait for a lane."),
    "queue_limit": _Family("Requests that may wait in all."),
    "pending_requests": _Family("Requests that wait for a lane of this model version.", _VERSION),
    "pending_requests_limit": _Family("Requests that may wait for this model version.", _VERSION),
    "runs_in_flight": _Family("Runs in the engine now."),
    "model_runs_in_flight": _Family("Runs of this model version in the engine now.", _VERSION),
    "kv_cache_bytes": _Family("Memory booked for the answers of a language model that run.", ("model", "version")),
    "engine_up": _Family("1 while an engine process answers.", ("engine",)),
    "engine_restarts": _Family(
        "Engine processes that ended and were started again, by reason.",
        ("engine", "reason"),
        CounterMetricFamily,
    ),
    "engine_memory_bytes": _Family("Memory of an engine process.", ("engine",)),
    "host_memory_bytes": _Family("Memory of the host process."),
    "body_bytes": _Family("Request bodies held in memory now."),
    "device_info": _Family(
        "1, with what the device is.", ("device", "name", "driver", "cuda", "compute_capability")
    ),
    "device_memory_bytes": _Family("Memory of each device, as its driver tells it.", ("device", "kind")),
    "device_utilisation_ratio": _Family("How busy the device is, 0 to 1.", ("device",)),
    "device_temperature_celsius": _Family("Temperature of the device.", ("device",)),
    "device_power_watts": _Family("What the device takes now.", ("device",)),
    "device_power_limit_watts": _Family("What the device may take.", ("device",)),
    "memory_budget_bytes": _Family("The ledger of each device.", ("device", "kind")),
    "memory_narrowing_ratio": _Family(
        "Share of the budget that runs are given; under 1 for a while after an out-of-memory.", ("device",)
    ),
    "out_of_memory": _Family("Runs that ran out of memory, by device.", ("device",), CounterMetricFamily),
    "model_memory_bytes": _Family("What loading this model version took.", (*_VERSION, "device")),
}  # fmt: skip


class Put(Protocol):
    """Gives one sample: the family's name without ``appliance_``, the value, the labels in the family's order."""

    def __call__(self, name: str, value: float, *labels: str) -> None: ...


Source = Callable[[Put], None]


class StateMetrics(Collector):
    """What is looked up when somebody asks, so that it is never old and what is gone has no sample."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """``source(put)`` gives its samples of now; called for each answer, in the caller's thread."""
        self._sources.append(source)

    def collect(self) -> Iterable[Metric]:
        families = {name: f.kind(f"appliance_{name}", f.words, labels=f.labels) for name, f in _STATE.items()}

        def put(name: str, value: float, *labels: str) -> None:
            families[name].add_metric(labels, value)

        for source in self._sources:
            source(put)
        return families.values()


class _Taken(Collector):
    """The state as it was, and what is counted."""

    def __init__(self, state: Iterable[Metric], *counted: Collector) -> None:
        self._state = state
        self._counted = counted

    def collect(self) -> Iterable[Metric]:
        return chain(self._state, *(part.collect() for part in self._counted))


class Metrics:
    """One registry with all of the appliance's metrics; made once, by the composition root."""

    def __init__(self) -> None:
        # Else every counter has a second line that nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left this one out
        self.registry = CollectorRegistry()
        self.state = StateMetrics()
        self.by_model = ModelMetrics()
        self.registry.register(self.state)
        self.registry.register(self.by_model)
        self.refused = Counter(
            "appliance_refused", "Inference calls answered with an error, by code.", ["code"], registry=self.registry
        )
        for code in codes():  # a rate needs a first value to rise from
            if code != Cancelled.code:
                self.refused.labels(code)

    def refusals(self) -> dict[str, int]:
        """Calls answered with an error since the start, by code."""
        (family,) = self.refused.collect()
        return {sample.labels["code"]: int(sample.value) for sample in family.samples if sample.value}

    def look(self) -> Callable[[], bytes]:
        """Look at the state now, in the server's loop; what is given makes Prometheus' text of it, in any thread.

        The text takes some 0.5 ms a model, too long for a loop that answers requests meanwhile.
        """
        taken = _Taken([*self.state.collect()], self.by_model, self.refused)
        return partial(generate_latest, taken)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return self.look()()
