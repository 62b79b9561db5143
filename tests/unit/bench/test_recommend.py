"""The search for better settings, driven by scripted measurements."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from appliance.bench.faults import BenchError
from appliance.bench.recommend import (
    Bounds,
    Goal,
    Outcome,
    Setting,
    Tried,
    candidates,
    compare,
    read_goal,
    scores,
    search,
    told,
)
from appliance.bench.stages import Stage
from tests.unit.bench.test_stages import round_of

FREE = Bounds(clients=8, max_instances=4, merges=True)


def driven(
    start: Setting, bounds: Bounds, measure: Callable[[Setting, int], Outcome], goal: Goal | None = None
) -> tuple[Setting, list[Tried], list[Setting]]:
    """(best, tried, all that was measured). ``measure`` gets how often this setting was measured before."""
    asked: list[Setting] = []
    steps = search(start, bounds, goal or Goal())
    try:
        setting = next(steps)
        while True:
            before = asked.count(setting)
            asked.append(setting)
            setting = steps.send(measure(setting, before))
    except StopIteration as end:
        return *end.value, asked


def around(value: float) -> Outcome:
    return Outcome((value - 1, value, value + 1))


def test_goals() -> None:
    assert read_goal("throughput") == Goal()
    assert read_goal("latency:20ms") == Goal(20.0)
    assert read_goal("latency:1.5s") == Goal(1500.0)
    for wrong in ("", "latency", "latency:20", "latency:0ms", "latency:-1ms", "speed", "throughput "):
        with pytest.raises(BenchError, match="latency:20ms"):
            read_goal(wrong)


def test_scores_are_the_best_throughput_within_the_bound() -> None:
    stages = [
        Stage(1, (round_of(per_second=100.0, p99_ms=10.0), round_of(per_second=90.0, p99_ms=12.0))),
        Stage(2, (round_of(per_second=150.0, p99_ms=20.0), round_of(per_second=160.0, p99_ms=21.0))),
    ]
    assert scores(Goal(), stages) == (150.0, 160.0)
    assert scores(Goal(20.0), stages) == (150.0, 90.0)  # the second round's 21 ms are too many
    assert scores(Goal(8.0), stages) == (-1.25, -1.5)  # none keeps it: 10/8 and 12/8
    silent = [Stage(1, (round_of(answers=0, per_second=0.0, p99_ms=0.0, errors={"queue_full": 9}),))]
    assert scores(Goal(8.0), silent) == (float("-inf"),)
    assert scores(Goal(), silent) == (float("-inf"),)
    assert told(Goal(), 1234.4) == "1,234/s"
    assert told(Goal(8.0), -1.5) == "p99 12 ms"


def test_compare() -> None:
    assert compare((5.0, 6.0), (1.0, 4.0)) == "better"
    assert compare((1.0, 4.0), (5.0, 6.0)) == "worse"
    assert compare((1.0, 5.0), (5.0, 6.0)) == "within the noise"


def test_candidates() -> None:
    at = Setting(batch=16, instances=2)
    up, down = candidates("batch", at, FREE, Goal())
    assert up == []  # eight clients never fill more than eight
    assert [one.batch for one in down] == [4, 2, 1]
    up, down = candidates("batch", Setting(2, 1), FREE, Goal())
    assert [one.batch for one in up] == [4, 8] and [one.batch for one in down] == [1]
    up, down = candidates("instances", at, FREE, Goal())
    assert [one.instances for one in up] == [4] and [one.instances for one in down] == [1]
    up, down = candidates("delay_ms", Setting(4, 1, 2.0), FREE, Goal())
    assert [one.delay_ms for one in up] == [5.0, 10.0] and [one.delay_ms for one in down] == [1.0, 0.0]
    up, _ = candidates("delay_ms", Setting(4, 1), FREE, Goal(4.0))
    assert [one.delay_ms for one in up] == [1.0, 2.0]  # half of the bound
    assert candidates("delay_ms", Setting(1, 1), FREE, Goal()) == ([], [])  # nothing to wait for


def test_each_variable_climbs_by_itself() -> None:
    """Throughput 100·batch^½ for batches up to 4, twice that for two instances, no more for four; delays hurt."""

    def measure(setting: Setting, _: int) -> Outcome:
        value = 100.0 * min(setting.batch, 4) ** 0.5 * min(setting.instances, 2) - 20 * setting.delay_ms
        return around(value)

    best, tried, asked = driven(Setting(1, 1), FREE, measure)
    assert best == Setting(4, 2)
    assert best.changes(Setting(1, 1)) == {("batching", "max"): 4, ("instances",): 2}
    assert [(t.setting, t.verdict) for t in tried] == [
        (Setting(1, 1), "as it is"),
        (Setting(2, 1), "better"),  # 141
        (Setting(4, 1), "better"),  # 200
        (Setting(8, 1), "within the noise"),
        (Setting(4, 2), "better"),  # 400
        (Setting(4, 4), "within the noise"),
        (Setting(4, 2, 1.0), "worse"),  # 380
    ]
    for before, after in pairwise(tried):
        held = [t.setting for t in tried[: tried.index(after)] if t.taken][-1]
        assert len(after.setting.changes(held)) == 1, before
    # Whatever was taken over was followed by the one it was taken for.
    assert asked[1:3] == [Setting(2, 1), Setting(1, 1)]


def test_what_is_good_stays() -> None:
    best, tried, _ = driven(Setting(8, 2, 0.0), FREE, lambda setting, _: around(100.0))
    assert best == Setting(8, 2, 0.0)
    assert [t.setting for t in tried[1:]] == [
        Setting(4, 2),  # no more than 8 for 8 clients, so only fewer
        Setting(8, 4),
        Setting(8, 1),
        Setting(8, 2, 1.0),
    ]
    assert {t.verdict for t in tried[1:]} == {"within the noise"}


def test_a_machine_that_gets_quieter_is_no_better_setting() -> None:
    """All settings are equal, but from the second measurement on everything is twice as fast."""
    count = 0

    def measure(_: Setting, __: int) -> Outcome:
        nonlocal count
        count += 1
        return around(100.0 if count == 1 else 200.0)

    best, tried, asked = driven(Setting(4, 1), Bounds(4, 1, True), measure)
    assert best == Setting(4, 1)
    assert asked[:3] == [Setting(4, 1), Setting(2, 1), Setting(4, 1)]
    assert tried[1].verdict == "no better than the present one measured again"
    assert tried[2].verdict == "within the noise"  # held against what was measured again


def test_a_setting_that_does_not_load_ends_its_direction() -> None:
    def measure(setting: Setting, _: int) -> Outcome:
        return Outcome(fault="not enough memory") if setting.instances > 1 else around(10.0)

    best, tried, _ = driven(Setting(1, 1), Bounds(8, 8, False), measure)
    assert best == Setting(1, 1)
    assert [(t.setting.instances, t.fault) for t in tried] == [(1, None), (2, "not enough memory")]


def test_nothing_is_varied_where_the_start_fails() -> None:
    best, tried, asked = driven(Setting(1, 1), FREE, lambda *_: Outcome(fault="no"))
    assert (best, len(tried), asked) == (Setting(1, 1), 1, [Setting(1, 1)])


def test_unmergeable_models_have_instances_only() -> None:
    _, _, asked = driven(Setting(1, 1), Bounds(8, 2, False), lambda s, _: around(10.0 * s.instances))
    assert {one.batch for one in asked} == {1} and {one.instances for one in asked} == {1, 2}
