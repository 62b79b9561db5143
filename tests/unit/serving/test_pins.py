"""Pinned models: kept over a restart, and never leaving for others."""

import asyncio
import json
from pathlib import Path

import pytest

from appliance.errors import InsufficientMemory, ModelNotFound, Overloaded
from appliance.serving.pins import Pins
from tests.unit.serving.serving_helpers import Bench
from tests.unit.serving.test_room import Loaded


def test_they_are_kept_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "state" / "pinned.json"
    pins = Pins(file)
    assert "a" not in pins
    pins.keep("b", True)
    pins.keep("a", True)
    pins.keep("a", True)
    assert json.loads(file.read_text()) == ["a", "b"]
    pins.keep("b", False)
    pins.keep("never-pinned", False)
    again = Pins(file)
    assert "a" in again and "b" not in again
    assert [path.name for path in file.parent.iterdir()] == ["pinned.json"]


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"a": true}'])
def test_a_file_that_cannot_be_read_is_like_none(tmp_path: Path, content: str) -> None:
    file = tmp_path / "pinned.json"
    file.write_text(content)
    pins = Pins(file)
    assert "a" not in pins
    pins.keep("a", True)
    assert "a" in Pins(file)


def test_a_place_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pins = Pins(tmp_path / "file" / "pinned.json")
    pins.keep("a", True)
    assert "a" in pins, "until the end of the program"


def test_the_catalog_keeps_and_finds_them(tmp_path: Path) -> None:
    models, state = tmp_path / "models", tmp_path / "state"
    models.mkdir()

    async def main(first: bool) -> None:
        bench = Bench(models, state=state)
        bench.model("a")
        worker = asyncio.ensure_future(bench.catalog.run())
        bench.engine_up()
        await bench.rescan()
        assert bench.catalog.models["a"].pinned is not first
        if first:
            heard = bench.events.subscribe()
            await bench.catalog.pin("a", True)
            assert bench.catalog.models["a"].pinned
            event = heard.get_nowait()
            assert event is not None and (event.kind, event.data) == ("model", {"name": "a"})
            with pytest.raises(ModelNotFound, match="nothing-like-it"):
                await bench.catalog.pin("nothing-like-it", True)
        worker.cancel()

    asyncio.run(main(True))
    asyncio.run(main(False))


def test_a_pinned_model_makes_no_room(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Loaded(tmp_path)
        worker = asyncio.ensure_future(bench.catalog.run())
        await bench.add("a", 400)
        await bench.add("b", 300)
        bench.catalog.models["a"].pinned = True  # the longest unused one
        await bench.add("c", 500)
        states = {name: model.versions["1"].state for name, model in bench.catalog.models.items()}
        assert states == {"a": "READY", "b": "UNAVAILABLE", "c": "READY"}
        bench.catalog.models["c"].pinned = True
        await bench.add("d", 400)
        failed = bench.catalog.models["d"].versions["1"]
        assert failed.no_room and not failed.for_now, "it does not fit beside what is pinned"
        with pytest.raises((InsufficientMemory, Overloaded)):
            await bench.catalog.wake("d", 0.1)
        bench.catalog.models["a"].pinned = False
        await bench.catalog.load("d")
        assert bench.catalog.models["d"].versions["1"].ready
        assert bench.catalog.models["a"].versions["1"].asleep and bench.catalog.models["c"].versions["1"].ready
        worker.cancel()

    asyncio.run(main())


def test_the_parts_of_a_pinned_pipeline_stay(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Loaded(tmp_path)
        worker = asyncio.ensure_future(bench.catalog.run())
        await bench.add("part", 400)
        await bench.add("other", 300)
        folder = tmp_path / "whole"
        folder.mkdir()
        (folder / "labels.txt").write_text("x\n")
        (folder / "model.toml").write_text(
            'backend = "pipeline"\n[pipeline]\ntask = "ocr"\nmodels = { detect = "part", read = "part" }\n'
        )
        await bench.rescan()
        bench.catalog.models["whole"].pinned = True
        await bench.add("new", 500)
        states = {name: model.versions["1"].state for name, model in bench.catalog.models.items()}
        assert states["part"] == "READY" and states["other"] == "UNAVAILABLE" and states["new"] == "READY"
        worker.cancel()

    asyncio.run(main())
