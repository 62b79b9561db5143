"""Admission by memory in a gate with a fake engine on a fake device of 1 GiB, in virtual time."""

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.client import RunResult
from appliance.engine.messages import CostPoint, DeviceMemory
from appliance.errors import ApplianceError, InsufficientMemory, Overloaded, QueueTimeout
from appliance.gate.costs import Learned
from appliance.gate.ticket import Ticket
from appliance.models.spec import MemoryConfig, ModelSpec
from appliance.models.tensors import from_array
from tests.support import virtual_time
from tests.support.fake_runner import FakeRun, FakeRunner, model_spec
from tests.unit.gate.gate_helpers import Bench, passed, timed

MIB = 1 << 20
GIB = 1 << 30
DEVICE = "fake:0"
COSTS = MemoryConfig(item_bytes=MIB)  # a request of n rows takes n MiB
NO_MEMORY = InsufficientMemory("full")


def spec_of(memory: MemoryConfig = COSTS, *, instances: int = 64, max_batch: int = 0, name: str = "m") -> ModelSpec:
    spec = model_spec(max_batch=max_batch, instances=instances)
    config = msgspec.structs.replace(spec.config, memory=memory)
    return msgspec.structs.replace(spec, device=DEVICE, config=config, name=name)


class Device(Bench):
    """A gate on a device of 1 GiB that nobody else uses, all of it for runs."""

    def __init__(self, spec: ModelSpec | None = None, costs: tuple[CostPoint, ...] = (), **limits: int) -> None:
        super().__init__(spec or spec_of(), attach=False, **limits)
        self.reads()
        self.loads(self.spec, costs)
        self.sent: list[Ticket] = []

    def reads(self, others: int = 0) -> None:
        self.gate.memory_read({DEVICE: DeviceMemory(GIB, GIB - others, 0)})

    def loads(self, spec: ModelSpec, costs: tuple[CostPoint, ...] = (), weights: int = 0) -> None:
        self.gate.memory.loaded((spec.name, "1"), spec, weights, costs)
        self.gate.queue(spec.name, "1").attach(self.runner, 7, spec)

    @property
    def ledger(self) -> Any:
        return self.gate.memory.ledgers[DEVICE]

    def ask(self, mib: int, model: str = "m", **more: Any) -> Ticket:
        """A request of so many rows."""
        values = (from_array("x", np.zeros((mib, 1), np.float32)),)
        more = {"queue_s": 30.0, "run_s": 60.0, **more}
        queue = self.gate.queue(model, "1")
        ticket = queue.submit(f"r{len(self.sent)}", values, ("y",), **more)
        self.sent.append(ticket)
        return ticket

    def flies(self) -> list[int]:
        """The sizes in flight."""
        return [run.items[0][0].shape[0] for run in self.runner.open.values()]

    def run_of(self, ticket: Ticket) -> FakeRun:
        return next(r for r in self.runner.open.values() if r.items[0] is ticket.inputs)

    def all_ended_once(self) -> None:
        for ticket in self.sent:
            assert self.ends.count[id(ticket)] == 1, (ticket.id, ticket.state)
        assert (self.gate.waiting, self.gate.running, self.ledger.in_flight) == (0, 0, 0)


@timed
async def test_as_many_run_as_fit_and_the_next_when_one_has_ended() -> None:
    bench = Device()
    for _ in range(20):
        bench.ask(64)
    assert bench.flies() == [64] * 16 and bench.gate.waiting == 4
    assert (bench.ledger.in_flight, bench.ledger.room) == (GIB, 0)
    for _ in range(20):
        bench.runner.finish()
        assert bench.ledger.in_flight <= GIB
    bench.all_ended_once()
    assert all(t.error is None for t in bench.sent)


@timed
async def test_small_ones_overtake_what_does_not_fit_but_not_for_ever() -> None:
    bench = Device(max_overtake_ms=2_000)
    bench.ask(512)
    large = bench.ask(1000)
    began = bench.gate.clock()
    while large.state == "queued":
        if bench.gate.waiting < 20:
            bench.ask(100, queue_s=600.0)
        await passed(0.1)
        if bench.runner.open:
            bench.runner.finish()  # each run takes about half a second
        assert bench.gate.clock() - began < 10
    waited = large.started - began
    assert 2.0 <= waited < 3.5, waited
    assert sum(t.started > 0 for t in bench.sent) > 10, "many have overtaken it until then"
    assert bench.ledger.reserved == 0


