"""The gate in virtual time: who runs, who waits, who is told what."""

import asyncio
import sys

import numpy as np
import pytest

from appliance.errors import (
    ApplianceError,
    Cancelled,
    EngineRestarting,
    InferenceTimeout,
    InternalError,
    InvalidInput,
    ModelError,
    ModelNotFound,
    Paused,
    QueueFull,
    QueueTimeout,
    WarmingUp,
)
from appliance.gate import gate as gate_module
from appliance.gate.gate import Gate
from appliance.gate.ticket import Ticket
from appliance.models.tensors import from_array
from tests.support import virtual_time
from tests.support.fake_runner import FakeRunner, model_spec, numbers, rows
from tests.unit.gate.gate_helpers import Bench, Bounds, Ends, passed, timed


async def failure(bench: Bench, ticket: Ticket) -> ApplianceError:
    """The error that the ticket's waiter gets."""
    with pytest.raises(ApplianceError) as caught:
        await bench.queue.result(ticket)
    return caught.value


# --- lanes and batches ---------------------------------------------------------------------------------------


@timed
async def test_a_free_lane_takes_a_request_at_once() -> None:
    bench = Bench()
    ticket = bench.submit(1, 2)
    run = bench.runner.started[0]
    assert (run.handle, run.outputs, run.on_chunk) == (7, ("y",), None)
    assert (ticket.position, ticket.state, bench.counters()) == (0, "running", (0, 1))
    bench.runner.finish()
    assert numbers(await bench.queue.result(ticket)) == [1, 2]
    assert (ticket.state, ticket.run_ns, bench.counters()) == ("done", 2_000_000, (0, 0))
    assert bench.ends.batches == [("m", "1", 2, 2_000_000)]


@timed
async def test_what_waits_when_a_lane_frees_shares_the_next_run_and_each_gets_its_own_back() -> None:
    bench = Bench()
    first = bench.submit(0)
    waiting = [bench.submit(n) for n in (1, 2, 3, 4, 5)]
    assert [t.position for t in waiting] == [1, 2, 3, 4, 5]
    bench.runner.finish()
    assert len(bench.runner.started[1].items) == 4
    bench.runner.finish()
    bench.runner.finish()
    for n, ticket in enumerate([first, *waiting]):
        assert numbers(await bench.queue.result(ticket)) == [n]
    assert [size for _, _, size, _ in bench.ends.batches] == [1, 4, 1]


@timed
async def test_one_item_s_failure_is_its_own() -> None:
    bench = Bench()
    bench.submit(0)
    good, bad = bench.submit(1), bench.submit(2)
    bench.runner.finish()
    run = bench.runner.started[1]
    bench.runner.finish(items=[run.echo()[0], InvalidInput("row 2")])
    assert numbers(await bench.queue.result(good)) == [1]
    assert (await failure(bench, bad)).code == "invalid_input"


@timed
async def test_a_run_s_failure_is_everybody_s_and_each_raises_an_error_of_its_own() -> None:
    bench = Bench()
    bench.submit(0)
    two = [bench.submit(1), bench.submit(2)]
    bench.runner.finish()
    bench.runner.fail(ModelError("broken"))
    errors = [await failure(bench, t) for t in two]
    assert [e.message for e in errors] == ["broken", "broken"]
    assert errors[0] is not errors[1]
    assert bench.counters() == (0, 0)


@timed
async def test_other_shapes_outputs_names_and_unmerged_models_are_not_merged() -> None:
    bench = Bench(model_spec(max_batch=8))
    bench.submit(0)
    x, z = rows(1)[0], from_array("z", np.ones((1, 1), np.float32))
    wide = from_array("x", np.ones((1, 2), np.float32))
    for tensor, outputs in ((x, ("y",)), (wide, ("y",)), (x, ("y", "y2")), (z, ("y",)), (x, ("y",))):
        bench.queue.submit("r", (tensor,), outputs, queue_s=30, run_s=60)
    sizes = []
    while bench.runner.open:
        bench.runner.finish()
        sizes.append(len(bench.runner.started[-1].items))
    assert sizes[0] == 2, "the two that are alike"
    assert len(bench.runner.started) == 5
    alone = Bench(model_spec(max_batch=0))
    for _ in range(3):
        alone.submit(1)
    alone.runner.finish()
    assert len(alone.runner.started[1].items) == 1


