"""As ``test_gate_random``, with a copy of each model in two engines, which die and come back on their own."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ModelNotFound
from appliance.models.spec import ModelSpec
from tests.support import virtual_time
from tests.support.fake_runner import FakeRun, FakeRunner
from tests.unit.gate.gate_helpers import passed
from tests.unit.gate.test_gate_random import STEP, History

ENGINES = ("cpu:0", "cpu:1")
WHICH = st.sampled_from(ENGINES)
TWO_STEPS = st.one_of(
    STEP,
    st.tuples(st.just("one dies"), WHICH),
    st.tuples(st.just("one returns"), WHICH),
    st.tuples(st.just("one leaves"), WHICH, st.integers(0, 1)),
    st.tuples(st.just("one comes"), WHICH, st.integers(0, 1)),
)


class Both(FakeRunner):
    """What the checks of ``History`` look at: the runs of both."""

    def __init__(self, runners: dict[str, FakeRunner]) -> None:
        super().__init__()
        self.runners = runners

    def _owner(self, run: FakeRun) -> FakeRunner:
        return next(r for r in self.runners.values() if run in r.open.values())

    def finish(self, run: FakeRun | None = None, items: Any = None) -> None:
        assert run is not None
        self._owner(run).finish(run, items)

    def fail(self, error: Any, run: FakeRun | None = None) -> None:
        assert run is not None
        self._owner(run).fail(error, run)

    def look(self) -> "Both":
        self.open = dict(enumerate(run for r in self.runners.values() for run in r.open.values()))
        self.strangers = [each for r in self.runners.values() for each in r.strangers]
        return self


class TwoHistory(History):
    def __init__(self) -> None:
        self.runners: dict[str, FakeRunner] = {engine: FakeRunner() for engine in ENGINES}
        self.living = set(ENGINES)
        super().__init__()

    @property
    def runner(self) -> FakeRunner:
        return Both(self.runners).look()

    def on(self, n: int, engine: str) -> ModelSpec:
        return msgspec.structs.replace(self.specs[n], name=self.queues[n].model, device=engine, engine=engine)

    def attach(self, n: int) -> None:
        for engine in sorted(self.living):
            self.attach_to(n, engine)

    def attach_to(self, n: int, engine: str) -> None:
        if engine in self.living:
            spec = self.on(n, engine)
            self.bench.gate.memory.loaded(spec.key, spec, 0, ())
            self.queues[n].attach(self.runners[engine], n + 1, spec)

    def dies(self, engine: str) -> None:
        gate = self.bench.gate
        self.living.discard(engine)
        gate.engine_up = bool(self.living)
        gate.memory.cleared(engine)
        for queue in gate.queues.values():
            queue.detach(engine, lost=True)
        self.runners[engine].die()

    def returns(self, engine: str) -> None:
        if engine not in self.living:
            self.living.add(engine)
            self.runners[engine] = FakeRunner()
            self.bench.gate.engine_up = True
            for n in (0, 1):
                self.attach_to(n, engine)

    async def play(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("death",):
                for engine in ENGINES:
                    self.dies(engine)
            case ("return",):
                for engine in ENGINES:
                    self.returns(engine)
            case ("one dies", engine):
                self.dies(engine)
            case ("one returns", engine):
                self.returns(engine)
            case ("one leaves", engine, n):
                self.queues[n].detach(engine)
            case ("one comes", engine, n):
                self.attach_to(n, engine)
            case ("forget", n):
                gate = self.bench.gate
                gate.forget(self.queues[n].model, "1", ModelNotFound("gone"))
                self.queues[n] = gate.queue(self.queues[n].model, "1")
                self.all_queues.append(self.queues[n])
                self.attach(n)
            case _:
                await super().play(step)

    def check(self, now: float) -> None:
        gate, runner = self.bench.gate, self.runner
        waiting = [t for queue in self.all_queues for t in queue.waiting]
        assert gate.waiting == len(waiting)
        assert gate.running == sum(queue.running for queue in self.all_queues) == len(runner.open)
        for engine in ENGINES:
            turn, runs = gate.turn(engine), list(self.runners[engine].open.values())
            assert turn.running == len(runs)
            for n in (0, 1):
                # A queue that was forgotten leaves its runs to end.
                if len(self.all_queues) == 2:
                    assert sum(run.handle == n + 1 for run in runs) <= self.specs[n].config.instances
            batches = [b for queue in self.all_queues for b in queue.flights._batches if b.engine == engine]
            assert len(batches) == len(runs)
            assert not any(b.suspect for b in batches) or len(batches) == 1, "one that was in a crash runs alone"
            assert turn.alone == any(b.suspect for b in batches)
        assert sorted(map(id, waiting)) == sorted(id(t) for t in self.tickets if t.state == "queued")
        for ticket in self.tickets:
            assert self.bench.ends.count[id(ticket)] == int(ticket.state in ("done", "failed"))
            assert ticket.deaths <= 2
            if ticket.state == "queued":
                assert ticket.queue_deadline >= now - 0.01
            if ticket.state == "running":
                assert ticket.run_deadline >= now - 0.01
        assert not runner.strangers, "only runs in flight are cancelled"

    async def nothing_stands_still(self) -> None:
        """What waits has a reason: no copy, no free lane, a pause, or its turn is another's."""
        await passed(0)
        gate = self.bench.gate
        for queue in gate.queues.values():
            for copy in queue.copies if queue.waiting else ():
                suspect = bool(queue.waiting.head.deaths)
                assert not (copy.free and gate.may_run(copy.turn, suspect)), "it could run"


@settings(max_examples=400, deadline=None)
@given(st.lists(TWO_STEPS, min_size=5, max_size=60))
def test_every_request_ends_exactly_once_with_its_own_answer(steps: list[tuple[Any, ...]]) -> None:
    async def main() -> None:
        history = TwoHistory()
        for step in steps:
            await history.play(step)
            history.check(history.bench.gate.clock())
            await history.nothing_stands_still()
        await history.end()

    virtual_time.run(main())