@timed
async def test_lanes_that_are_always_full_starve_nobody_either() -> None:
    bench = Device(spec_of(instances=2))
    bench.ask(150)
    bench.ask(150)
    large = bench.ask(900)
    began = bench.gate.clock()
    for _ in range(40):  # a small one waits at any time, and each lane that frees could take it
        bench.ask(150, queue_s=600.0)
    while large.state == "queued":
        await passed(0.2)
        bench.runner.finish()
        assert bench.gate.clock() - began < 5
    assert large.started - began >= 2.0


@timed
async def test_a_reservation_is_given_back_with_its_request() -> None:
    bench = Device()
    bench.ask(900)
    large = bench.ask(1000)
    await passed(2.1)
    small = bench.ask(50)
    assert small.state == "queued" and bench.ledger.reserved == 1000 * MIB
    bench.queue.cancel(large)
    await passed(0.01)
    assert small.state == "running" and bench.ledger.reserved == 0


@timed
async def test_a_reservation_that_runs_out_of_time_is_given_back() -> None:
    bench = Device()
    bench.ask(900)
    large = bench.ask(1000, queue_s=3.0)
    await passed(2.5)
    small = bench.ask(50)
    assert small.state == "queued"
    await passed(1)
    assert isinstance(large.error, QueueTimeout) and small.state == "running"


@timed
async def test_a_request_that_comes_back_from_a_crash_can_have_a_reservation_again() -> None:
    bench = Device(spec_of(instances=4))
    bench.ask(100)
    large = bench.ask(1000)
    await passed(2.5)
    bench.runner.finish()
    assert large.state == "running" and not large.blocked_since
    bench.gate.memory.cleared()
    bench.engine_dies()
    bench.gate.memory.loaded(("m", "1"), bench.spec, 0, ())
    bench.engine_returns()
    assert large.state == "running", "it goes first, alone"
    bench.runner.finish()
    bench.all_ended_once()


@timed
async def test_two_large_ones_wait_one_after_the_other() -> None:
    bench = Device()
    bench.ask(100)
    first, second = bench.ask(1000), bench.ask(1001)
    await passed(5)
    assert bench.ledger.reserved == 1000 * MIB
    bench.runner.finish()
    assert (first.state, second.state) == ("running", "queued")
    bench.runner.finish()
    assert second.state == "running"
    bench.runner.finish()
    bench.all_ended_once()


@timed
async def test_what_never_fits_is_refused_with_the_arithmetic() -> None:
    bench = Device()
    bench.loads(spec_of(name="other"), weights=200 * MIB)
    with pytest.raises(InsufficientMemory) as refused:
        bench.ask(900)
    assert refused.value.message == (
        "a run of model 'm' with this input takes 900 MiB (declared); fake:0 can give 1024 MiB, "
        "of which models hold 200 MiB"
    )
    bench.ask(824)
    bench.runner.finish()
    bench.all_ended_once()


@timed
async def test_other_programs_shrink_what_may_run_and_going_they_give_it_back() -> None:
    bench = Device()
    bench.reads(others=600 * MIB)
    bench.ask(300)
    waits, small = bench.ask(300), bench.ask(100)
    assert (waits.state, small.state) == ("queued", "running")
    assert bench.ledger.others == 600 * MIB
    bench.reads(others=0)
    assert waits.state == "running"


@timed
async def test_models_of_one_device_share_it_and_a_free_one_wakes_the_other() -> None:
    bench = Device()
    bench.loads(spec_of(name="n"))
    bench.ask(1000, "n")
    waits = bench.ask(500, "m")
    assert waits.state == "queued"
    bench.runner.finish()
    await passed(0.001)
    assert waits.state == "running"


