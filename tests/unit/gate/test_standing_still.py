"""A clock that goes on while nobody is awake: what waits, and what runs, has its time all the same."""

import asyncio

import pytest

from appliance.errors import InferenceTimeout, QueueTimeout
from appliance.gate.limits import stood_still
from appliance.gate.ticket import Ticket
from tests.support.fake_runner import model_spec
from tests.unit.gate.gate_helpers import Bench, passed, timed
from tests.unit.gate.test_ahead import WIDTH, submit


class Sleeper(Bench):
    """A gate whose clock a sleep moves on, while the loop's timers stand still."""

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits)
        self.slept = 0.0
        loop = asyncio.get_running_loop()
        self.gate.clock = lambda: loop.time() + self.slept


@pytest.mark.parametrize(("late", "still"), [(0.0, False), (2.0, False), (2.1, True), (3600.0, True)])
def test_late_by_more_than_a_busy_loop_is(late: float, still: bool) -> None:
    assert stood_still(1000 + late, 1000) == still


@timed
async def test_what_waits_has_its_whole_time_again_and_then_no_more() -> None:
    bench = Sleeper()
    bench.submit()
    waits = bench.submit(queue_s=30)
    await passed(10)
    bench.slept = 3600
    await passed(25)
    assert waits.state == "queued"
    await passed(27)
    assert isinstance(waits.error, QueueTimeout)
    assert 59 < waits.finished - waits.created - 3600 < 61


@timed
async def test_what_runs_too() -> None:
    bench = Sleeper()
    answered, stuck = bench.submit(run_s=20), bench.submit(run_s=20)
    await passed(10)
    bench.slept = 3600
    await passed(15)
    assert answered.state == "running" and not bench.runner.started[0].cancelled
    bench.runner.finish()
    assert answered.state == "done" and stuck.state == "running"
    await passed(21)
    assert isinstance(stuck.error, InferenceTimeout)


@timed
async def test_after_a_sleep_that_was_noticed_nobody_loses_what_it_took() -> None:
    bench = Sleeper()
    bench.submit()
    waits, wish = bench.submit(queue_s=30), bench.submit(queue_s=5)
    await passed(4)
    bench.slept = 25  # less than the deadline of one, more than that of the other
    bench.gate.woke()
    now = bench.gate.clock()
    assert (waits.queue_deadline, wish.queue_deadline) == (now + 30, now + 5)
    await passed(29)
    assert wish.finished == now + 5.001 and not waits.finished
    await passed(2)
    assert isinstance(waits.error, QueueTimeout), "the same sleep counts once"


@timed
async def test_a_crash_gives_back_what_the_model_s_own_settings_give() -> None:
    bench = Bench(queue_timeout_ms=30_000)
    own, short = bench.submit(queue_s=120), bench.submit(queue_s=1)
    await passed(0.5)
    bench.runner.finish()
    assert short.state == "running"
    bench.engine_dies()
    now = bench.gate.clock()
    assert short.queue_deadline == now + 30, "at least the server's: the restart takes its time"
    bench.engine_returns()
    bench.runner.finish()
    third = bench.submit(queue_s=120)
    bench.engine_dies()
    assert third.queue_deadline == bench.gate.clock() + 120
    assert own.state == "done"


def ahead(bench: Bench, queue_s: float) -> Ticket:
    """A run that the engine has, behind one that has its lane."""
    spec = model_spec(max_batch=1, width=WIDTH)
    bench.queue.attach(bench.runner, 7, spec)
    submit(bench, 0)
    bench.runner.finish()
    submit(bench, 1)
    found = submit(bench, 2, queue_s=queue_s)
    assert found.state == "running" and len(bench.runner.open) == 2
    return found


@timed
async def test_what_was_sent_ahead_waits_on_after_a_sleep_and_then_no_more() -> None:
    bench = Sleeper()
    waits = ahead(bench, queue_s=30)
    await passed(10)
    bench.slept = 3600
    await passed(25)
    assert not waits.finished
    await passed(27)
    assert isinstance(waits.error, QueueTimeout)
    assert 59 < waits.finished - waits.created - 3600 < 61


@timed
async def test_what_was_sent_ahead_loses_nothing_by_a_sleep_that_was_noticed() -> None:
    bench = Sleeper()
    waits = ahead(bench, queue_s=30)
    await passed(4)
    bench.slept = 25
    bench.gate.woke()
    assert waits.queue_deadline == bench.gate.clock() + 30
    await passed(29)
    assert not waits.finished
    await passed(2)
    assert isinstance(waits.error, QueueTimeout)


@timed
async def test_a_sleep_takes_nothing_of_what_a_crash_has_given_back() -> None:
    bench = Sleeper(queue_timeout_ms=30_000)
    short = bench.submit(queue_s=1)
    bench.engine_dies()
    bench.gate.woke()
    assert short.queue_deadline == bench.gate.clock() + 30
