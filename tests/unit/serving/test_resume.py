"""After a sleep, in virtual time: a real gate, and an engine that does what the test says."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from appliance.engine.client import EngineDied
from appliance.serving.events import Events
from appliance.serving.resume import Resume
from tests.support import virtual_time
from tests.unit.gate.gate_helpers import Bench


class Engine:
    """Supervisor and client in one. ``outcome``: what a check gives, or how long it takes."""

    def __init__(self, bench: Bench, outcome: int | float | EngineDied = 2) -> None:
        self.bench = bench
        self.outcome = outcome
        self.checks = 0
        self.kills: list[str] = []
        self.client: Any = self

    async def check(self) -> int:
        self.checks += 1
        if isinstance(self.outcome, EngineDied):
            self.client = None
            self.bench.engine_dies()
            raise self.outcome
        await asyncio.sleep(self.outcome if isinstance(self.outcome, float) else 1.0)
        return 2

    def kill(self, reason: str, cause: str = "hang") -> None:
        self.kills.append(reason)
        asyncio.get_running_loop().call_later(0.5, self._gone)

    def _gone(self) -> None:
        self.client = None
        self.bench.engine_dies()


def virtual(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def main() -> None:
            await test(Bench())

        virtual_time.run(main())

    del run.__wrapped__  # type: ignore[attr-defined]
    return run


class Told:
    """What the world heard."""

    def __init__(self, bench: Bench, engine: Engine) -> None:
        events = Events()
        self._queue = events.subscribe()
        self.notes: list[str] = ["another's"]
        self.resume = Resume(bench.gate, {"": engine}, events, self.notes)

    def states(self) -> list[str]:
        found = []
        while not self._queue.empty():
            event = self._queue.get_nowait()
            assert event is not None and event.kind == "power" and event.data["slept_s"] == 3600
            found.append(event.data["state"])
        return found


@virtual
async def test_all_is_well(bench: Bench) -> None:
    engine = Engine(bench)
    told = Told(bench, engine)
    first = bench.submit(1.0)
    assert first.state == "running"
    checking = asyncio.create_task(told.resume.after(3600.2))
    await asyncio.sleep(0.1)
    late = bench.submit(2.0)
    assert late.state == "queued" and engine.checks == 0, "a run that the sleep interrupted may end first"
    assert told.notes == ["another's", "this machine has slept for 3600 s, the models are being checked"]
    bench.runner.finish()
    await asyncio.sleep(0.1)
    assert engine.checks == 1
    assert late.state == "queued", "nothing runs beside the check"
    await checking
    assert late.state == "running"
    assert told.states() == ["checking", "well"] and told.notes == ["another's"] and engine.kills == []


@virtual
async def test_a_canary_that_differs(bench: Bench) -> None:
    engine = Engine(bench, EngineDied("the connection was closed"))
    told = Told(bench, engine)
    checking = asyncio.create_task(told.resume.after(3600))
    await asyncio.sleep(0)
    waits = bench.submit(2.0)
    await checking
    assert told.states() == ["checking", "restarting"] and engine.kills == []
    assert waits.state == "queued" and waits.deaths == 0
    bench.engine_returns()
    await asyncio.sleep(0)
    bench.gate.more_room()
    await asyncio.sleep(0.1)
    assert waits.state == "running"


@virtual
async def test_a_check_without_an_end(bench: Bench) -> None:
    engine = Engine(bench, 1000.0)
    told = Told(bench, engine)
    waits: list[Any] = []
    asyncio.get_running_loop().call_later(5, lambda: waits.append(bench.submit(2.0)))
    await told.resume.after(3600)
    assert engine.kills == ["the models' canaries did not end in 30 s after the machine had slept"]
    assert told.states() == ["checking", "restarting"]
    assert waits[0].state == "queued" and waits[0].deaths == 0, "it was not sent into the engine that was killed"
    assert not bench.gate.held


@virtual
async def test_a_run_without_an_end(bench: Bench) -> None:
    engine = Engine(bench)
    told = Told(bench, engine)
    stuck = bench.submit(1.0)
    await told.resume.after(3600)
    assert engine.kills == ["a run did not end in 10 s after the machine had slept"] and engine.checks == 0
    assert stuck.state == "queued", "it is run again"


@virtual
async def test_while_there_is_no_engine_there_is_nothing_to_check(bench: Bench) -> None:
    engine = Engine(bench)
    engine.client = None
    told = Told(bench, engine)
    await told.resume.after(3600)
    assert told.states() == ["checking", "restarting"] and engine.kills == [] and not bench.gate.held


@virtual
async def test_a_person_s_pause_stays(bench: Bench) -> None:
    told = Told(bench, Engine(bench))
    bench.gate.pause()
    waits = bench.submit(1.0)
    await told.resume.after(3600)
    assert bench.gate.paused and waits.state == "queued"
    bench.gate.resume()
    assert waits.state == "running"


@virtual
async def test_a_run_without_an_end_costs_its_own_engine_only(bench: Bench) -> None:
    engine, well = Engine(bench), Engine(bench)
    events = Events()
    resume = Resume(bench.gate, {"": engine, "cpu:1": well}, events, [])
    bench.submit(1.0)
    await resume.after(3600)
    assert len(engine.kills) == 1 and engine.checks == 0
    assert well.kills == [] and well.checks == 1