@timed
async def test_a_batch_is_only_as_large_as_fits() -> None:
    bench = Device(spec_of(MemoryConfig(run_bytes=100 * MIB, item_bytes=200 * MIB), instances=2, max_batch=8))
    for _ in range(10):
        bench.ask(1)
    assert [run.rows for run in bench.runner.open.values()] == [1, 1], "300 + 300; each came to a free lane"
    bench.runner.finish()
    assert [run.rows for run in bench.runner.open.values()] == [1, 3], "300 + (100 + 3 × 200) = 1000"
    assert bench.ledger.in_flight == 1000 * MIB


@timed
async def test_costs_measured_at_warm_up_count_by_bucket_and_batch() -> None:
    points = (CostPoint(((1,),), 1, 300 * MIB), CostPoint(((1,),), 4, 600 * MIB))
    bench = Device(spec_of(MemoryConfig(), max_batch=4), points)
    bench.ask(4)
    bench.ask(1)
    assert bench.ledger.in_flight == 900 * MIB
    waits = bench.ask(1)
    assert waits.state == "queued"


@timed
async def test_a_run_that_ran_out_is_tried_again_with_all_there_is() -> None:
    bench = Device()
    liar, others = bench.ask(100), [bench.ask(200), bench.ask(200)]
    bench.runner.fail(NO_MEMORY, bench.run_of(liar))
    assert liar.state == "queued" and liar.retried
    await passed(0.01)
    late = bench.ask(1)
    assert late.state == "queued", "the retry is not overtaken"
    for other in others:
        bench.runner.finish(bench.run_of(other))
    assert (liar.state, late.state) == ("running", "queued")
    assert bench.ledger.in_flight == GIB
    bench.runner.finish()
    bench.runner.finish()
    bench.all_ended_once()
    assert liar.error is None and bench.ledger.out_of_memory == 1


@timed
async def test_after_an_out_of_memory_fewer_run_and_then_more_again() -> None:
    bench = Device(spec_of(MemoryConfig(run_bytes=64 * MIB)))
    for _ in range(40):
        bench.ask(1, queue_s=1000.0)
    assert len(bench.runner.open) == 16
    bench.runner.fail(NO_MEMORY)
    await passed(0.001)
    while bench.sent[0].state != "done":
        bench.runner.finish()
    await passed(0.01)
    # Each is booked with 96 MiB now, and 0.7 of 1024 MiB are given.
    assert len(bench.runner.open) == 7
    for _ in range(5):
        await passed(10)
        bench.reads()
    assert bench.ledger.narrowing == 1.0
    assert len(bench.runner.open) == 10


@timed
async def test_out_of_memory_twice_is_for_the_caller_to_repeat() -> None:
    bench = Device(spec_of(MemoryConfig(run_bytes=64 * MIB)))
    ticket = bench.ask(1)
    bench.runner.fail(NO_MEMORY)
    assert ticket.state == "running"
    bench.runner.fail(NO_MEMORY)
    assert isinstance(ticket.error, Overloaded) and ticket.error.retry_after_s >= 2
    assert ticket.error.message == "model 'm': full"
    bench.all_ended_once()


@timed
async def test_what_ran_out_with_everything_time_and_again_is_refused_for_good() -> None:
    bench = Device(spec_of(MemoryConfig(run_bytes=64 * MIB)))
    kinds = []
    for _ in range(6):
        ticket = bench.ask(1)
        bench.runner.fail(NO_MEMORY)
        bench.runner.fail(NO_MEMORY)
        kinds.append(type(ticket.error))
    assert set(kinds[:3]) == {Overloaded} and kinds[-1] is InsufficientMemory
    fine = bench.ask(1)
    bench.runner.finish()
    assert fine.error is None, "it is tried all the same"


@timed
async def test_other_programs_get_the_blame_while_they_hold_memory() -> None:
    bench = Device(spec_of(MemoryConfig(run_bytes=64 * MIB)))
    bench.reads(others=200 * MIB)
    for _ in range(12):
        ticket = bench.ask(1)
        bench.runner.fail(NO_MEMORY)
        bench.runner.fail(NO_MEMORY)
        assert isinstance(ticket.error, Overloaded)


