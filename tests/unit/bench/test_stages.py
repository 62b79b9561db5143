"""Stages, percentiles and noise, against values worked out by hand."""

from typing import Any

import pytest

from appliance.bench.stages import Round, Stage, apart, ladder, percentile, spread


def round_of(**values: Any) -> Round:
    """A round with these values and dull others."""
    plain = {
        "seconds": 1.0,
        "answers": 10,
        "per_second": 10.0,
        "p50_ms": 1.0,
        "p95_ms": 2.0,
        "p99_ms": 3.0,
        "queue_p50_ms": 0.1,
        "queue_p99_ms": 0.2,
        "batch": 1.0,
        "memory_bytes": None,
        "errors": {},
        "client_cpu": 0.1,
    }
    return Round(**{**plain, **values})


@pytest.mark.parametrize(
    ("clients", "stages"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12]), (16, [1, 2, 4, 8, 16])],
)
def test_ladder(clients: int, stages: list[int]) -> None:
    assert ladder(clients) == stages


def test_percentile_is_a_value_that_was_measured() -> None:
    ten = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert percentile(ten, 0.5) == 5.0  # five of ten are at most 5
    assert percentile(ten, 0.51) == 6.0
    assert percentile(ten, 0.95) == 10.0
    assert percentile(ten, 0.9) == 9.0
    assert percentile([7.0], 0.01) == 7.0
    assert percentile(list(map(float, range(1, 201))), 0.99) == 198.0
    assert percentile([], 0.5) == 0.0


def test_spread() -> None:
    assert spread([100.0, 110.0, 90.0]) == pytest.approx(0.2)
    assert spread([100.0, 100.0]) == 0.0
    assert spread([100.0]) is None
    assert spread([0.0, 0.0, 4.0]) is None
    assert spread([-0.5, -1.0, -1.5]) == pytest.approx(1.0)


def test_apart() -> None:
    assert apart([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert apart([4.0, 5.0], [1.0, 3.9])
    assert not apart([1.0, 2.0, 3.0], [3.0, 4.0])  # they touch
    assert not apart([1.0, 9.0], [2.0, 3.0])  # one within the other


def test_a_stage_sums_up_its_rounds() -> None:
    stage = Stage(
        4,
        (
            round_of(per_second=100.0, memory_bytes=7, errors={"queue_full": 2}, batch=None, answers=5),
            round_of(per_second=130.0, memory_bytes=9, errors={"queue_full": 1, "503": 4}, batch=3.0, answers=6),
            round_of(per_second=110.0, memory_bytes=None, batch=2.0, answers=7),
        ),
    )
    assert stage.per_second == 110.0
    assert stage.spread == pytest.approx(30 / 110)
    assert stage.median("batch") == 2.5
    assert stage.memory_bytes == 9
    assert stage.errors == {"queue_full": 3, "503": 4}
    assert stage.answers == 18
    assert Stage(1, (round_of(batch=None),)).median("batch") is None
