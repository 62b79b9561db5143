"""What a run costs: each source in its order, values worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.messages import CostPoint
from appliance.gate.costs import Cost, Learned, Profile, Samples, interpolate

MIB = 1 << 20
A = ((3, 32, 32),)  # 3072 elements
MOST = 1 << 40


def measured(*points: tuple[int, int], bucket: tuple[tuple[int, ...], ...] = A) -> Profile:
    profile = Profile()
    for batch, size in points:
        profile.measured(bucket, batch, size * MIB)
    return profile


def test_the_declared_cost_goes_before_all() -> None:
    profile = Profile((100 * MIB, 10 * MIB))
    profile.measured(A, 1, 5 * MIB)
    assert profile.cost(A, 1, 0) == Cost(110 * MIB, "declared", 110 * MIB)
    assert profile.cost(A, 8, 0) == Cost(180 * MIB, "declared", 180 * MIB)


def test_measured_and_interpolated() -> None:
    profile = measured((1, 10), (2, 14), (4, 30))
    assert profile.cost(A, 2, 0) == Cost(14 * MIB, "measured", 14 * MIB)
    assert profile.cost(A, 3, 0) == Cost(22 * MIB, "interpolated", 14 * MIB)
    # Beyond the largest: the last slope is 8 a row, the proportion 7.5; the steeper counts.
    assert profile.cost(A, 8, 0) == Cost(62 * MIB, "interpolated", 30 * MIB)


@pytest.mark.parametrize(
    ("points", "batch", "size"),
    [
        ({4: 100}, 1, 100),  # below the smallest: as much as the smallest
        ({2: 10, 6: 20}, 3, 13),  # 12.5, rounded up
        ({2: 10, 6: 20}, 4, 15),
        ({2: 10, 6: 20}, 6, 20),
        ({4: 100}, 8, 200),  # one point: in proportion
        ({1: 100, 2: 100}, 4, 200),  # flat: in proportion all the same
        ({1: 10, 2: 100}, 3, 190),  # the slope
        ({1: 100, 2: 10}, 4, 20),
        ({1: 0}, 16, 0),
    ],
)
def test_interpolation(points: dict[int, int], batch: int, size: int) -> None:
    assert interpolate(points, batch) == size


def test_other_shapes_cost_no_less_than_the_next_smaller_measured_one_suggests() -> None:
    profile = measured((1, 10), (2, 20))
    smaller, larger = ((3, 16, 16),), ((3, 64, 64),)
    assert profile.cost(smaller, 2, 100) == Cost(20 * MIB, "interpolated", 100)
    assert profile.cost(larger, 1, 100) == Cost(40 * MIB, "interpolated", 100)
    assert profile.cost(larger, 1, 50 * MIB) == Cost(50 * MIB, "interpolated", 50 * MIB)


def test_the_nearest_of_several_measured_shapes() -> None:
    profile = measured((1, 10))
    profile.measured(((3, 64, 64),), 1, 100 * MIB)
    assert profile.cost(((3, 48, 48),), 1, 0).size == 100 * MIB
    assert profile.cost(((3, 8, 8),), 1, 0).size == 10 * MIB
    assert profile.cost(((3, 128, 128),), 1, 0).size == 400 * MIB


def test_a_warm_up_with_single_elements_says_nothing_of_large_shapes() -> None:
    profile = measured((1, 20), bucket=((3, 1, 1),))
    image = 3 * 640 * 640 * 4
    assert profile.cost(((3, 640, 640),), 1, image) == Cost(20 * MIB + 4 * image, "interpolated", image)


def test_another_number_of_inputs_is_another_model_s_matter() -> None:
    profile = measured((1, 20))
    assert profile.cost((A[0], A[0]), 1, 10 * MIB) == Cost(40 * MIB, "estimated", 10 * MIB)


def test_estimated_from_the_tensors_and_never_nothing() -> None:
    assert Profile().cost(A, 1, 10 * MIB) == Cost(40 * MIB, "estimated", 10 * MIB)
    assert Profile().cost(A, 1, 0) == Cost(MIB, "estimated", 0)
    assert measured((1, 0)).cost(A, 1, 0) == Cost(MIB, "measured", 0)


def test_an_out_of_memory_raises_the_cost_of_that_batch_and_larger_ones() -> None:
    profile = measured((1, 10), (2, 20), (4, 40))
    assert profile.cost(A, 2, 0).size == 20 * MIB
    profile.ran_out(A, 2, 20 * MIB, MOST)
    assert [profile.cost(A, n, 0).size // MIB for n in (1, 2, 4)] == [10, 30, 40]
    assert profile.cost(A, 2, 0).least == 20 * MIB, "what is sure stays what was measured"
    profile.ran_out(A, 2, 30 * MIB, MOST)
    assert [profile.cost(A, n, 0).size // MIB for n in (1, 2, 4)] == [10, 45, 45]
    profile.ran_out(A, 2, 20 * MIB, MOST)
    assert profile.cost(A, 2, 0).size == 45 * MIB, "never lowered"
    profile.ran_out(A, 4, 0, MOST)
    assert profile.cost(A, 4, 0).size == 45 * MIB


def test_it_is_raised_to_what_the_device_has_and_no_further() -> None:
    profile = Profile((10 * MIB, 0))
    for _ in range(20):
        profile.ran_out(A, 1, profile.cost(A, 1, 0).size, 100 * MIB)
    assert profile.cost(A, 1, 0) == Cost(100 * MIB, "declared", 10 * MIB)


def test_what_was_learned_outlives_the_engine() -> None:
    old = Profile((10 * MIB, 0))
    old.ran_out(A, 1, 10 * MIB, MOST)
    assert Profile((10 * MIB, 0), old).cost(A, 1, 0).size == 15 * MIB


def test_events_of_very_many_shapes_are_not_all_kept() -> None:
    profile = Profile()
    for n in range(3000):
        profile.ran_out(((n,),), 1, 10 * MIB, MOST)
    assert len(profile._floor) <= 1024
    assert profile.cost(((2999,),), 1, 0).size == 15 * MIB
    for n in range(3000):
        profile.cost(((n,),), 1, 0)
    assert len(profile._known) <= 1024


@given(
    st.dictionaries(st.integers(1, 64), st.integers(0, 10**9), min_size=1, max_size=6),
    st.integers(1, 200),
    st.integers(1, 10**8),
)
def test_a_cost_is_never_below_what_is_sure(points: dict[int, int], batch: int, tensor_bytes: int) -> None:
    profile = Profile()
    highest = 0
    for n in sorted(points):
        highest = max(highest, points[n])  # as the warm-up reports them: never falling
        profile.measured(A, n, highest)
    cost = profile.cost(A, batch, tensor_bytes)
    assert cost.size >= cost.least >= 0 and cost.size >= MIB
    assert profile.cost(A, batch + 1, tensor_bytes).size >= cost.size
    other = profile.cost(((5, 7),), batch, tensor_bytes)
    assert other.size >= other.least == tensor_bytes


def test_what_runs_were_seen_to_take_raises_what_was_too_little() -> None:
    profile = measured((1, 10), (2, 20), (4, 40))
    assert not profile.observed(A, 2, 0, MOST), "nothing new"
    assert profile.observed(A, 2, 20 * MIB, MOST)
    assert profile.cost(A, 2, 0) == Cost(20 * MIB, "measured", 20 * MIB), "it was enough"
    assert profile.observed(A, 2, 30 * MIB, MOST)
    assert [profile.cost(A, n, 0).size // MIB for n in (1, 2, 4)] == [10, 39, 40], "30 and 30 %"
    assert profile.cost(A, 2, 0).least == 20 * MIB, "a raise is no reason to refuse"
    profile.observed(A, 2, 200 * MIB, 220 * MIB)
    assert [profile.cost(A, n, 0).size // MIB for n in (1, 2, 4)] == [10, 220, 220], "bounded by the device"
    other = ((3, 16, 16),)
    assert profile.cost(other, 2, 0).size == 20 * MIB, "another bucket is another matter"


def test_the_newest_64_samples_count() -> None:
    profile = measured((1, 10))
    profile.observed(A, 1, 100 * MIB, MOST)
    for _ in range(60):
        profile.observed(A, 1, 8 * MIB, MOST)
    assert profile.cost(A, 1, 0).size == 10 * MIB, "one of 61 is beyond the 95th percentile"
    for _ in range(4):
        profile.observed(A, 1, 20 * MIB, MOST)
    assert profile.cost(A, 1, 0).size == 26 * MIB, "four of the last 64 are not"
    for _ in range(61):
        profile.observed(A, 1, 8 * MIB, MOST)
    assert profile.cost(A, 1, 0).size == 10 * MIB, "and never below what was measured"


def test_an_operator_s_word_is_not_doubted_by_what_is_seen() -> None:
    profile = Profile((10 * MIB, 0))
    profile.observed(A, 1, 100 * MIB, MOST)
    assert profile.cost(A, 1, 0).size == 10 * MIB
    profile.ran_out(A, 1, 10 * MIB, MOST)
    assert profile.cost(A, 1, 0).size == 15 * MIB


def test_what_was_learned_is_kept_and_recalled() -> None:
    old = measured((1, 10))
    old.ran_out(A, 4, 40 * MIB, MOST)
    old.observed(A, 1, 20 * MIB, 1000 * MIB)
    kept = old.learned("cuda:0")
    assert kept == Learned("cuda:0", (CostPoint(A, 4, 60 * MIB),), (Samples(A, 1, (20 * MIB,), 1000 * MIB),))
    new = measured((1, 10))
    new.cost(A, 1, 0)
    new.recall(kept)
    assert [new.cost(A, n, 0).size // MIB for n in (1, 4)] == [26, 60]
    assert new.learned("cuda:0") == kept


def test_what_is_kept_is_bounded() -> None:
    profile = Profile()
    for n in range(3000):
        profile.observed(((n,),), 1, n, MOST)
        profile.observed(A, n, n, MOST)
        profile.ran_out(((n,),), 1, n * MIB, MOST)
    kept = profile.learned("cpu")
    assert (len(kept.floors), len(kept.samples)) == (1024, 256)
    assert sum(len(w) for w in profile._seen.values()) <= 1024 + 64


@given(
    st.dictionaries(st.integers(1, 8), st.integers(0, 10**9), max_size=4),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 10**9)), max_size=80),
    st.integers(1, 10**9),
)
def test_samples_never_lower_a_cost_and_never_lift_it_over_the_device(
    points: dict[int, int], samples: list[tuple[int, int]], most: int
) -> None:
    plain, profile = Profile(), Profile()
    for one in (plain, profile):
        for n, size in points.items():
            one.measured(A, n, size)
    for n, size in samples:
        profile.observed(A, n, size, most)
    for n in range(1, 10):
        before, after = plain.cost(A, n, 1000), profile.cost(A, n, 1000)
        assert before.size <= after.size <= max(before.size, most)
        assert (after.source, after.least) == (before.source, before.least)