@timed
async def test_many_that_ran_out_are_retried_one_by_one_and_all_answered() -> None:
    bench = Device(spec_of(MemoryConfig(run_bytes=MIB)))
    for _ in range(64):
        bench.ask(1)
    for run in list(bench.runner.open.values())[1:]:
        bench.runner.fail(NO_MEMORY, run)
    bench.runner.finish()
    for _ in range(63):
        await passed(0.001)
        assert len(bench.runner.open) == 1
        bench.runner.finish()
    bench.all_ended_once()
    assert all(t.error is None for t in bench.sent)
    assert bench.ledger.narrowing == pytest.approx(0.7), "one event"


@timed
async def test_items_that_ran_out_after_their_batch_are_raised_from_their_own_cost() -> None:
    bench = Device(spec_of(MemoryConfig(run_bytes=100 * MIB, item_bytes=100 * MIB), instances=1, max_batch=4))
    bench.ask(1)
    merged = [bench.ask(1) for _ in range(4)]
    bench.runner.finish()
    (run,) = bench.runner.open.values()
    assert bench.ledger.in_flight == 500 * MIB
    bench.runner.open.clear()
    items = [*run.echo()[:2], NO_MEMORY, NO_MEMORY]
    run.on_result(RunResult(items, run_ns=1, total_ns=1, ran_out=True))
    assert [t.state for t in merged] == ["done", "done", "running", "queued"]
    assert bench.gate.memory.alone_cost(bench.spec, bench.ask(1)) == 300 * MIB  # (100 + 100) × 1.5
    assert bench.ledger.out_of_memory == 3
    for _ in range(3):
        bench.runner.finish()
    bench.all_ended_once()


@timed
async def test_streams_are_not_run_again() -> None:
    bench = Device()
    stream = bench.ask(1, stream=True)
    bench.runner.fail(NO_MEMORY)
    assert isinstance(stream.error, Overloaded)
    bench.all_ended_once()


@timed
async def test_an_engine_s_death_clears_the_books_and_keeps_what_was_learned() -> None:
    bench = Device(spec_of(MemoryConfig(run_bytes=64 * MIB)))
    bench.loads(bench.spec, weights=100 * MIB)
    bench.ask(1)
    bench.runner.fail(NO_MEMORY)
    bench.ask(1)
    bench.gate.memory.cleared()
    bench.engine_dies()
    assert (bench.ledger.weights, bench.ledger.in_flight) == (0, 0)
    bench.gate.memory.loaded(("m", "1"), bench.spec, 100 * MIB, ())
    bench.engine_returns()
    assert bench.ledger.weights == 100 * MIB
    assert bench.gate.memory.alone_cost(bench.spec, bench.ask(1)) == 96 * MIB
    while bench.runner.open:
        bench.runner.finish()
    await passed(0.01)
    while bench.runner.open:
        bench.runner.finish()
        await passed(0.01)
    bench.all_ended_once()


MEASURED = (CostPoint(((1, 1),), 1, 100 * MIB),)


def read(bench: Device, ours: int, busy: int) -> None:
    """A heartbeat: the engine holds ``ours`` MiB, with so many runs in its lanes."""
    bench.gate.memory_read({DEVICE: DeviceMemory(GIB, GIB - ours * MIB, ours * MIB)}, busy)


@timed
async def test_a_run_that_is_seen_to_take_more_is_booked_with_more_from_then_on() -> None:
    bench = Device(spec_of(MemoryConfig(), instances=1), MEASURED)
    told: list[int] = []
    bench.gate.memory.on_learned = lambda: told.append(1)
    read(bench, 50, 0)
    bench.ask(1)
    assert bench.ledger.in_flight == 100 * MIB
    read(bench, 350, 1)
    bench.runner.finish()
    read(bench, 50, 0)
    bench.ask(1)
    assert bench.ledger.in_flight == 390 * MIB, "300 and 30 %"
    bench.runner.finish()
    assert told == [1] and bench.gate.memory.untold == {("m", "1")}
    kept = bench.gate.memory.learned(("m", "1"))
    assert kept is not None and kept.device == DEVICE and kept.samples[0].sizes == (300 * MIB,)


