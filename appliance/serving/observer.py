"""The gate's ends, counted for Prometheus and the status."""

import time
from collections.abc import Callable

from appliance.errors import Cancelled
from appliance.gate.ticket import Ticket
from appliance.metrics import Metrics
from appliance.model_metrics import Fault


class MetricsObserver:
    """Gate → metrics. ``on_error`` is told of each request that ended with one."""

    def __init__(self, metrics: Metrics) -> None:
        self._meter = metrics.by_model.meter
        self.on_error: Callable[[Ticket], None] = lambda ticket: None

    def request_ended(self, ticket: Ticket) -> None:
        meter = self._meter(ticket.model, ticket.version)
        if ticket.error is None:
            meter.ended("ok")
            took = ticket.finished - ticket.created
            meter.request_seconds.add(took)
            meter.latency.add(took)
            meter.queue_seconds.add(ticket.started - ticket.created)
        else:
            meter.ended(ticket.error.code)
            if not isinstance(ticket.error, Cancelled):  # that the caller went away is no fault of the model
                meter.fault = Fault(time.time(), ticket.error.code, ticket.error.message)
            self.on_error(ticket)

    def batch_ended(self, model: str, version: str, rows: int, run_ns: int) -> None:
        meter = self._meter(model, version)
        meter.run_seconds.add(run_ns / 1e9)
        meter.batch_rows.add(rows)
