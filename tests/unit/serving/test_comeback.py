"""A device that comes back, in virtual time: a real gate, models and an engine as the test says."""

import asyncio
from pathlib import Path
from typing import Any

from appliance.models.repository import ModelFile, ModelFolder
from appliance.models.spec import ModelConfig, ModelSpec
from appliance.serving.comeback import Comeback, Losses
from appliance.serving.events import Events
from appliance.serving.served import LoadedCopy, ServedModel
from tests.support import virtual_time
from tests.unit.gate.gate_helpers import Bench

AWAY = "the device is not there"


def served(name: str = "m", device: str = "prefer") -> ServedModel:
    file = ModelFile("1", Path("x"), Path(), "a")
    return ServedModel(ModelFolder(name, Path(), ModelConfig(device=device), (file,)))  # type: ignore[arg-type]


def runs_on(model: ServedModel, device: str, degraded: str | None = None) -> None:
    version = model.versions["1"]
    version.tried = version.error = None
    spec = ModelSpec(model.name, "1", "fake", "fake", (), (), device=device, degraded=degraded)
    version.serves(LoadedCopy("a", 1, spec))


def fails(model: ServedModel) -> None:
    version = model.versions["1"]
    version.lost()
    version.failed("it requires a device")


class Engine:
    """A supervisor whose engines die a tenth of a second after they are killed, and come back at once."""

    def __init__(self) -> None:
        self.kills: list[tuple[float, str]] = []
        self.client: Any = object()

    def kill(self, reason: str, cause: str = "hang") -> None:
        loop = asyncio.get_running_loop()
        self.kills.append((loop.time() - virtual_time.START, reason))
        loop.call_later(0.1, self._next)

    def _next(self) -> None:
        self.client = object()


def test_who_lost_a_device() -> None:
    gpu, cpu, strict, never = (
        served(n, d) for n, d in zip("gcsn", ("prefer", "cpu", "require", "prefer"), strict=True)
    )
    models = {m.name: m for m in (gpu, cpu, strict, never)}
    losses = Losses()
    runs_on(gpu, "cuda:0")
    runs_on(cpu, "cpu")
    runs_on(strict, "cuda:0")
    runs_on(never, "cpu", AWAY)
    assert losses.look(models) == []
    runs_on(gpu, "cpu", AWAY)
    fails(strict)
    assert losses.look(models) == [("g", ""), ("s", "")]
    runs_on(gpu, "cuda:0")
    strict.wanted = False
    assert losses.look(models) == []


def test_a_lost_device_is_looked_for_less_and_less_and_then_no_more() -> None:
    async def main() -> None:
        bench, engine, model, events = Bench(), Engine(), served(), Events()
        comeback = Comeback(bench.gate, {"": engine}, {"m": model})
        watching = asyncio.create_task(comeback.watch(events))
        runs_on(model, "cuda:0")
        await asyncio.sleep(60)
        assert engine.kills == []
        runs_on(model, "cpu", AWAY)
        await asyncio.sleep(86_400)
        times = [round(at / 5) * 5 for at, _ in engine.kills]
        assert len(times) == 4, "then it is believed"
        waits = [b - a for a, b in zip([60, *times], times, strict=False)]
        assert all(least <= wait <= least + 10 for least, wait in zip((10, 30, 120, 600), waits, strict=True))
        assert engine.kills[0][1] == "model 'm' lost its device; a new engine looks whether it is back"
        runs_on(model, "cuda:0")
        await asyncio.sleep(60)
        runs_on(model, "cpu", AWAY)
        await asyncio.sleep(60)
        assert len(engine.kills) > 4, "another loss"
        assert not bench.gate.held
        runs_on(model, "cuda:0")
        await asyncio.sleep(60)
        count = len(engine.kills)
        late = served("late")  # it has its device for an instant only
        comeback._models["late"] = late  # type: ignore[index]
        runs_on(late, "cuda:0")
        events.publish("model", name="late")
        await asyncio.sleep(0.01)
        runs_on(late, "cpu", AWAY)
        await asyncio.sleep(30)
        assert len(engine.kills) == count + 1
        events.close()
        await watching

    virtual_time.run(main())


def test_runs_end_first_and_none_is_sent_into_the_engine_that_ends() -> None:
    async def main() -> None:
        bench, engine, model = Bench(), Engine(), served()
        comeback = Comeback(bench.gate, {"": engine}, {"m": model})
        runs_on(model, "cuda:0")
        await comeback.look()
        runs_on(model, "cpu", AWAY)
        await comeback.look()
        await asyncio.sleep(11)
        bench.submit(1.0)
        await comeback.look()
        assert engine.kills == [] and not bench.gate.held, "a run that takes long is waited for again"
        trying = asyncio.create_task(comeback.look())
        await asyncio.sleep(1)
        late = bench.submit(2.0)
        bench.runner.finish()
        await asyncio.sleep(0.05)
        assert len(engine.kills) == 1 and late.state == "queued"
        await trying
        assert late.state == "running" and late.deaths == 0

    virtual_time.run(main())


def test_an_engine_that_never_starts_does_not_keep_a_device_from_being_looked_for() -> None:
    async def main() -> None:
        bench, engine, never, model, events = Bench(), Engine(), Engine(), served(), Events()
        never.client = None
        watching = asyncio.create_task(Comeback(bench.gate, {"": engine, "x": never}, {"m": model}).watch(events))
        runs_on(model, "cuda:0")
        await asyncio.sleep(60)
        runs_on(model, "cpu", AWAY)
        await asyncio.sleep(60)
        assert engine.kills and not never.kills
        events.close()
        await watching

    virtual_time.run(main())
