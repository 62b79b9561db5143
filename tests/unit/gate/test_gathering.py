"""Waiting for more items: only as long as asked for, and only while it is worth it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.gate.gathering import goal_of, hold_s, rows_to_take

SIZES = st.lists(st.integers(1, 64), max_size=5)


@pytest.mark.parametrize(
    ("rows", "goal", "age", "delay", "hold"),
    [
        (1, 8, 0.0, 0.0, 0.0),  # no delay asked for
        (1, 8, 0.002, 0.005, 0.003),
        (7, 8, 0.005, 0.005, 0.0),  # the first has waited long enough
        (8, 8, 0.0, 0.005, 0.0),  # there is nothing to wait for
        (9, 8, 0.0, 0.005, 0.0),
    ],
)
def test_how_long(rows: int, goal: int, age: float, delay: float, hold: float) -> None:
    assert hold_s(rows, goal, age, delay) == pytest.approx(hold)


@pytest.mark.parametrize(
    ("rows", "preferred", "most", "taken"),
    [(5, [], 16, 16), (5, [4, 8], 16, 4), (8, [4, 8], 16, 8), (3, [4, 8], 16, 16), (20, [4, 8], 16, 8)],
)
def test_how_many(rows: int, preferred: list[int], most: int, taken: int) -> None:
    assert rows_to_take(rows, preferred, most) == taken


def test_the_goal() -> None:
    assert (goal_of([], 16), goal_of([4, 8], 16), goal_of([32], 16)) == (16, 8, 16)


@given(st.integers(1, 100), st.integers(1, 64), st.floats(0, 10), st.floats(0, 10))
def test_nobody_is_held_longer_than_the_delay(rows: int, goal: int, age: float, delay: float) -> None:
    assert 0 <= hold_s(rows, goal, age, delay) <= delay
    assert age + hold_s(rows, goal, age, delay) <= max(age, delay) + 1e-9


@given(st.integers(1, 100), SIZES, st.integers(2, 64))
def test_never_more_than_is_filled_or_allowed(rows: int, preferred: list[int], most: int) -> None:
    taken = rows_to_take(rows, [size for size in preferred if size <= most], most)
    assert taken == most or (taken in preferred and taken <= rows)
