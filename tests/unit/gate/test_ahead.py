"""Large inputs are sent to the engine before its lane is free."""

import numpy as np

from appliance.engine.client import EngineDied
from appliance.errors import QueueTimeout
from appliance.gate.ticket import Ticket
from appliance.models.tensors import Tensor, from_array
from tests.support.fake_runner import model_spec
from tests.unit.gate.gate_helpers import Bench, passed
from tests.unit.gate.test_gate import timed

WIDTH = 16 * 1024  # of four bytes: 64 KiB


def wide(value: float, width: int = WIDTH) -> tuple[Tensor, ...]:
    return (from_array("x", np.full((1, width), value, np.float32)),)


def submit(bench: Bench, value: float, *, width: int = WIDTH, queue_s: float = 30.0, run_s: float = 60.0) -> Ticket:
    return bench.queue.submit(f"r{value}", wide(value, width), ("y",), queue_s=queue_s, run_s=run_s)


def warmed(width: int = WIDTH, max_batch: int = 1) -> Bench:
    """A model of which one run has ended, after 2 ms (as FakeRunner says)."""
    bench = Bench(model_spec(max_batch=max_batch, width=width))
    submit(bench, 0, width=width)
    bench.runner.finish()
    return bench


def sent(bench: Bench) -> list[float]:
    """The values of the runs that the engine has, in order."""
    return [float(np.frombuffer(run.items[0][0].data, np.float32)[0]) for run in bench.runner.open.values()]


@timed
async def test_one_run_is_sent_ahead_and_the_others_wait() -> None:
    bench = warmed()
    for value in (1, 2, 3, 4):
        submit(bench, value)
    assert sent(bench) == [1, 2]
    bench.runner.finish()
    assert sent(bench) == [2, 3]


@timed
async def test_nothing_is_sent_ahead_before_a_run_s_time_is_known_or_with_small_inputs() -> None:
    fresh = Bench(model_spec(max_batch=1, width=WIDTH))
    for value in (1, 2):
        submit(fresh, value)
    assert sent(fresh) == [1]
    small = warmed(width=WIDTH - 1)
    for value in (1, 2):
        submit(small, value, width=WIDTH - 1)
    assert sent(small) == [1]


@timed
async def test_a_run_that_others_could_still_join_is_not_sent_ahead() -> None:
    bench = warmed(max_batch=2)
    first, second = submit(bench, 1), submit(bench, 2)
    assert (first.state, second.state) == ("running", "queued")
    submit(bench, 3)
    assert [run.rows for run in bench.runner.open.values()] == [1, 2]


@timed
async def test_the_run_deadline_counts_from_when_the_lane_is_free() -> None:
    bench = warmed()
    submit(bench, 1, run_s=60)
    ahead = submit(bench, 2, run_s=1)
    await passed(5)
    assert ahead.state == "running"
    bench.runner.finish()
    assert ahead.run_deadline == ahead.started + 1
    assert ahead.started == ahead.created + 5
    await passed(0.9)
    assert not ahead.finished
    await passed(0.2)
    assert ahead.error is not None and ahead.error.code == "inference_timeout"


@timed
async def test_the_queue_deadline_goes_on_until_it_begins() -> None:
    bench = warmed()
    submit(bench, 1)
    ahead = submit(bench, 2, queue_s=3)
    await passed(3.1)
    assert isinstance(ahead.error, QueueTimeout)
    run = list(bench.runner.open.values())[1]
    assert run.cancelled == 1
    await passed(20)
    assert bench.hangs == [], "it could not end before it began"
    bench.runner.finish()
    await passed(5.1)
    assert len(bench.hangs) == 1


@timed
async def test_a_death_is_not_held_against_what_had_not_begun() -> None:
    bench = warmed()
    running, ahead = submit(bench, 1), submit(bench, 2)
    bench.engine_dies()
    assert (running.deaths, ahead.deaths) == (1, 0)
    bench.engine_returns()
    assert sent(bench) == [1], "the suspect has the engine to itself"
    bench.runner.finish()
    assert sent(bench) == [2]
    bench.runner.finish()
    assert bench.counters() == (0, 0)
    assert not isinstance(ahead.error, EngineDied) and ahead.state == "done"


@timed
async def test_a_caller_that_leaves_takes_back_what_was_sent_ahead() -> None:
    bench = warmed()
    submit(bench, 1)
    ahead = submit(bench, 2)
    bench.queue.cancel(ahead)
    assert [run.cancelled for run in bench.runner.open.values()] == [0, 1]
    assert ahead.error is not None and ahead.error.code == "cancelled"
