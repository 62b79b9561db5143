"""Metrics: one registry a process part, in Prometheus' text format."""

from prometheus_client.parser import text_string_to_metric_families

from appliance.metrics import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        s.name + "".join(f"|{v}" for _, v in sorted(s.labels.items())): s.value for f in families for s in f.samples
    }


def test_two_sets_do_not_share_anything() -> None:
    one, two = Metrics(), Metrics()
    one.waiting.set(3)
    assert samples(one)["appliance_queue_length"] == 3
    assert samples(two)["appliance_queue_length"] == 0


def test_what_is_counted_is_what_is_shown() -> None:
    metrics = Metrics()
    metrics.requests.labels("m", "1", "ok").inc()
    metrics.requests.labels("m", "1", "queue_timeout").inc(2)
    metrics.run_seconds.labels("m", "1").observe(0.02)
    metrics.batch_rows.labels("m", "1").observe(4)
    found = samples(metrics)
    assert found["appliance_requests_total|ok|m|1"] == 1
    assert found["appliance_requests_total|queue_timeout|m|1"] == 2
    assert found["appliance_run_seconds_bucket|0.025|m|1"] == 1
    assert found["appliance_run_seconds_bucket|0.01|m|1"] == 0
    assert found["appliance_batch_rows_sum|m|1"] == 4


def test_every_metric_says_what_it_is() -> None:
    for family in text_string_to_metric_families(Metrics().text().decode()):
        assert family.name.startswith("appliance_")
        assert family.documentation.endswith(".")
