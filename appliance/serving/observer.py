"""The gate's ends, counted for Prometheus."""

from typing import Any

from appliance.gate.ticket import Ticket
from appliance.metrics import Metrics


class MetricsObserver:
    """Gate → metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._children: dict[tuple[str, str, str], Any] = {}

    def request_ended(self, ticket: Ticket) -> None:
        m, model, version = self._metrics, ticket.model, ticket.version
        code = ticket.error.code if ticket.error else "ok"
        self._child(m.requests, model, version, code).inc()
        if ticket.error is None:
            self._child(m.request_seconds, model, version, "").observe(ticket.finished - ticket.created)
            self._child(m.queue_seconds, model, version, "").observe(ticket.started - ticket.created)

    def batch_ended(self, model: str, version: str, rows: int, run_ns: int) -> None:
        self._child(self._metrics.run_seconds, model, version, "").observe(run_ns / 1e9)
        self._child(self._metrics.batch_rows, model, version, "").observe(rows)

    def _child(self, metric: Any, model: str, version: str, code: str) -> Any:
        """The metric's child; looking it up by its labels each time would cost more than counting."""
        key = (f"{id(metric)}/{code}", model, version)
        child = self._children.get(key)
        if child is None:
            child = metric.labels(model, version, code) if code else metric.labels(model, version)
            self._children[key] = child
        return child
