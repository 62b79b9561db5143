"""The gate's promises under random histories: nothing is lost, nothing is told twice, every bound holds."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ApplianceError, InvalidInput, ModelError, ModelNotFound, Paused, QueueFull
from appliance.gate.ticket import Ticket
from appliance.models.tensors import Tensor
from tests.support import virtual_time
from tests.support.fake_runner import FakeRun, FakeRunner, model_spec
from tests.unit.gate.gate_helpers import Bench, passed

INDEX = st.integers(0, 20)
STEP = st.one_of(
    st.tuples(
        st.just("submit"),
        st.integers(0, 1),
        st.integers(1, 5),
        st.integers(-1, 1),
        st.sampled_from([0.5, 3.0, 30.0]),
        st.sampled_from([0.5, 4.0, 60.0]),
        st.sampled_from([False, False, False, True]),
    ),
    st.tuples(st.just("submit many"), st.integers(0, 1), st.integers(2, 12)),
    st.tuples(st.just("finish"), INDEX),
    st.tuples(st.just("finish"), INDEX),
    st.tuples(st.just("fail"), INDEX),
    st.tuples(st.just("fail an item"), INDEX),
    st.tuples(st.just("chunk"), INDEX),
    st.tuples(st.just("cancel"), INDEX),
    st.tuples(st.just("time"), st.sampled_from([0.1, 1.0, 3.0, 10.0])),
    st.tuples(st.just("death")),
    st.tuples(st.just("return")),
    st.tuples(st.just("detach"), st.integers(0, 1)),
    st.tuples(st.just("attach"), st.integers(0, 1)),
    st.tuples(st.just("forget"), st.integers(0, 1)),
    st.tuples(st.just("pause")),
    st.tuples(st.just("resume")),
)


class History:
    """Plays steps against a gate of two models and checks after each."""

    def __init__(self) -> None:
        self.bench = Bench(attach=False, queue_per_model=6, queue_total=9, queue_timeout_ms=20_000)
        self.specs = [model_spec(max_batch=4, instances=2), model_spec(max_batch=0, instances=1)]
        self.queues = [self.bench.gate.queue(name, "1") for name in ("m", "n")]
        self.alive = True
        self.tickets: list[Ticket] = []
        self.values: dict[int, list[float]] = {}
        self.all_queues = list(self.queues)
        self.serial = 0.0
        for n in (0, 1):
            self.attach(n)

    @property
    def runner(self) -> FakeRunner:
        return self.bench.runner

    def attach(self, n: int) -> None:
        if self.alive:
            self.queues[n].attach(self.runner, n + 1, self.specs[n])

    def submit(self, n: int, size: int, priority: int, queue_s: float, run_s: float, stream: bool) -> None:
        values = [self.serial + i for i in range(size)]
        self.serial += size
        queue, gate = self.queues[n], self.bench.gate
        full = len(queue.waiting) >= 6 or gate.waiting >= 9
        try:
            ticket = self.bench.submit(
                *values,
                queue=queue,
                id=f"r{len(self.tickets)}",
                priority=priority,
                queue_s=queue_s,
                run_s=run_s,
                stream=stream,
            )
        except QueueFull:
            assert full
            return
        except ApplianceError as error:
            assert queue.spec is None or gate.closing, error
            return
        self.tickets.append(ticket)
        self.values[id(ticket)] = values

    def some_run(self, index: int) -> FakeRun | None:
        runs = list(self.runner.open.values())
        return runs[index % len(runs)] if runs else None

    async def play(self, step: tuple[Any, ...]) -> None:
        gate = self.bench.gate
        match step:
            case ("submit", n, size, priority, queue_s, run_s, stream):
                self.submit(n, size, priority, queue_s, run_s, stream)
            case ("submit many", n, count):
                for _ in range(count):
                    self.submit(n, 1, 0, 30.0, 60.0, False)
            case ("finish", index) if run := self.some_run(index):
                self.runner.finish(run, [()] if run.on_chunk else None)
            case ("fail", index) if run := self.some_run(index):
                self.runner.fail(ModelError("broken"), run)
            case ("fail an item", index) if (run := self.some_run(index)) and not run.on_chunk:
                self.runner.finish(run, [InvalidInput("bad"), *run.echo()[1:]])
            case ("chunk", index) if (run := self.some_run(index)) and run.on_chunk:
                run.on_chunk(())
            case ("cancel", index) if self.tickets:
                ticket = self.tickets[index % len(self.tickets)]
                for queue in self.all_queues:
                    if queue.model == ticket.model:
                        queue.cancel(ticket)
            case ("time", seconds):
                await passed(seconds)
            case ("death",):
                self.alive = False
                self.bench.engine_dies()
            case ("return",) if not self.alive:
                self.alive = True
                self.bench.runner = FakeRunner()
                gate.engine_up = True
                for n in (0, 1):
                    self.attach(n)
            case ("detach", n):
                self.queues[n].detach()
            case ("attach", n):
                self.attach(n)
            case ("forget", n):
                gate.forget(self.queues[n].model, "1", ModelNotFound("gone"))
                self.queues[n] = gate.queue(self.queues[n].model, "1")
                self.all_queues.append(self.queues[n])
                self.attach(n)
            case ("pause",):
                gate.pause()
            case ("resume",):
                gate.resume()

    def check(self, now: float) -> None:
        gate, runner = self.bench.gate, self.runner
        waiting = [t for queue in self.all_queues for t in queue.waiting]
        assert gate.waiting == len(waiting)
        assert gate.running == sum(queue.running for queue in self.all_queues) == len(runner.open)
        for queue in self.all_queues:
            assert queue.running <= (queue.spec.config.instances if queue.spec else 0)
        for run in runner.open.values():
            limit = self.specs[run.handle - 1].max_batch
            assert len(run.items) == 1 or run.rows <= limit
        sent = sum(len(run.items) for run in runner.open.values())
        running = [t for t in self.tickets if t.state == "running"]
        assert len(running) <= sent
        assert sorted(map(id, waiting)) == sorted(id(t) for t in self.tickets if t.state == "queued")
        for ticket in self.tickets:
            ended = ticket.state in ("done", "failed")
            assert self.bench.ends.count[id(ticket)] == int(ended)
            if ticket.state == "queued":
                assert ticket.queue_deadline >= now - 0.01
            if ticket.state == "running":
                assert ticket.run_deadline >= now - 0.01
        assert not runner.strangers, "only runs in flight are cancelled"

    async def end(self) -> None:
        """Close, let everything finish, and look at every answer."""
        gate = self.bench.gate
        gate.close()
        while self.runner.open:
            run = self.some_run(0)
            assert run is not None
            self.runner.finish(run, [()] if run.on_chunk else None)
        assert (gate.waiting, gate.running) == (0, 0)
        await gate.drained()
        queue = self.queues[0]
        for ticket in self.tickets:
            assert self.bench.ends.count[id(ticket)] == 1
            try:
                outputs = await queue.result(ticket)
            except ApplianceError as error:
                assert ticket.error is not None
                assert type(error) is type(ticket.error)
            else:
                assert ticket.stream or self.mine(ticket, outputs)
        hangs = len(self.bench.hangs)
        await passed(100)
        assert len(self.bench.hangs) == hangs, "no timer is left"

    def mine(self, ticket: Ticket, outputs: tuple[Tensor, ...]) -> bool:
        """Its own values, in its own shape."""
        values = np.frombuffer(outputs[0].data, np.float32).tolist()
        return values == self.values[id(ticket)] and outputs[0].shape == (len(values), 1)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEP, min_size=5, max_size=60))
def test_every_request_ends_exactly_once_with_its_own_answer(steps: list[tuple[Any, ...]]) -> None:
    async def main() -> None:
        history = History()
        for step in steps:
            await history.play(step)
            history.check(history.bench.gate.clock())
        await history.end()

    virtual_time.run(main())


def test_the_closing_of_the_random_test_is_what_a_waiter_sees() -> None:
    async def main() -> None:
        history = History()
        for _ in range(4):
            history.submit(1, 1, 0, 30, 60, False)
        await history.end()
        kinds = [type(t.error) for t in history.tickets]
        assert kinds == [type(None), Paused, Paused, Paused]

    virtual_time.run(main())