@timed
async def test_never_more_runs_than_instances() -> None:
    bench = Bench(model_spec(instances=2, max_batch=0))
    for _ in range(5):
        bench.submit(1)
    assert (len(bench.runner.open), bench.counters()) == (2, (3, 2))
    bench.runner.finish()
    assert (len(bench.runner.open), bench.counters()) == (2, (2, 2))


@timed
async def test_priority_decides_who_is_next() -> None:
    bench = Bench(model_spec(max_batch=0))
    bench.submit(0)
    bench.submit(1, priority=5)
    urgent = bench.submit(2, priority=-5)
    assert urgent.position == 1
    bench.runner.finish()
    assert numbers(bench.runner.started[1].items[0]) == [2]


@timed
async def test_first_axes_that_differ_or_exceed_the_declared_batch_are_refused() -> None:
    bench = Bench(model_spec(batch_limit=2))
    with pytest.raises(InvalidInput, match="batch of 3, the model's limit is 2") as caught:
        bench.submit(1, 2, 3)
    assert caught.value.param == "x"
    two = (rows(1)[0], from_array("z", np.ones((2, 1), np.float32)))
    with pytest.raises(InvalidInput, match="'z' has a batch of 2, input 'x' of 1"):
        bench.queue.submit("r", two, ("y",), queue_s=1, run_s=1)
    assert bench.counters() == (0, 0)
    assert not bench.gate.requests


@timed
async def test_a_run_that_cannot_be_sent_ends_its_requests_and_not_its_lane() -> None:
    bench = Bench(model_spec(max_batch=0))
    bench.submit(0)
    waiting = [bench.submit(n) for n in range(5)]
    bench.runner.refuse = OverflowError("2**70")
    bench.runner.finish()
    for ticket in waiting:
        assert isinstance(await failure(bench, ticket), InternalError)
    direct = bench.submit(9)
    assert isinstance(await failure(bench, direct), InternalError)
    bench.runner.refuse = None
    last = bench.submit(3)
    bench.runner.finish()
    assert numbers(await bench.queue.result(last)) == [3]
    assert bench.counters() == (0, 0)


# --- the queue's limits --------------------------------------------------------------------------------------


@timed
async def test_the_model_s_queue_limit() -> None:
    bench = Bench(queue_per_model=2)
    for _ in range(3):
        bench.submit()
    with pytest.raises(QueueFull, match="2 requests wait for model 'm'") as caught:
        bench.submit()
    assert caught.value.retry_after_s == 1
    assert bench.counters() == (2, 1)


@timed
async def test_the_model_s_own_limit_wins() -> None:
    bench = Bench(model_spec(queue=1), queue_per_model=100)
    bench.submit()
    bench.submit()
    with pytest.raises(QueueFull, match=r"^1 requests"):
        bench.submit()


@timed
async def test_the_limit_of_all_queues_together() -> None:
    bench = Bench(queue_total=3)
    other = bench.gate.queue("n", "1")
    other.attach(bench.runner, 9, model_spec())
    for queue in (bench.queue, bench.queue, other, other, other):
        bench.submit(queue=queue)
    assert bench.counters() == (3, 2)
    for queue in (bench.queue, other):
        with pytest.raises(QueueFull, match="3 requests wait already"):
            bench.submit(queue=queue)


