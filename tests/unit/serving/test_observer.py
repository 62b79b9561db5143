"""What the gate's ends become: numbers, and the newest fault of a model version."""

import pytest

from appliance.errors import Cancelled, ModelError
from appliance.gate.ticket import Ticket
from appliance.metrics import Metrics
from appliance.serving.observer import MetricsObserver
from tests.support.fake_runner import rows
from tests.support.fake_runner import ticket as fake_ticket


def ended(error: ModelError | Cancelled | None) -> Ticket:
    ticket = fake_ticket(rows(1), created=10.0)
    ticket.started = 10.25
    ticket.resolve(error or rows(1), 11.0)
    return ticket


def test_every_end_counts_and_only_what_went_wrong_is_the_newest_fault() -> None:
    metrics = Metrics()
    observer = MetricsObserver(metrics)
    told: list[Ticket] = []
    observer.on_error = told.append
    for error in (None, ModelError("broken"), Cancelled("the caller went away")):
        observer.request_ended(ended(error))
    meter = metrics.by_model.meter("m", "1")
    assert meter.codes == {"ok": 1, "model_error": 1, "cancelled": 1}
    assert (meter.request_seconds.sum, meter.queue_seconds.sum) == pytest.approx((1.0, 0.25))
    assert meter.request_seconds.count == meter.latency.count == 1
    assert meter.fault is not None
    assert (meter.fault.code, meter.fault.message) == ("model_error", "broken"), "nobody sees who went away"
    assert len(told) == 2