@timed
async def test_what_two_models_took_together_is_nobody_s() -> None:
    bench = Device(spec_of(MemoryConfig(), instances=1), MEASURED)
    bench.loads(spec_of(MemoryConfig(), name="n"), MEASURED)
    read(bench, 50, 0)
    bench.ask(1)
    bench.ask(1, "n")
    read(bench, 850, 2)
    bench.runner.finish()
    bench.runner.finish()
    assert bench.gate.memory.untold == set()
    bench.ask(1)
    read(bench, 850, 1)
    assert bench.gate.memory.untold == set(), "no level: both may have taken it"


@timed
async def test_what_was_kept_from_an_earlier_start_counts_on_the_same_device() -> None:
    kept = Learned(DEVICE, (CostPoint(((1, 1),), 1, 500 * MIB),))
    for device, size in ((DEVICE, 500), ("cuda:0", 100)):
        bench = Device(spec_of(MemoryConfig(), name="other"))
        spec = spec_of(MemoryConfig())
        bench.gate.memory.loaded(("m", "1"), spec, 0, MEASURED, learned=msgspec.structs.replace(kept, device=device))
        bench.queue.attach(bench.runner, 7, spec)
        bench.ask(1)
        assert bench.ledger.in_flight == size * MIB


@timed
async def test_what_only_idle_models_are_in_the_way_of_waits_for_them_to_leave() -> None:
    bench = Device()
    bench.loads(spec_of(name="idle"), weights=300 * MIB)
    bench.gate.memory.movable = lambda model, device: 300 * MIB if (model, device) == ("m", DEVICE) else 0
    asked: list[tuple[str, str, int]] = []
    bench.gate.on_short = lambda *what: asked.append(what)
    runs, waits = bench.ask(100), bench.ask(800)
    assert (runs.state, waits.state) == ("running", "queued")
    assert asked == [("m", DEVICE, 800 * MIB)]
    bench.runner.finish()
    assert waits.state == "queued"
    bench.gate.memory.unloaded(("idle", "1"))
    bench.gate.more_room()
    await passed(0.01)
    assert waits.state == "running"
    with pytest.raises(InsufficientMemory):
        bench.ask(1025 + 300)


@timed
async def test_a_run_that_only_waits_for_other_runs_sends_nobody_away() -> None:
    bench = Device()
    bench.loads(spec_of(name="idle"), weights=300 * MIB)
    asked: list[Any] = []
    bench.gate.on_short = lambda *what: asked.append(what)
    bench.ask(600)
    assert bench.ask(700).state == "queued"
    assert asked == []


@timed
async def test_a_model_that_moves_to_another_device_leaves_the_first() -> None:
    bench = Device()
    bench.loads(bench.spec, weights=100 * MIB)
    moved = msgspec.structs.replace(bench.spec, device="cpu")
    bench.gate.memory.loaded(("m", "1"), moved, 50 * MIB, ())
    assert bench.ledger.weights == 0 and bench.gate.memory.ledger("cpu").weights == 50 * MIB
    assert bench.gate.memory.home(("m", "1")) == "cpu" and bench.gate.memory.home(("x", "1")) is None
    bench.gate.memory.unloaded(("m", "1"))
    assert bench.gate.memory.ledger("cpu").weights == 0


# --- under random load ------------------------------------------------------------------------------------------