@timed
async def test_retry_after_comes_from_the_measured_rate() -> None:
    bench = Bench(model_spec(max_batch=0), queue_per_model=10)
    for _ in range(11):
        bench.submit()
    for _ in range(5):
        await passed(2)
        bench.runner.finish()
    for _ in range(5):
        bench.submit()
    with pytest.raises(QueueFull) as caught:
        bench.submit()
    assert caught.value.retry_after_s == 20  # ten ahead, one each 2 s


@timed
async def test_requests_that_only_waited_do_not_make_the_rate_look_fast() -> None:
    bench = Bench(model_spec(max_batch=0))
    for _ in range(3):
        bench.submit()
    for _ in range(2):
        await passed(2)
        bench.runner.finish()
    for _ in range(100):
        bench.submit(queue_s=1)
    await passed(1.1)
    assert bench.counters() == (0, 1)
    assert bench.gate.rate.wait_s(1) == pytest.approx(2)


# --- the queue deadline --------------------------------------------------------------------------------------


@timed
async def test_waiting_too_long_says_why() -> None:
    bench = Bench()
    bench.submit(run_s=1000)
    ticket = bench.submit(queue_s=5)
    await passed(4.9)
    assert not ticket.finished
    await passed(0.11)
    error = await failure(bench, ticket)
    assert (error.code, error.status) == ("queue_timeout", 503)
    assert error.message == "waited 5.0 s for model 'm', 0 requests still wait"
    assert bench.counters() == (0, 1)


@timed
async def test_a_shorter_wish_behind_a_longer_one_is_kept() -> None:
    bench = Bench()
    bench.submit(run_s=1000)
    long, short = bench.submit(queue_s=30), bench.submit(queue_s=1)
    await passed(1.01)
    assert isinstance(await failure(bench, short), QueueTimeout)
    assert not long.finished
    await passed(29)
    assert isinstance(await failure(bench, long), QueueTimeout)


@pytest.mark.parametrize(
    ("what", "kind", "least"),
    [("paused", Paused, 1), ("engine", EngineRestarting, 2), ("loading", WarmingUp, 2), ("busy", QueueTimeout, 1)],
)
def test_the_code_names_the_reason(what: str, kind: type[ApplianceError], least: float) -> None:
    async def main() -> None:
        bench = Bench()
        if what == "busy":
            bench.submit(run_s=1000)
        if what == "paused":
            bench.gate.pause()
        if what == "engine":
            bench.engine_dies()
        if what == "loading":
            bench.queue.detach()
        ticket = bench.submit(queue_s=2)
        assert ticket.position == 1
        await passed(2.01)
        error = await failure(bench, ticket)
        assert type(error) is kind
        assert error.status == 503
        assert error.retry_after_s >= least  # type: ignore[attr-defined]
        assert bench.gate.waiting == 0

    virtual_time.run(main())


@timed
async def test_a_model_that_was_never_loaded_is_warming_up() -> None:
    bench = Bench(attach=False)
    with pytest.raises(WarmingUp):
        bench.submit()


# --- the run deadline ----------------------------------------------------------------------------------------


@timed
async def test_a_run_past_its_deadline_is_answered_at_once_and_then_ended() -> None:
    bench = Bench()
    ticket = bench.submit(run_s=3)
    run = bench.runner.started[0]
    await passed(2.99)
    assert not ticket.finished
    await passed(0.02)
    error = await failure(bench, ticket)
    assert (error.code, error.status) == ("inference_timeout", 504)
    assert ticket.finished == pytest.approx(virtual_time.START + 3, abs=0.002)
    assert run.cancelled == 1
    assert bench.counters() == (0, 1), "its lane is not free before it has ended"
    await passed(4.9)
    assert bench.hangs == []
    bench.runner.fail(Cancelled("ended early"))
    await passed(60)
    assert (bench.hangs, bench.counters()) == ([], (0, 0))


@timed
async def test_a_run_that_does_not_end_after_the_grace_is_a_hang() -> None:
    bench = Bench()
    bench.submit(run_s=3)
    await passed(8.1)
    assert len(bench.hangs) == 1
    assert "did not end 5 s after it was cancelled" in bench.hangs[0]
    await passed(100)
    assert len(bench.hangs) == 1


