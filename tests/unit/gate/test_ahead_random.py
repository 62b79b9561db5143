"""The gate's promises under random histories where runs are sent ahead, against an engine that keeps its order."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ApplianceError, Cancelled, InsufficientMemory, ModelNotFound, QueueFull
from appliance.gate.batch import Batch
from appliance.models.tensors import Tensor, from_array
from tests.support import virtual_time
from tests.support.fake_runner import FakeRun, model_spec
from tests.unit.gate.test_gate_random import INDEX, History

WIDTH = 16 * 1024  # of four bytes: enough to be sent ahead
N = st.integers(0, 1)
STEP = st.one_of(
    st.tuples(
        st.just("submit"),
        N,
        st.integers(1, 3),
        st.integers(-1, 1),
        st.sampled_from([0.5, 3.0, 30.0]),
        st.sampled_from([0.5, 4.0, 60.0]),
        st.sampled_from([False, False, False, False, True]),
    ),
    st.tuples(st.just("submit many"), N, st.integers(2, 6)),
    st.tuples(st.just("submit many"), N, st.integers(2, 6)),
    st.tuples(st.just("finish"), INDEX),
    st.tuples(st.just("finish"), INDEX),
    st.tuples(st.just("finish"), INDEX),
    st.tuples(st.just("fail"), INDEX),
    st.tuples(st.just("fail an item"), INDEX),
    st.tuples(st.just("run out"), INDEX),
    st.tuples(st.just("cancel"), INDEX),
    st.tuples(st.just("time"), st.sampled_from([0.1, 1.0, 3.0, 10.0])),
    st.tuples(st.just("death")),
    st.tuples(st.just("return")),
    st.tuples(st.just("detach"), N),
    st.tuples(st.just("attach"), N),
    st.tuples(st.just("reload"), N),
    st.tuples(st.just("forget"), N),
    st.tuples(st.just("pause")),
    st.tuples(st.just("resume")),
    st.tuples(st.just("hold")),
    st.tuples(st.just("release")),
    st.tuples(st.just("woke")),
)


class Ahead(History):
    """As ``History``, with large inputs, copies that are swapped, and an engine that has the lanes it says."""

    def __init__(self) -> None:
        self.handles = [1, 2]
        self.last_handle = 2
        self.lanes: dict[int, int] = {}
        super().__init__()

    def spec_of(self, n: int) -> None:
        self.specs[n] = model_spec(max_batch=(1, 2)[n], instances=(2, 1)[n], width=WIDTH)

    def attach(self, n: int) -> None:
        if not self.lanes:
            for model in (0, 1):
                self.spec_of(model)
        self.lanes[self.handles[n]] = self.specs[n].config.instances
        if self.alive:
            self.queues[n].attach(self.runner, self.handles[n], self.specs[n])

    def new_copy(self, n: int) -> None:
        self.last_handle += 1
        self.handles[n] = self.last_handle
        self.spec_of(n)
        self.attach(n)

    def submit(self, n: int, size: int, priority: int, queue_s: float, run_s: float, stream: bool) -> None:
        size, value = min(size, max(1, self.specs[n].max_batch)), self.serial
        self.serial += 1
        tensor = from_array("x", np.full((size, WIDTH), value, np.float32))
        try:
            ticket = self.queues[n].submit(
                f"r{len(self.tickets)}",
                (tensor,),
                ("y",),
                priority=priority,
                queue_s=queue_s,
                run_s=run_s,
                stream=stream,
            )
        except QueueFull:
            return
        except ApplianceError as error:
            assert self.queues[n].spec is None, error
            return
        self.tickets.append(ticket)
        self.values[id(ticket)] = [value, size]

    def begun(self) -> list[FakeRun]:
        """The runs that the engine has begun: of each copy the oldest, as many as it has lanes."""
        found, free = [], dict(self.lanes)
        for run in self.runner.open.values():
            if free[run.handle] > 0:
                free[run.handle] -= 1
                found.append(run)
        return found

    def some_run(self, index: int) -> FakeRun | None:
        runs = self.begun()
        return runs[index % len(runs)] if runs else None

    async def play(self, step: tuple[Any, ...]) -> None:
        gate = self.bench.gate
        match step:
            case ("reload", n):
                self.new_copy(n)
            case ("hold",):
                gate.hold()
            case ("release",):
                gate.release()
            case ("woke",):
                gate.woke()
            case ("fail", index) if (run := self.some_run(index)) and run.cancelled:
                self.runner.fail(Cancelled("as asked"), run)
            case ("run out", index) if run := self.some_run(index):
                self.runner.fail(InsufficientMemory("full"), run)
            case ("death",):
                begun = {id(t) for batch in self.batches() if not batch.ahead for t in batch.tickets}
                before = {id(t): t.deaths for t in self.tickets}
                await super().play(step)
                for ticket in self.tickets:
                    if not ticket.finished and ticket.deaths > before[id(ticket)]:
                        assert id(ticket) in begun, "what had not begun has no part in a death"
            case ("return",):
                await super().play(step)
                if self.alive:
                    self.lanes.update({self.handles[n]: self.specs[n].config.instances for n in (0, 1)})
            case ("forget", n):
                gate.forget(self.queues[n].model, "1", ModelNotFound("gone"))
                self.queues[n] = gate.queue(self.queues[n].model, "1")
                self.all_queues.append(self.queues[n])
                self.new_copy(n)
            case _:
                await super().play(step)

    def batches(self) -> list[Batch]:
        return [batch for queue in self.all_queues for batch in queue.flights._batches]

    def check(self, now: float) -> None:
        gate, runner = self.bench.gate, self.runner
        batches = self.batches()
        waiting = [t for queue in self.all_queues for t in queue.waiting]
        assert gate.waiting == len(waiting)
        assert gate.running == len(batches) == len(runner.open)
        assert len(batches) == 1 or not any(batch.suspect for batch in batches), "one culprit at a time"
        begun = {run.id for run in self.begun()}
        for batch in batches:
            assert batch.ahead == (batch.id not in begun), "the gate knows what the engine has begun"
            assert batch.timer is not None, "every wait is bounded"
            for ticket in batch.tickets:
                if not ticket.finished:
                    due = ticket.queue_deadline if batch.ahead else ticket.run_deadline
                    assert due >= now - 0.01
        for queue in self.all_queues:
            own = list(queue.flights._batches)
            assert sum(batch.ahead for batch in own) <= 1
            assert not any(b.ahead and (b.suspect or b.tickets[0].retried) for b in own)
        for run in runner.open.values():
            assert len(run.items) == 1 or run.rows <= 2
        assert sorted(map(id, waiting)) == sorted(id(t) for t in self.tickets if t.state == "queued")
        for ticket in self.tickets:
            assert self.bench.ends.count[id(ticket)] == int(ticket.state in ("done", "failed"))
            if ticket.state == "queued":
                assert ticket.queue_deadline >= now - 0.01
        assert not runner.strangers, "only runs in flight are cancelled"

    def mine(self, ticket: Any, outputs: tuple[Tensor, ...]) -> bool:
        value, size = self.values[id(ticket)]
        found = np.frombuffer(outputs[0].data, np.float32)
        return outputs[0].shape == (size, WIDTH) and bool((found == value).all())


@settings(max_examples=400, deadline=None)
@given(st.lists(STEP, min_size=8, max_size=60))
def test_every_request_ends_exactly_once_with_its_own_answer(steps: list[tuple[Any, ...]]) -> None:
    async def main() -> None:
        history = Ahead()
        for n in (0, 1):  # a run's time has to be known
            history.submit(n, 1, 0, 30.0, 60.0, False)
        while history.runner.open:
            history.runner.finish()
        for step in steps:
            await history.play(step)
            history.check(history.bench.gate.clock())
        await history.end()

    virtual_time.run(main())