SIZE = st.sampled_from([1, 8, 64, 200, 600, 900, 1000])
PLAY = st.one_of(
    st.tuples(st.just("ask"), SIZE, st.integers(0, 1)),
    st.tuples(st.just("ask"), SIZE, st.integers(0, 1)),
    st.tuples(st.just("finish"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("finish"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("out of memory"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 60), st.just(0)),
    st.tuples(st.just("time"), st.sampled_from([1, 10, 30, 100]), st.just(0)),
    st.tuples(st.just("others"), st.sampled_from([0, 100, 500, 1000]), st.just(0)),
    st.tuples(st.just("death"), st.just(0), st.just(0)),
)


class Watched(FakeRunner):
    """Checks the ledger at every start."""

    bench: Device

    def run(self, *args: Any, **kwargs: Any) -> int:
        book = self.bench.ledger
        alone = len(self.open) == 0
        assert (
            alone
            or book.in_flight + book.weights <= int(book.capacity - book.weights) * book.narrowing + book.weights
        )
        assert alone or book.in_flight + book.weights <= book.capacity
        return super().run(*args, **kwargs)


@settings(max_examples=200, deadline=None)
@given(st.lists(PLAY, min_size=5, max_size=80))
def test_never_over_capacity_and_every_ticket_ends_once(steps: list[tuple[str, int, int]]) -> None:
    async def main() -> None:
        bench = Device(queue_per_model=1000)
        bench.loads(spec_of(name="n"), weights=20 * MIB)

        def watch() -> None:
            bench.runner = Watched()
            bench.runner.bench = bench
            for name in "mn":
                bench.gate.queue(name, "1").attach(bench.runner, 7, spec_of(name=name))

        watch()
        for kind, n, which in steps:
            runs = list(bench.runner.open.values())
            match kind:
                case "ask":
                    bench.ask(n, "mn"[which])
                case "finish" if runs:
                    bench.runner.finish(runs[n % len(runs)])
                case "out of memory" if runs:
                    bench.runner.fail(NO_MEMORY, runs[n % len(runs)])
                case "cancel" if bench.sent:
                    ticket = bench.sent[n % len(bench.sent)]
                    bench.gate.queue(ticket.model, "1").cancel(ticket)
                case "time":
                    await passed(n / 10)
                case "others":
                    bench.reads(others=n * MIB)
                case "death":
                    bench.gate.memory.cleared()
                    bench.engine_dies()
                    bench.gate.engine_up = True
                    bench.gate.memory.loaded(("m", "1"), spec_of(), 0, ())
                    bench.gate.memory.loaded(("n", "1"), spec_of(name="n"), 20 * MIB, ())
                    watch()
            await passed(0.001)
            if not bench.gate.blocked:
                assert bench.gate.running or not bench.gate.waiting, "nothing runs although something could"
        bench.reads()
        for _ in range(10_000):
            if not bench.gate.waiting and not bench.gate.running:
                break
            if bench.runner.open:
                bench.runner.finish()
            await passed(0.05)
        bench.all_ended_once()
        for ticket in bench.sent:
            assert ticket.error is None or isinstance(ticket.error, ApplianceError)
        assert bench.ledger.reserved == 0

    virtual_time.run(main())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 50, 100, 300]), st.integers(1, 20)), min_size=1, max_size=30),
    st.sampled_from([600, 900, 1024]),
    st.integers(1, 64),
    st.sampled_from([200, 2000, 5000]),
)
def test_a_large_one_waits_no_longer_than_the_bound_and_a_run(
    small: list[tuple[int, int]], large: int, instances: int, overtake_ms: int
) -> None:
    """Whatever small ones arrive, for however long: each runs for up to 2 s."""

    async def main() -> None:
        bench = Device(spec_of(instances=instances), queue_per_model=10_000, queue_total=10_000,
                       max_overtake_ms=overtake_ms)  # fmt: skip
        ends: dict[int, float] = {}

        async def run_for_a_while() -> None:
            while True:
                now = bench.gate.clock()
                for run in list(bench.runner.open.values()):
                    at = ends.setdefault(id(run), now + small[run.id % len(small)][1] / 10)
                    if at <= now and run.id in bench.runner.open:
                        bench.runner.finish(run)
                await asyncio.sleep(0.05)

        runner = asyncio.ensure_future(run_for_a_while())
        began, asked = bench.gate.clock(), None
        for n in range(300):
            bench.ask(small[n % len(small)][0], queue_s=10_000.0)
            if n == 3:
                asked, began = bench.ask(large, queue_s=10_000.0), bench.gate.clock()
            await asyncio.sleep(0.05)
        assert asked is not None
        for _ in range(400):
            if asked.started:
                break
            await asyncio.sleep(0.05)
        runner.cancel()
        # It has to come to the head first: those before it are at most four. Then the bound, and the runs in flight.
        assert asked.started and asked.started - began <= overtake_ms / 1000 + 2.2 + 4 * 2.2

    virtual_time.run(main())