@timed
async def test_deadlines_in_one_run_are_each_one_s_own() -> None:
    bench = Bench()
    bench.submit(0)
    short, long = bench.submit(1, run_s=1), bench.submit(2, run_s=10)
    bench.runner.finish()
    run = bench.runner.started[1]
    await passed(1.01)
    assert isinstance(await failure(bench, short), InferenceTimeout)
    assert run.cancelled == 0, "the other one still wants it"
    bench.runner.finish()
    assert numbers(await bench.queue.result(long)) == [2]


@timed
async def test_a_run_of_an_unloaded_copy_is_still_cancelled() -> None:
    bench = Bench()
    ticket = bench.submit(run_s=3)
    bench.gate.forget("m", "1", ModelNotFound("unloaded"))
    await passed(3.01)
    assert isinstance(await failure(bench, ticket), InferenceTimeout)
    assert bench.runner.started[0].cancelled == 1


@timed
async def test_an_old_run_is_cancelled_where_it_runs_and_not_in_the_new_copy() -> None:
    bench = Bench(model_spec(instances=2))
    ticket = bench.submit(run_s=3)
    newer = FakeRunner()
    bench.queue.attach(newer, 9, bench.spec)
    bench.submit(1)
    await passed(3.01)
    assert ticket.finished
    assert bench.runner.started[0].cancelled == 1
    assert newer.started[0].cancelled == 0


# --- nobody waits any more -----------------------------------------------------------------------------------


@timed
async def test_a_caller_that_goes_takes_its_waiting_request_along() -> None:
    bench = Bench()
    bench.submit(0)
    ticket = bench.submit(1)
    waiter = asyncio.ensure_future(bench.queue.result(ticket))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert isinstance(ticket.error, Cancelled)
    assert bench.counters() == (0, 1)
    bench.runner.finish()
    assert len(bench.runner.started) == 1


@timed
async def test_a_run_is_ended_when_the_last_of_its_callers_goes() -> None:
    bench = Bench()
    bench.submit(0)
    one, two = bench.submit(1), bench.submit(2)
    bench.runner.finish()
    run = bench.runner.started[1]
    bench.queue.cancel(one)
    assert run.cancelled == 0
    bench.queue.cancel(two)
    bench.queue.cancel(two)
    assert run.cancelled == 1
    bench.runner.finish()
    await passed(10)
    assert (bench.hangs, bench.counters()) == ([], (0, 0))
    assert set(bench.ends.count.values()) == {1}


# --- the engine's death --------------------------------------------------------------------------------------


@timed
async def test_interrupted_requests_run_again_first_and_alone() -> None:
    bench = Bench()
    bench.submit(0)
    pair = [bench.submit(1), bench.submit(2)]
    bench.runner.finish()
    waiting = bench.submit(3)
    bench.engine_dies()
    assert bench.counters() == (3, 0)
    assert [t.state for t in (*pair, waiting)] == ["queued"] * 3
    runner = bench.engine_returns()
    order = []
    while runner.open:
        run = next(iter(runner.open.values()))
        order.append([numbers(item)[0] for item in run.items])
        runner.finish()
    assert order == [[1], [2], [3]]
    assert [numbers(await bench.queue.result(t)) for t in (*pair, waiting)] == [[1], [2], [3]]


@timed
async def test_the_time_lost_to_a_crash_is_given_back_once() -> None:
    bench = Bench(queue_timeout_ms=30_000)
    ticket = bench.submit(queue_s=1)
    await passed(20)
    bench.engine_dies()
    await passed(29)
    assert not ticket.finished
    await passed(1.1)
    assert isinstance(await failure(bench, ticket), EngineRestarting)


@timed
async def test_interrupted_twice_is_an_error_of_the_model() -> None:
    bench = Bench()
    ticket = bench.submit()
    bench.engine_dies()
    bench.engine_returns()
    bench.engine_dies()
    error = await failure(bench, ticket)
    assert (error.code, error.status) == ("model_error", 500)
    assert bench.counters() == (0, 0)


