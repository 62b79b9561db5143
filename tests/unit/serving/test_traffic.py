"""Rates and percentiles from counters, and the history's samples."""

from itertools import pairwise

import pytest

from appliance.model_metrics import LATENCY, LanguageMeter, ModelMeter
from appliance.serving.history import KEPT, History, MemoryReading, Reading
from appliance.serving.traffic import Figures, Traffic, percentile


class Bench:
    """Meters and a clock in the test's hands."""

    def __init__(self) -> None:
        self.now = 100.0
        self.meters = {("a", "1"): ModelMeter()}
        self.traffic = Traffic(lambda: self.meters, lambda: self.now)

    def ends(self, *seconds: float, model: str = "a", failed: int = 0) -> None:
        meter = self.meters.setdefault((model, "1"), ModelMeter())
        for took in seconds:
            meter.ended("ok")
            meter.latency.add(took)
        for _ in range(failed):
            meter.ended("model_error")


def test_percentile_within_its_bucket() -> None:
    bounds = (1.0, 2.0, 4.0)
    assert percentile([0, 0, 0, 0], 0.5, bounds) is None
    assert percentile([0, 10, 0, 0], 0.5, bounds) == pytest.approx(1.5)
    assert percentile([5, 0, 5, 0], 0.5, bounds) == pytest.approx(1.0)
    assert percentile([5, 0, 5, 0], 0.75, bounds) == pytest.approx(3.0)
    assert percentile([0, 0, 0, 3], 0.99, bounds) == 4.0, "over the last bound counts as it"
    assert percentile([99, 1, 0, 0], 0.99, bounds) == pytest.approx(1.0)


def test_the_bounds_are_fine_enough() -> None:
    assert LATENCY[0] == pytest.approx(1e-5) and LATENCY[-1] > 590
    assert all(b / a == pytest.approx(1.05) for a, b in pairwise(LATENCY))


def test_rates_and_percentiles_since_the_last_mark() -> None:
    bench = Bench()
    bench.ends(*[0.010] * 98, 0.5, 0.5, failed=10)
    bench.now += 5
    figures = bench.traffic.mark()
    assert figures.requests_per_s == 22.0, "110 in 5 s"
    assert figures.p50_ms == pytest.approx(10, rel=0.05) and figures.p99_ms == pytest.approx(500, rel=0.05)
    bench.now += 5
    assert bench.traffic.mark() == Figures(), "nothing since"


def test_all_that_fail_have_a_rate_but_no_percentile() -> None:
    bench = Bench()
    bench.ends(failed=5)
    bench.now += 5
    assert bench.traffic.mark() == Figures(1.0, None, None)


def test_the_moment_is_the_last_ten_to_fifteen_seconds() -> None:
    bench = Bench()
    for _ in range(4):
        bench.now += 5
        bench.traffic.mark()
    bench.ends(*[0.01] * 30)
    bench.ends(*[0.02] * 10, model="b")
    bench.now += 0.0
    each, together = bench.traffic.figures()
    assert together.requests_per_s == 4.0, "40 since the mark of 10 s ago"
    assert each["a", "1"].requests_per_s == 3.0 and each["b", "1"].requests_per_s == 1.0
    assert each["b", "1"].p50_ms == pytest.approx(20, rel=0.05)
    for _ in range(3):
        bench.now += 5
        bench.traffic.mark()
    assert bench.traffic.figures()[1] == Figures(), "they are over"


def test_asked_twice_in_a_moment_it_is_worked_out_once() -> None:
    bench = Bench()
    bench.now += 5
    first = bench.traffic.figures()
    assert bench.traffic.figures() is first
    bench.now += 0.5
    assert bench.traffic.figures() is not first


def sampled() -> tuple[Bench, History, dict[str, Reading]]:
    bench = Bench()
    state = {"now": Reading(0, 0, 0, {})}
    return bench, History(bench.traffic, lambda: state["now"], lambda: bench.now), state


def test_history_tells_columns() -> None:
    bench, history, state = sampled()
    assert history.columns()["at"] == [] and history.columns()["memory"] == {}
    history.take()
    bench.ends(*[0.01] * 10, failed=2)
    bench.now += 5
    state["now"] = Reading(3, 1, 2, {"cpu": MemoryReading(100, 10, 20)})
    history.take()
    assert history.columns() == {
        "every_s": 5.0,
        "at": [100.0, 105.0],
        "waiting": [0, 3],
        "running": [0, 1],
        "requests_per_s": [0.0, 2.4],
        "p50_ms": [None, pytest.approx(10, rel=0.05)],
        "p99_ms": [None, pytest.approx(10, rel=0.05)],
        "errors": [0, 2],
        "memory": {"cpu": {"total": [None, 100], "ours": [None, 10], "others": [None, 20]}},
    }
    assert history.columns(100.0)["at"] == [105.0], "only what is newer"
    assert history.columns(105.0)["at"] == []


def test_history_is_bounded() -> None:
    bench, history, _ = sampled()
    for _ in range(KEPT + 50):
        bench.now += 5
        history.take()
    found = history.columns()["at"]
    assert len(found) == 180 and found[-1] - found[0] == 179 * 5


def test_tokens_of_language_models_have_a_rate_once_one_was_asked() -> None:
    bench = Bench()
    meter = bench.meters["a", "1"].language = LanguageMeter()
    meter.began(100, 1, 0.5)
    meter.went_on(49, 1.0)
    bench.now += 5
    each, all_together = bench.traffic.figures()
    assert (each["a", "1"].tokens_in_per_s, each["a", "1"].tokens_out_per_s) == (20.0, 10.0)
    assert all_together.tokens_in_per_s == 20.0
    assert meter.inter_token_seconds.count == 49 and meter.inter_token_seconds.sum == pytest.approx(1.0)
    assert meter.first_token_seconds.sum == 0.5
    bench.traffic.mark()
    bench.now += 5
    bench.meters["b", "1"] = ModelMeter()
    assert bench.traffic.mark().tokens_out_per_s == 0.0, "nothing since"
    assert bench.traffic.figures()[0]["b", "1"].tokens_in_per_s is None, "no language model"
