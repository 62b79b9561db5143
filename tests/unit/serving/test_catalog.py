"""The catalog over real folders and a fake engine."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import ApplianceError, ModelLoadError, ModelNotFound, WarmingUp
from tests.support.fake_client import FakeClient
from tests.support.fake_runner import numbers
from tests.unit.serving.serving_helpers import Bench


def served(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run with a catalog whose engine is up."""

    @wraps(test)
    def inside(tmp_path: Path) -> None:
        async def main() -> None:
            bench = Bench(tmp_path)
            worker = asyncio.ensure_future(bench.catalog.run())
            try:
                bench.engine_up()
                await test(bench)
            finally:
                worker.cancel()

        asyncio.run(main())

    del inside.__wrapped__  # type: ignore[attr-defined]  # pytest looks at the parameters
    return inside


@served
async def test_what_lies_in_the_folder_is_loaded_one_after_the_other(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.model(name)
    assert not bench.catalog.ready()
    await bench.rescan()
    assert [m.model for m in bench.client.loads] == ["a", "b"]
    assert len({m.handle for m in bench.client.loads}) == 2
    assert bench.catalog.ready() and bench.catalog.model_ready("a")
    queue, ticket = bench.ask("a", 4)
    bench.client.finish()
    assert numbers(await queue.result(ticket)) == [4]


@served
async def test_before_anybody_has_looked_nothing_is_unknown(bench: Bench) -> None:
    """Just started: a client that comes back after an upgrade is told to wait, not that its model is gone."""
    bench.model("a")
    with pytest.raises(WarmingUp):
        bench.catalog.version("a")
    await bench.rescan()
    assert bench.catalog.version("a").ready
    with pytest.raises(ModelNotFound):
        bench.catalog.version("b")


@served
async def test_an_unknown_model_and_version(bench: Bench) -> None:
    bench.model("a")
    await bench.rescan()
    with pytest.raises(ModelNotFound, match=r"there is no model 'x' \(known: a\)") as caught:
        bench.catalog.version("x")
    assert caught.value.param == "model"
    with pytest.raises(ModelNotFound, match=r"model 'a' has no version '7' \(served: 1\)"):
        bench.catalog.version("a", "7")
    assert bench.catalog.version("a", "1").ready
    assert bench.catalog.version("a", "").ready


@served
async def test_a_model_on_its_way_is_warming_up_and_others_serve(bench: Bench) -> None:
    bench.model("a")
    bench.model("b")
    bench.client.hold["b"] = asyncio.Event()
    await bench.catalog.rescan()
    await bench.until(lambda: len(bench.client.loads) == 2)
    assert bench.catalog.version("a").ready
    with pytest.raises(WarmingUp):
        bench.catalog.version("b")
    assert not bench.catalog.ready()
    bench.client.hold["b"].set()
    await bench.settled()
    assert bench.catalog.ready()


@served
async def test_one_that_fails_says_why_and_is_not_tried_again_until_it_changes(bench: Bench) -> None:
    bench.model("a")
    bench.model("b")
    bench.client.faults["a"] = ModelLoadError("unknown operator")
    await bench.rescan()
    with pytest.raises(ModelNotFound, match="model 'a' is not served: unknown operator"):
        bench.catalog.version("a")
    assert bench.catalog.ready(), "none that is required failed"
    await bench.rescan()
    assert [m.model for m in bench.client.loads].count("a") == 1
    del bench.client.faults["a"]
    bench.model("a", 'description = "repaired"')
    await bench.rescan()
    assert bench.catalog.model_ready("a")


@served
async def test_a_required_model_that_fails_keeps_the_appliance_unready(bench: Bench) -> None:
    bench.model("a", "required = true")
    bench.client.faults["a"] = ModelLoadError("broken")
    await bench.rescan()
    assert not bench.catalog.ready()
    assert bench.catalog.ready_but_failed()


@served
async def test_a_new_file_is_swapped_in_warm(bench: Bench) -> None:
    bench.model("a")
    await bench.rescan()
    first = bench.client.loads[0].handle
    bench.client.hold["a"] = asyncio.Event()
    bench.model("a", 'description = "new"')
    await bench.catalog.rescan()
    await bench.until(lambda: len(bench.client.loads) == 2)
    assert bench.catalog.version("a").ready, "the old one serves meanwhile"
    bench.ask("a")
    assert bench.client.started[-1].handle == first
    bench.client.finish()
    bench.client.hold["a"].set()
    await bench.until(lambda: bench.client.unloads == [first])
    bench.ask("a")
    assert bench.client.started[-1].handle == bench.client.loads[1].handle


@served
async def test_a_broken_new_file_leaves_the_old_one_serving(bench: Bench) -> None:
    bench.model("a")
    await bench.rescan()
    bench.client.faults["a"] = ModelLoadError("broken")
    bench.model("a", 'description = "new"')
    await bench.rescan()
    assert bench.catalog.version("a").ready
    assert bench.catalog.model("a").error == "broken"
    assert bench.client.unloads == []


@served
async def test_a_folder_that_goes_takes_its_model_along(bench: Bench) -> None:
    bench.model("a")
    await bench.rescan()
    (bench.folder / "a" / "model.toml").unlink()
    (bench.folder / "a").rmdir()
    await bench.catalog.rescan()
    await bench.until(lambda: "a" not in bench.catalog.models)
    assert bench.client.unloads == [bench.client.loads[0].handle]


@served
async def test_unload_and_load_by_hand(bench: Bench) -> None:
    bench.model("a")
    await bench.rescan()
    await bench.catalog.unload("a")
    assert bench.client.unloads == [bench.client.loads[0].handle]
    with pytest.raises(ModelNotFound, match="POST /v2/repository/models/a/load"):
        bench.catalog.version("a")
    assert bench.catalog.ready()
    await bench.catalog.load("a")
    assert bench.catalog.version("a").ready
    bench.client.faults["a"] = ModelLoadError("broken")
    bench.model("a", 'description = "new"')
    with pytest.raises(ModelLoadError, match="model 'a': broken"):
        await bench.catalog.load("a")
    for call in (bench.catalog.load, bench.catalog.unload):
        with pytest.raises(ModelNotFound):
            await call("none")


@served
async def test_manual_models_wait_for_the_word(bench: Bench) -> None:
    bench.model("a", 'load = "manual"')
    await bench.rescan()
    assert bench.client.loads == []
    assert bench.catalog.ready()
    await bench.catalog.load("a")
    assert bench.catalog.model_ready("a")


@served
async def test_an_engine_s_death_costs_nothing(bench: Bench) -> None:
    bench.model("a")
    await bench.rescan()
    queue, running = bench.ask("a", 1)
    _, waiting = bench.ask("a", 2)
    listener = bench.events.subscribe()
    bench.down()
    assert (listener.get_nowait() or pytest.fail()).data == {"state": "down", "reason": "killed", "engine": ""}
    assert not bench.catalog.ready() and not bench.catalog.model_ready("a")
    assert not bench.catalog.version("a").ready, "known, and coming back: requests wait for it"
    _, later = bench.ask("a", 3)
    bench.up()
    await bench.until(lambda: bench.client.open)
    for value, ticket in ((1, running), (2, waiting), (3, later)):
        bench.client.finish()
        assert numbers(await queue.result(ticket)) == [value]
    assert bench.catalog.ready()


@served
async def test_a_death_while_loading_is_tried_again_and_then_set_aside(bench: Bench) -> None:
    bench.model("a")
    bench.model("b")
    bench.client.hold["a"] = asyncio.Event()
    await bench.catalog.rescan()
    for _ in range(3):
        await bench.until(lambda: [m.model for m in bench.client.loads].count("a") == 1)
        bench.down()
        client = FakeClient()
        client.hold["a"] = asyncio.Event()
        bench.client = client
        bench.engine_up()
    await bench.settled()
    assert [m.model for m in bench.client.loads] == ["b"]
    with pytest.raises(ModelNotFound, match="loading it ended the engine 3 times"):
        bench.catalog.version("a")
    assert bench.catalog.model_ready("b")


def test_a_load_that_takes_too_long_is_a_hang(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path, load_timeout_ms=50)
        worker = asyncio.ensure_future(bench.catalog.run())
        bench.engine_up()
        bench.model("a")
        bench.client.hold["a"] = asyncio.Event()
        await bench.catalog.rescan()
        await bench.until(lambda: bench.hangs)
        assert "loading took longer than 50 ms" in bench.hangs[0]
        await bench.until(lambda: bench.catalog.models["a"].error)
        with pytest.raises(ApplianceError, match="loading took longer"):
            bench.catalog.version("a")
        worker.cancel()

    asyncio.run(main())