@timed
async def test_a_copy_that_is_dead_already_costs_no_lane() -> None:
    bench = Bench()
    bench.runner.dead = "gone"
    ticket = bench.submit()
    await passed(0.1)
    assert isinstance(await failure(bench, ticket), ModelError)
    assert bench.counters() == (0, 0)


@timed
async def test_a_timed_out_run_that_the_engine_took_along_is_not_run_again() -> None:
    bench = Bench()
    ticket = bench.submit(run_s=1)
    await passed(1.01)
    bench.engine_dies()
    bench.engine_returns()
    assert not bench.runner.started
    assert isinstance(await failure(bench, ticket), InferenceTimeout)
    await passed(10)
    assert bench.hangs == []


@timed
async def test_requests_to_a_forgotten_version_are_told_so_interrupted_ones_too() -> None:
    bench = Bench()
    running, waiting = bench.submit(1), bench.submit(2)
    bench.gate.forget("m", "1", ModelNotFound("unloaded"))
    assert (await failure(bench, waiting)).message == "unloaded"
    assert not running.finished
    assert bench.gate.queue("m", "1") is not bench.queue
    bench.engine_dies()
    bench.runner.die()
    assert (await failure(bench, running)).message == "unloaded"
    assert bench.counters() == (0, 0)


# --- pause, close --------------------------------------------------------------------------------------------


@timed
async def test_a_pause_holds_the_queue_and_not_what_runs() -> None:
    bench = Bench(model_spec(max_batch=0))
    running = bench.submit(1)
    bench.gate.pause()
    held = bench.submit(2)
    bench.runner.finish()
    assert numbers(await bench.queue.result(running)) == [1]
    assert (held.state, bench.counters()) == ("queued", (1, 0))
    bench.gate.resume()
    bench.runner.finish()
    assert numbers(await bench.queue.result(held)) == [2]


@timed
async def test_closing_answers_what_waits_and_lets_finish_what_runs() -> None:
    bench = Bench()
    running, waiting = bench.submit(1), bench.submit(2)
    bench.gate.close()
    assert isinstance(await failure(bench, waiting), Paused)
    with pytest.raises(Paused, match="shutting down"):
        bench.submit(3)
    drained = asyncio.ensure_future(bench.gate.drained())
    await passed(1)
    assert not drained.done()
    bench.runner.finish()
    await drained
    assert numbers(await bench.queue.result(running)) == [1]


@timed
async def test_an_idle_gate_is_drained() -> None:
    await Bench().gate.drained()


@timed
async def test_a_death_while_closing_does_not_queue_again() -> None:
    bench = Bench()
    ticket = bench.submit(1)
    bench.gate.close()
    bench.engine_dies()
    assert isinstance(await failure(bench, ticket), Paused)
    assert bench.counters() == (0, 0)


# --- streams -------------------------------------------------------------------------------------------------


@timed
async def test_a_stream_gives_its_parts_as_they_come() -> None:
    bench = Bench()
    ticket = bench.submit(1, stream=True)
    run = bench.runner.started[0]
    assert run.on_chunk is not None
    parts = aiter(ticket)
    run.on_chunk(rows(1))
    assert numbers(await anext(parts)) == [1]
    run.on_chunk(rows(2))
    run.on_chunk(rows(3))
    bench.runner.finish(items=[()])
    assert [numbers(part) async for part in parts] == [[2], [3]]
    assert ticket.state == "done"


@timed
async def test_a_stream_that_fails_raises_after_the_parts_that_came() -> None:
    bench = Bench()
    ticket = bench.submit(1, stream=True)
    run = bench.runner.started[0]
    assert run.on_chunk is not None
    run.on_chunk(rows(1))
    bench.runner.fail(ModelError("broke"))
    seen = []
    with pytest.raises(ModelError, match="broke"):
        async for part in ticket:
            seen.append(numbers(part))
    assert seen == [[1]]


