"""The gate's formulas."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.gate.limits import DrainRate, retry_after_s, shortened


def test_nothing_is_known_before_two_ends() -> None:
    rate = DrainRate()
    assert rate.wait_s(3) is None
    rate.finished(10.0)
    assert rate.wait_s(3) is None
    rate.finished(10.5)
    assert rate.wait_s(3) == pytest.approx(1.5)
    assert rate.wait_s(0) == 0


def test_the_mean_moves_by_its_weight() -> None:
    rate = DrainRate(weight=0.5)
    for at in (0.0, 1.0, 4.0):  # gaps 1 and 3
        rate.finished(at)
    assert rate.wait_s(1) == pytest.approx(2.0)


def test_idle_time_and_a_clock_set_back_do_not_count() -> None:
    rate = DrainRate()
    for at in (0.0, 1.0, 100.0, 99.0, 100.0):  # 1 s, idle, backwards, 1 s
        rate.finished(at)
    assert rate.wait_s(1) == pytest.approx(1.0)


@given(st.lists(st.floats(0.001, 5.0), min_size=1, max_size=50))
def test_the_estimate_lies_within_what_was_measured(gaps: list[float]) -> None:
    rate, now = DrainRate(), 0.0
    rate.finished(now)
    measured = []
    for gap in gaps:
        measured.append((now + gap) - now)
        now += gap
        rate.finished(now)
    within = [g for g in measured if g <= 5.0]
    if within:
        wait = rate.wait_s(1)
        assert wait is not None
        assert min(within) * (1 - 1e-9) <= wait <= max(within) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("wait", "header"), [(None, 1), (0.0, 1), (0.2, 1), (1.0, 1), (1.01, 2), (59.5, 60), (120.0, 120), (1e9, 120)]
)
def test_retry_after(wait: float | None, header: int) -> None:
    assert retry_after_s(wait) == header


@given(st.floats(0, 1e6))
def test_retry_after_is_whole_bounded_and_not_too_early(wait: float) -> None:
    found = retry_after_s(wait)
    assert found == math.floor(found)
    assert 1 <= found <= 120
    assert found >= min(wait, 120)


@pytest.mark.parametrize(
    ("limit", "wish", "given_"),
    [(30.0, None, 30.0), (30.0, 500, 0.5), (30.0, 60_000, 30.0), (30.0, 0, 30.0), (30.0, -5, 30.0)],
)
def test_a_wish_can_only_shorten(limit: float, wish: float | None, given_: float) -> None:
    assert shortened(limit, wish) == given_
