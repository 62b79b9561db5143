"""Metrics: one registry a process part, in Prometheus' text format."""

import sys
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.metrics import Metrics, Put
from appliance.model_metrics import Tally

COUNTERS = {
    "appliance_requests_total",
    "appliance_refused_total",
    "appliance_inferences_total",
    "appliance_executions_total",
    "appliance_prompt_tokens_total",
    "appliance_generated_tokens_total",
    "appliance_engine_restarts_total",
    "appliance_out_of_memory_total",
}


def samples(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        s.name + "".join(f"|{v}" for _, v in sorted(s.labels.items())): s.value for f in families for s in f.samples
    }


def test_two_sets_do_not_share_anything() -> None:
    one, two = Metrics(), Metrics()
    one.state.add(lambda put: put("queue_length", 3))
    one.refused.labels("queue_full").inc()
    assert samples(one)["appliance_queue_length"] == 3
    assert samples(one)["appliance_refused_total|queue_full"] == 1
    assert "appliance_queue_length" not in samples(two)
    assert samples(two)["appliance_refused_total|queue_full"] == 0


def test_the_state_is_of_the_moment_it_is_asked_for() -> None:
    metrics, there = Metrics(), {"cuda:0": 55.0, "cuda:1": 60.0}

    def source(put: Put) -> None:
        for device, degrees in there.items():
            put("device_temperature_celsius", degrees, device)
        put("engine_restarts", 2, "cpu", "crash")

    metrics.state.add(source)
    assert samples(metrics)["appliance_device_temperature_celsius|cuda:1"] == 60
    del there["cuda:1"]
    there["cuda:0"] = 56
    found = samples(metrics)
    assert found["appliance_device_temperature_celsius|cuda:0"] == 56
    assert "appliance_device_temperature_celsius|cuda:1" not in found
    assert found["appliance_engine_restarts_total|cpu|crash"] == 2


def test_the_text_is_of_the_state_that_was_looked_at() -> None:
    metrics, waiting = Metrics(), [3]
    metrics.state.add(lambda put: put("queue_length", waiting[0]))
    text = metrics.look()
    waiting[0] = 4
    assert b"appliance_queue_length 3.0" in text()
    assert b"appliance_queue_length 4.0" in metrics.text()


def test_the_text_can_be_made_while_requests_end() -> None:
    metrics = Metrics()
    for model in range(20):
        metrics.by_model.meter(f"m{model}", "1")
    text, made = metrics.look(), list[bytes]()
    maker = threading.Thread(target=lambda: made.extend(text() for _ in range(5)), daemon=True)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        maker.start()
        for count in range(10_000):
            meter = metrics.by_model.meter(f"new{count // 200}", "1")
            meter.ended(f"code{count // 10 % 20}")
            meter.batch_rows.add(1)
    finally:
        sys.setswitchinterval(usual)
    maker.join(60)
    assert len(made) == 5
    for page in made:
        for family in text_string_to_metric_families(page.decode()):
            if family.name == "appliance_batch_rows":
                ends = {s.labels["model"]: s.value for s in family.samples if s.labels.get("le") == "+Inf"}
                assert ends == {s.labels["model"]: s.value for s in family.samples if s.name.endswith("_count")}


def test_what_cannot_be_refused_with_is_no_code_and_the_rest_begins_with_nothing() -> None:
    found = {name.partition("|")[2]: value for name, value in samples(Metrics()).items() if "refused" in name}
    assert {"invalid_input", "queue_full", "overloaded", "insufficient_memory", "model_error"} <= set(found)
    assert "cancelled" not in found and "ok" not in found
    assert set(found.values()) == {0}


def test_what_only_goes_up_is_a_counter() -> None:
    for family in Metrics().registry.collect():
        assert (family.type == "counter") == (f"{family.name}_total" in COUNTERS), family.name


def test_what_is_counted_is_what_is_shown() -> None:
    metrics = Metrics()
    meter = metrics.by_model.meter("m", "1")
    meter.ended("ok")
    meter.ended("queue_timeout")
    meter.ended("queue_timeout")
    meter.run_seconds.add(0.02)
    meter.batch_rows.add(4)
    assert metrics.by_model.meter("m", "1") is meter
    found = samples(metrics)
    assert found["appliance_requests_total|ok|m|1"] == 1
    assert found["appliance_requests_total|queue_timeout|m|1"] == 2
    assert found["appliance_run_seconds_bucket|0.025|m|1"] == 1
    assert found["appliance_run_seconds_bucket|0.01|m|1"] == 0
    assert found["appliance_batch_rows_sum|m|1"] == 4
    assert found["appliance_batch_rows_count|m|1"] == 1
    assert found["appliance_inferences_total|m|1"] == 4
    assert found["appliance_executions_total|m|1"] == 1


def test_a_value_on_a_bound_counts_for_it_and_one_over_all_of_them_is_not_lost() -> None:
    tally = Tally((1, 2.5))
    for value in (0.5, 1, 1.01, 2.5, 99):
        tally.add(value)
    assert tally.buckets() == [("1.0", 2), ("2.5", 4), ("+Inf", 5)]
    assert tally.sum == pytest.approx(104.01)


def test_every_metric_says_what_it_is() -> None:
    for family in text_string_to_metric_families(Metrics().text().decode()):
        assert family.name.startswith("appliance_")
        assert family.documentation.endswith(".")