@timed
async def test_streams_are_never_merged_nor_run_twice_once_a_part_of_the_answer_was_told() -> None:
    bench = Bench()
    bench.submit(0)
    tickets = [bench.submit(1, stream=True), bench.submit(2, stream=True)]
    bench.runner.finish()
    run = bench.runner.started[1]
    assert len(run.items) == 1 and run.on_chunk is not None
    run.on_chunk(run.items[0])
    bench.engine_dies()
    with pytest.raises(ModelError):
        [part async for part in tickets[0]]
    bench.engine_returns()
    bench.runner.finish(items=[()])
    assert [part async for part in tickets[1]] == []


@timed
async def test_a_stream_that_died_before_its_first_part_begins_anew() -> None:
    bench = Bench()
    ticket = bench.submit(1, stream=True)
    bench.engine_dies()
    bench.engine_returns()
    run = bench.runner.started[-1]
    assert run.on_chunk is not None
    run.on_chunk(run.items[0])
    bench.runner.finish(items=[()])
    assert [numbers(part) async for part in ticket] == [[1]]


@timed
async def test_a_ticket_that_is_no_stream_can_be_read_as_one() -> None:
    bench = Bench()
    ticket = bench.submit(4)
    bench.runner.finish()
    assert [numbers(part) async for part in ticket] == [[4]]


# --- memory --------------------------------------------------------------------------------------------------


@timed
async def test_finished_requests_are_remembered_up_to_a_bound_and_hold_no_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate_module, "_REMEMBERED", 10)
    bench = Bench(model_spec(max_batch=0))
    for n in range(50):
        ticket = bench.submit(n, id=f"r{n}")
        outputs = from_array("y", np.zeros(1000, np.float32))
        bench.runner.finish(items=[(outputs,)])
        await bench.queue.result(ticket)
        before = sys.getrefcount(outputs)
        kept = bench.gate.requests[f"r{n}"]
        assert (kept.inputs, kept._outcome) == ((), None)
        assert before == 2, "nothing but this test holds the outputs"
    assert list(bench.gate.requests) == [f"r{n}" for n in range(40, 50)]


@timed
async def test_what_has_not_ended_is_remembered_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_REMEMBERED", 3)
    bench = Bench(model_spec(max_batch=0))
    running = bench.submit(0, id="running")
    waiting = [bench.submit(n, id=f"w{n}") for n in range(10)]
    assert len(bench.gate.requests) == 11
    for ticket in waiting:
        bench.queue.cancel(ticket)
    for n in range(5):
        bench.queue.cancel(bench.submit(n, id=f"x{n}"))
    assert bench.gate.requests["running"] is running
    assert len(bench.gate.requests) <= 3 + 2


@timed
async def test_a_kept_error_holds_no_frames() -> None:
    bench = Bench()
    ticket = bench.submit(1)
    bench.runner.fail(ModelError("broken"))
    await failure(bench, ticket)
    assert ticket.error is not None
    assert ticket.error.__traceback__ is None


@timed
async def test_an_id_used_twice_is_the_newer_request() -> None:
    bench = Bench()
    bench.submit(1, id="same")
    second = bench.submit(2, id="same")
    assert bench.gate.requests["same"] is second


def test_time_can_be_given_from_outside() -> None:
    async def main() -> None:
        now = [50.0]
        gate = Gate(Bounds(), Ends(), print, clock=lambda: now[0])
        queue = gate.queue("m", "1")
        runner = FakeRunner()
        queue.attach(runner, 1, model_spec())
        ticket = queue.submit("r", rows(1), ("y",), queue_s=1, run_s=1)
        now[0] = 50.5
        runner.finish()
        assert (ticket.created, ticket.finished) == (50.0, 50.5)
        assert queue.stats.success.ns == 500_000_000

    asyncio.run(main())
