"""What ordinary runs are seen to take: whose a growth is, and what becomes of it. Values worked out by hand."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.gate.peaks import Seen, Watch, p95, raised

MIB = 1 << 20


@dataclass(eq=False)
class Run:
    kind: object
    model: str = "m"
    overlaps: bool = False


A, B = object(), object()


@pytest.fixture
def watch() -> Watch:
    """A model that holds 100 beyond its weights; the device's level is 1000."""
    watch = Watch(least=10)
    watch.loaded("m", 100)
    assert watch.read(1000, True, []) is None
    return watch


def test_a_run_that_is_seen_while_it_runs(watch: Watch) -> None:
    run = Run(A)
    watch.began(run, 0)
    assert watch.read(1300, False, [run]) == Seen(run, 100 + 300)
    assert watch.read(1000, True, []) is None, "it has given it back"
    watch.began(run, 0)
    assert watch.read(1250, False, [run]) == Seen(run, 350)


def test_an_allocator_that_keeps_it_shows_it_afterwards_and_once(watch: Watch) -> None:
    run, small = Run(A), Run(B)
    watch.began(run, 0)
    assert watch.read(1300, True, []) == Seen(run, 400)
    watch.began(small, 0)
    assert watch.read(1300, True, []) is None, "a small run finds it there: that says nothing of it"
    watch.began(run, 0)
    assert watch.read(1500, True, []) == Seen(run, 100 + 300 + 200)
    watch.began(run, 0)
    assert watch.read(1100, True, []) is None, "the arena has shrunk"
    watch.began(run, 0)
    assert watch.read(1300, True, []) == Seen(run, 400)


def test_many_of_one_kind_are_one_taker(watch: Watch) -> None:
    first, second = Run(A), Run(A)
    watch.began(first, 0)
    watch.began(second, 1)  # sent ahead: one lane runs one after the other
    assert watch.read(1300, False, [first, second]) == Seen(first, 400)


@pytest.mark.parametrize(
    "others",
    [[Run(B)], [Run(A, overlaps=True)], [Run(A), Run(B), Run(A)]],
    ids=["another kind", "two at once", "one of many"],
)
def test_with_several_takers_nothing_is_told(watch: Watch, others: list[Run]) -> None:
    watch.began(Run(A), 0)
    for run in others:
        watch.began(run, 1)
    assert watch.read(1300, False, []) is None
    assert watch.read(1300, True, []) is None
    run = Run(A)
    watch.began(run, 0)
    assert watch.read(1400, False, []) == Seen(run, 100 + 100), (
        "from the new level on; who holds the rest is not known"
    )


def test_one_after_the_other_on_several_lanes(watch: Watch) -> None:
    for _ in range(2):
        watch.began(Run(A, overlaps=True), 0)
    assert watch.read(1300, False, []) is not None


def test_noise_is_none(watch: Watch) -> None:
    watch.began(Run(A), 0)
    assert watch.read(1010, False, []) is None
    assert watch.read(1011, False, []) is not None


def test_without_a_level_nothing_is_told(watch: Watch) -> None:
    fresh = Watch(0)
    fresh.began(Run(A), 0)
    assert fresh.read(5000, False, []) is None
    for change in (lambda: watch.loaded("n", 0), lambda: watch.unloaded("n"), watch.cleared):
        watch.read(1000, True, [])
        change()
        watch.began(Run(A), 0)
        assert watch.read(5000, False, []) is None


def test_a_load_beside_it_spoils_it(watch: Watch) -> None:
    run = Run(A)
    watch.began(run, 0)
    assert watch.read(5000, False, [run, ("file", "f1")]) is None
    assert watch.read(5000, False, [run]) is None
    watch.read(5000, True, [("file", "f1")])
    watch.began(run, 0)
    assert watch.read(9000, False, []) is None


def test_what_was_sent_after_the_reading_belongs_to_the_new_level(watch: Watch) -> None:
    run = Run(A)
    watch.began(run, 0)
    assert watch.read(1000, True, [run]) is None
    assert watch.read(1300, False, [run]) == Seen(run, 400)
    watch.read(1000, True, [Run(A), Run(B)])
    assert watch.read(1300, False, []) is None


def test_p95() -> None:
    assert p95([7]) == 7
    assert p95(list(range(1, 20))) == 19, "of fewer than 20 the largest"
    assert p95(list(range(1, 21))) == 19
    assert p95([100, *[5] * 63]) == 5, "one of 64 is noise"
    assert p95([100, 100, 100, *[5] * 61]) == 5
    assert p95([100, 100, 100, 100, *[5] * 60]) == 100


def test_raised() -> None:
    assert raised(100, 100, 10**6) == 100, "what was enough stays"
    assert raised(101, 100, 10**6) == 132  # 131.3, rounded up
    assert raised(1000, 100, 1200) == 1200, "not over what the device has"
    assert raised(1000, 100, 50) == 100, "never below what was booked"


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12))
def test_it_is_bounded(peak: int, booked: int, most: int) -> None:
    found = raised(peak, booked, most)
    assert booked <= found <= max(booked, most)
