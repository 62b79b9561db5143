"""What Prometheus can ask for. Every name here stands in ``docs/metrics.md``."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """One registry with all of the appliance's metrics; made once, by the composition root."""

    def __init__(self) -> None:
        # Else every counter has a second line that nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library left this one out
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter(
            "appliance_requests",
            "Requests to models that ended, by code (`ok` or the error code).",
            ["model", "version", "code"],
            registry=r,
        )
        self.refused = Counter(
            "appliance_refused",
            "Inference calls answered with an error, by code.",
            ["code"],
            registry=r,
        )
        self.request_seconds = Histogram(
            "appliance_request_seconds",
            "From admission to the end, successful requests.",
            ["model", "version"],
            buckets=_SECONDS,
            registry=r,
        )
        self.queue_seconds = Histogram(
            "appliance_queue_seconds",
            "From admission to the start of the run.",
            ["model", "version"],
            buckets=_SECONDS,
            registry=r,
        )
        self.run_seconds = Histogram(
            "appliance_run_seconds",
            "Time of a run in the backend.",
            ["model", "version"],
            buckets=_SECONDS,
            registry=r,
        )
        self.batch_rows = Histogram(
            "appliance_batch_rows",
            "Items of a run.",
            ["model", "version"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=r,
        )
        self.waiting = Gauge("appliance_queue_length", "Requests that wait for a lane.", registry=r)
        self.running = Gauge("appliance_runs_in_flight", "Runs in the engine now.", registry=r)
        self.ready = Gauge("appliance_ready", "1 when every model that must be loaded is warm.", registry=r)
        self.models = Gauge("appliance_models", "Model versions by state.", ["state"], registry=r)
        self.engine_up = Gauge("appliance_engine_up", "1 while an engine process answers.", registry=r)
        self.engine_restarts = Gauge(
            "appliance_engine_restarts_total", "Engine processes that ended and were started again.", registry=r
        )
        self.engine_memory = Gauge("appliance_engine_memory_bytes", "Memory of the engine process.", registry=r)
        self.host_memory = Gauge("appliance_host_memory_bytes", "Memory of the host process.", registry=r)
        self.body_bytes = Gauge("appliance_body_bytes", "Request bodies held in memory now.", registry=r)
        self.device_memory = Gauge(
            "appliance_device_memory_bytes",
            "Memory of each device, `used` and `total`.",
            ["device", "kind"],
            registry=r,
        )
        self.ledger = Gauge(
            "appliance_memory_budget_bytes",
            "The ledger of each device: `capacity`, `weights`, `in_flight`, `reserved`, `others`.",
            ["device", "kind"],
            registry=r,
        )
        self.out_of_memory = Gauge(
            "appliance_out_of_memory_total", "Runs that ran out of memory, by device.", ["device"], registry=r
        )
        self.degraded = Gauge(
            "appliance_degraded_models", "Model versions that run on another device than was asked for.", registry=r
        )

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
