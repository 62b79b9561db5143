"""Where engines run, and what is told of one that does not start."""

import asyncio
import sys
from pathlib import Path

import pytest

from appliance.engine.fleet import Fleet, Place, places


@pytest.mark.parametrize(
    ("policy", "gpus", "cores", "found"),
    [
        ("auto", [], 4, [("auto", ())]),
        ("auto", ["cuda:0"], 4, [("auto", ())]),
        ("auto", ["cuda:0", "cuda:1"], 4, [("cuda:0", ()), ("cuda:1", ())]),
        ("cpu", ["cuda:0", "cuda:1"], 4, [("cpu", ())]),
        ("cuda:1, cuda:0", [], 4, [("cuda:1", ()), ("cuda:0", ())]),
        ("cpu:0,cpu:1", [], 5, [("cpu:0", (0, 1)), ("cpu:1", (2, 3))]),
        ("cpu:0,cuda:0", [], 4, [("cpu:0", (0, 1, 2, 3)), ("cuda:0", ())]),
        ("cpu:0,cpu:1,cpu:2", [], 2, [("cpu:0", ()), ("cpu:1", ()), ("cpu:2", ())]),
        ("cpu:0,cpu:0", [], 4, [("cpu:0", (0, 1, 2, 3))]),
        ("cpu:3,cpu:03,cpu:5", [], 4, [("cpu:3", (0, 1)), ("cpu:5", (2, 3))]),
        ("cuda:0,cuda:00", [], 4, [("cuda:0", ())]),
    ],
)
def test_places(policy: str, gpus: list[str], cores: int, found: list[tuple[str, tuple[int, ...]]]) -> None:
    assert [(p.device, p.cores) for p in places(policy, gpus, range(cores))] == found


def test_an_engine_that_does_not_start_is_told_of_once_it_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        told: list[str] = []
        failing = asyncio.Event()

        def on_failing(engine: str) -> None:
            told.append(engine)
            failing.set()

        fleet = Fleet(
            [Place("cpu:0"), Place("cpu:1")],
            lambda place, family: [sys.executable, "-c", "import sys; sys.exit(3)"],
            lambda engine: tmp_path / "engine.log",
            lambda client, engine: None,
            lambda reason, engine: None,
            on_failing,
        )
        assert fleet.name("cpu:0", "torch") == "cpu:0/torch" and fleet.engines == {}, "a name starts nothing"
        assert fleet.engine("cpu:0", "torch") == "cpu:0/torch"
        async with asyncio.timeout(30):
            await failing.wait()
        assert told == ["cpu:0/torch"] and fleet.failing("cpu:0/torch")
        assert not fleet.failing("cpu:1"), "it was never asked for"
        await fleet.stop(0.5)
        assert fleet.pids() == []

    asyncio.run(main())
