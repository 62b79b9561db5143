"""The catalog over two engines, in the test's hands: which copy is where, and what becomes of it when one is gone."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import EngineRestarting, InsufficientMemory, ModelLoadError, Overloaded
from appliance.serving.served import ServedVersion
from tests.support.fake_client import FakeClient
from tests.support.fake_runner import numbers
from tests.unit.serving.serving_helpers import TwoEngines

A, B = "cpu:0", "cpu:1"
BOTH = 'devices = ["all"]'


def two(*up: str) -> Callable[[Callable[[TwoEngines], Coroutine[Any, Any, None]]], Callable[[Path], None]]:
    """Run with a catalog of two engines, of which these are up."""

    def decorate(test: Callable[[TwoEngines], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
        @wraps(test)
        def inside(tmp_path: Path) -> None:
            async def main() -> None:
                bench = TwoEngines(tmp_path, load_timeout_ms=3000)
                worker = asyncio.ensure_future(bench.catalog.run())
                try:
                    for engine in up:
                        bench.up(engine)
                    await test(bench)
                finally:
                    worker.cancel()

            asyncio.run(main())

        del inside.__wrapped__  # type: ignore[attr-defined]  # pytest looks at the parameters
        return inside

    return decorate


def the_version(bench: TwoEngines, name: str = "m") -> ServedVersion:
    return bench.catalog.models[name].versions["1"]


def homes(bench: TwoEngines, name: str = "m") -> list[str]:
    """Where requests to it are sent."""
    return sorted(copy.spec.engine for copy in bench.gate.queue(name, "1").copies)


@two(A, B)
async def test_a_device_without_room_does_not_keep_the_other_from_its_copy(bench: TwoEngines) -> None:
    bench.model("m", BOTH)
    bench.clients[A].faults["m"] = InsufficientMemory("it is full")
    await bench.rescan()
    assert homes(bench) == [B] and the_version(bench).ready
    assert the_version(bench).error == "cpu:0: it is full"
    bench.clients[A].faults.clear()
    await bench.catalog.load("m")
    assert homes(bench) == [A, B] and the_version(bench).error is None


@two(A, B)
async def test_a_copy_that_could_not_be_made_does_not_keep_the_others_from_coming_back(bench: TwoEngines) -> None:
    bench.model("m", BOTH)
    bench.clients[B].faults["m"] = ModelLoadError("not here")
    await bench.rescan()
    assert homes(bench) == [A]
    bench.down(A)
    await bench.quiet()
    bench.up(A)
    await bench.until(lambda: homes(bench) == [A])
    assert len(bench.clients[B].loads) == 1, "the same file is not tried again there"
    assert the_version(bench).error == "cpu:1: not here"


@two(A, B)
async def test_a_new_file_that_one_device_refuses_leaves_no_old_copy_behind(bench: TwoEngines) -> None:
    bench.model("m", BOTH)
    await bench.rescan()
    old = bench.clients[B].loads[0].handle
    bench.clients[B].faults["m"] = InsufficientMemory("it is full")
    bench.model("m", BOTH + "\n[backend_options]\ngain = 3.0")
    await bench.rescan()
    assert homes(bench) == [A] and set(the_version(bench).copies) == {A}
    assert old in bench.clients[B].unloads
    assert the_version(bench).ready and the_version(bench).error == "cpu:1: it is full"


@two(A, B)
async def test_while_a_new_file_comes_to_the_second_device_the_death_of_the_first_is_told(bench: TwoEngines) -> None:
    bench.model("m", BOTH)
    await bench.rescan()
    bench.clients[B].hold["m"] = asyncio.Event()
    bench.model("m", BOTH + "\n[backend_options]\ngain = 3.0")
    await bench.catalog.rescan()
    await bench.until(lambda: len(bench.clients[B].loads) == 2)
    bench.down(A)
    assert the_version(bench).ready == bool(homes(bench)), "ready is who answers"
    bench.clients[B].hold["m"].set()
    await bench.until(lambda: homes(bench) == [B])
    assert the_version(bench).ready


@two(A, B)
async def test_a_model_that_ends_one_engine_at_load_serves_on_in_the_other(bench: TwoEngines) -> None:
    bench.model("m", BOTH)
    bench.deadly.add((B, "m"))
    await bench.catalog.rescan()
    for _ in range(8):
        await bench.quiet()
        if B not in bench.catalog._clients:
            bench.up(B)
    assert homes(bench) == [A]
    assert bench.deaths[B] == 3, "then it is set aside there"
    assert "ended the engine 3 times" in str(the_version(bench).error)
    bench.down(A)
    await bench.quiet()
    bench.up(A)
    await bench.until(lambda: homes(bench) == [A])
    assert bench.deaths[B] == 3


@two(A, B)
async def test_a_model_whose_load_hangs_in_one_engine_hangs_there_once(bench: TwoEngines) -> None:
    bench.model("m", BOTH)
    bench.clients[A].hold["m"] = asyncio.Event()
    await bench.catalog.rescan()
    await bench.until(lambda: bench.hangs)
    await bench.until(lambda: homes(bench) == [B])
    bench.down(A)
    bench.up(A)
    bench.clients[A].hold["m"] = asyncio.Event()
    await bench.quiet()
    assert bench.clients[A].loads == [] and len(bench.hangs) == 1
    assert "took longer than 3000 ms" in str(the_version(bench).error)


@two(A)
async def test_a_model_whose_engine_never_starts_is_loaded_elsewhere(bench: TwoEngines) -> None:
    for name in ("m", "n"):
        bench.model(name)
    await bench.catalog.rescan()
    await bench.quiet()
    assert (homes(bench, "m"), homes(bench, "n")) == ([A], []), "it would live in the emptier one"
    bench.fails(B)
    await bench.until(lambda: homes(bench, "n") == [A])
    assert bench.catalog.ready()


@two(A, B)
async def test_a_model_that_has_no_engine_that_starts_says_so_and_comes_back(bench: TwoEngines) -> None:
    bench.model("m", 'devices = ["cpu:1"]')
    await bench.rescan()
    bench.down(B)
    await bench.quiet()
    assert not bench.catalog.ready() and the_version(bench).error is None, "it is on its way"
    bench.fails(B)
    await bench.quiet()
    assert "engine cpu:1 does not start" in str(the_version(bench).error)
    assert bench.catalog.ready(), "it is not required"
    assert bench.catalog.version("m") is the_version(bench), "requests wait for it"
    bench.up(B)
    await bench.until(lambda: homes(bench) == [B])
    assert the_version(bench).error is None


@two(A)
async def test_a_model_that_never_was_loaded_because_its_engine_does_not_start(bench: TwoEngines) -> None:
    bench.model("m", 'devices = ["cpu:1"]')
    bench.fails(B)
    await bench.catalog.rescan()
    await bench.quiet()
    with pytest.raises(EngineRestarting, match="engine cpu:1 does not start"):
        bench.catalog.version("m")
    with pytest.raises(EngineRestarting):
        await bench.catalog.load("m")


@two(A)
async def test_a_load_waits_for_the_engine_that_is_on_its_way(bench: TwoEngines) -> None:
    bench.model("m", 'load = "manual"\ndevices = ["cpu:1"]')
    await bench.rescan()
    loading = asyncio.create_task(bench.catalog.load("m"))
    await bench.quiet()
    assert not loading.done()
    bench.up(B)
    await loading
    assert homes(bench) == [B]


@two(A)
async def test_a_request_that_wakes_a_model_waits_for_the_engine_that_is_on_its_way(bench: TwoEngines) -> None:
    bench.model("m", 'load = "lazy"\ndevices = ["cpu:1"]')
    await bench.rescan()
    waking = asyncio.create_task(bench.catalog.wake("m", 20))
    await bench.quiet()
    assert not waking.done()
    bench.up(B)
    await waking
    assert homes(bench) == [B]


@two(A, B)
async def test_pin_and_unload_go_through_while_its_engine_is_gone(bench: TwoEngines) -> None:
    bench.model("m", 'devices = ["cpu:1"]')
    await bench.rescan()
    bench.down(B)
    _, ticket = bench.ask("m")
    await bench.catalog.pin("m", True)
    await bench.catalog.unload("m")
    assert ticket.state == "failed" and bench.gate.waiting == 0
    bench.up(B)
    await bench.quiet()
    assert bench.clients[B].loads == []


@two(A, B)
async def test_a_copy_that_made_room_comes_back_when_the_last_one_is_lost(bench: TwoEngines) -> None:
    bench.model("m", BOTH)
    await bench.rescan()
    the_version(bench).made_room(B)
    bench.gate.queue("m", "1").detach(B)
    bench.down(A)
    await bench.until(lambda: homes(bench) == [B])


@two(A, B)
async def test_an_engine_of_another_family_is_started_only_where_a_model_goes(bench: TwoEngines) -> None:
    (bench.folder / "m" / "1").mkdir(parents=True)
    (bench.folder / "m" / "1" / "model.pt2").write_bytes(b"x")
    await bench.catalog.rescan()
    await bench.quiet()
    assert bench.engines.started == [A, B, "cpu:0/torch"]
    bench.up("cpu:0/torch")
    await bench.until(lambda: homes(bench) == ["cpu:0/torch"])


@two(A, B)
async def test_requests_are_answered_by_one_file_at_a_time(bench: TwoEngines) -> None:
    bench.model("m", BOTH)
    await bench.rescan()
    bench.clients[B].hold["m"] = asyncio.Event()
    bench.model("m", BOTH + "\n[backend_options]\ngain = 3.0")
    await bench.catalog.rescan()
    await bench.until(lambda: len(bench.clients[B].loads) == 2)
    asked = [bench.ask("m", n) for n in range(3)]
    while any(ticket.state != "done" for _, ticket in asked):
        client: FakeClient = bench.clients[A]
        (run,) = client.open.values()
        assert run.handle == client.loads[-1].handle
        client.finish()
    assert not bench.clients[B].open
    assert [numbers(await queue.result(ticket)) for queue, ticket in asked] == [[0], [1], [2]]
    bench.clients[B].hold["m"].set()
    await bench.settled()
    assert homes(bench) == [A, B]


@two(A, B)
async def test_what_is_refused_for_now_on_all_devices_is_told_so(bench: TwoEngines) -> None:
    bench.model("m", BOTH)
    for engine in (A, B):
        bench.clients[engine].faults["m"] = Overloaded("busy", retry_after_s=1)
    await bench.rescan()
    assert the_version(bench).asleep and the_version(bench).for_now
    with pytest.raises(Overloaded):
        await bench.catalog.load("m")
