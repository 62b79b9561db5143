"""The one picture of everything."""

import asyncio
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from appliance.errors import ModelLoadError
from appliance.metrics import Metrics
from appliance.serving.status import Status
from appliance.settings import Settings
from tests.unit.serving.serving_helpers import Bench


def test_the_state_in_a_word_and_the_models(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        asked: list[Any] = []
        supervisor: Any = SimpleNamespace(
            pid=7, client=None, state="starting", restarts=0, deaths=deque(), next_start=None, hello=None
        )

        def devices() -> list[Any]:
            asked.append(7)
            return []

        status = Status(Settings(), bench.catalog, bench.gate, {"": supervisor}, devices, Metrics())
        status.address = "http://127.0.0.1:1"
        assert status()["state"] == "starting"
        worker = asyncio.ensure_future(bench.catalog.run())
        bench.engine_up()
        supervisor.client = SimpleNamespace(memory_bytes=55)
        for name in ("b", "a"):
            bench.model(name)
        await bench.rescan()
        found = status()
        assert (found["state"], found["address"]) == ("ready", "http://127.0.0.1:1")
        assert [m["name"] for m in found["models"]] == ["a", "b"]
        assert found["engine"]["memory_bytes"] == 55
        assert found["device"]["running"] == "cpu"
        assert asked == [7], "the devices are asked at most once a second"
        queue, ticket = bench.ask("a")
        bench.ask("a")
        found = status()
        assert (found["state"], found["queue"]) == ("busy", {"waiting": 1, "running": 1, "paused": False})
        version = found["models"][0]["versions"][0]
        assert (version["running"], version["waiting"], version["state"]) == (1, 1, "READY")
        bench.client.finish()
        bench.client.fail(ModelLoadError("x"))
        await queue.result(ticket)
        version = status()["models"][0]["versions"][0]
        assert (version["requests"], version["failed"]) == (2, 1)
        bench.gate.pause()
        assert status()["state"] == "paused"
        bench.gate.resume()
        bench.client.faults["b"] = ModelLoadError("broken")
        bench.model("b", 'description = "new"')
        await bench.rescan()
        assert status()["state"] == "degraded"
        bench.down()
        assert status()["state"] == "degraded", "it was ready before"
        bench.gate.close()
        assert status()["state"] == "stopped"
        msgspec.json.encode(status())
        worker.cancel()

    asyncio.run(main())
