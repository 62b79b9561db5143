"""How many items are worth merging, from times that are given."""

import pytest

from appliance.engine.batch_speed import best, good_batch


class Clock:
    """Time that passes only while a run of a known length goes on."""

    def __init__(self, times: dict[int, list[float]]) -> None:
        self.now = 0.0
        self.times = times
        self.ran: list[int] = []

    def __call__(self) -> float:
        return self.now

    def run(self, size: int) -> None:
        self.ran.append(size)
        self.now += self.times[size].pop(0)


@pytest.mark.parametrize(
    ("times", "largest", "expected"),
    [
        ({1: 0.010, 2: 0.018, 4: 0.040}, 4, 2),  # each 10, 9, 10 ms
        ({1: 0.010, 2: 0.0198, 4: 0.0392}, 4, 1),  # each 10, 9.9, 9.8: no gain worth waiting for
        ({1: 0.010, 2: 0.012, 4: 0.016, 6: 0.021}, 6, 6),  # each 10, 6, 4, 3.5
        ({1: 0.010, 2: 0.011}, 16, 16),  # 4 and more were not measured, and 2 gained
        ({1: 0.010, 2: 0.024}, 16, 1),  # not measured, and nothing to be hoped for
        ({1: 0.0001, 2: 0.00025, 4: 0.0006}, 4, 4),  # so quick that what is around a run counts more
    ],
)
def test_the_smallest_size_that_is_as_good_as_any(times: dict[int, float], largest: int, expected: int) -> None:
    assert best(times, largest) == expected


def test_each_size_is_run_twice_and_the_quicker_counts() -> None:
    clock = Clock({1: [0.010, 0.010], 2: [0.9, 0.012], 3: [0.030, 0.031]})
    assert good_batch(clock.run, 3, clock) == 2
    assert clock.ran == [1, 1, 2, 2, 3, 3]


def test_what_would_take_too_long_is_not_measured() -> None:
    clock = Clock({1: [0.2, 0.2], 2: [0.3, 0.3], 4: [0.5, 0.5], 8: [1, 1]})
    assert good_batch(clock.run, 8, clock) == 8
    assert clock.ran == [1, 1, 2, 2], "a run of 4 would take some 0.6 s, twice, and 0.5 are left"
