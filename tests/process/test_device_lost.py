"""A device that is gone, or that only a new process can use again; and the check after a sleep."""

import asyncio
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.client import EngineClient, EngineDied
from appliance.engine.messages import Load
from appliance.models.spec import ModelConfig, Warmup
from appliance.system import paths
from appliance.system.processes import start_child
from tests.process.helpers import Callers, answer, code, fake, infer, restarted
from tests.support.server import Server


@pytest.fixture
def device(folder: Path) -> Path:
    """The fake device is there while this file is."""
    file = folder / "device"
    file.touch()
    return file


def test_a_lost_device_costs_a_restart_and_no_request(folder: Path, device: Path) -> None:
    fake(folder / "models", "m", device_file=str(device), lose_on=-7)
    fake(folder / "models", "slow", device_file=str(device), run_ms=300)
    with Server(folder) as server:
        assert server.status()["device"]["running"] == "fake:0"
        innocent: list[list[float]] = []
        caller = threading.Thread(target=lambda: innocent.append(answer(infer(server.client, "slow", 4))))
        caller.start()
        time.sleep(0.1)
        poison = infer(server.client, "m", -7)
        assert poison.status_code == 500 and code(poison) == "model_error"  # it was in the engine at two deaths
        caller.join(60)
        assert innocent == [[8.0] * 4]
        assert answer(infer(server.client, "m", 3)) == [6.0] * 4
        status = restarted(server, 2)
        assert status["engine"]["deaths"][0]["reason"].startswith(
            "the device of model 'm' is lost: the fake device is lost"
        )
        assert status["engine"]["restarts"] == 2
        told = server.client.get("/metrics").text
        assert re.search(r'appliance_engine_restarts_total{engine="\w+",reason="unfit"} 2.0', told)
        assert status["device"]["running"] == "fake:0" and status["device"]["reason"] is None


def test_without_the_device_the_policy_decides(folder: Path, device: Path) -> None:
    """`prefer` goes on on the CPU and says so, `require` is not served; when the device is back, so are they."""
    fake(folder / "models", "prefer", device_file=str(device))
    fake(folder / "models", "require", 'device = "require"', device_file=str(device))
    with Server(folder) as server:
        assert answer(infer(server.client, "require", 3)) == [6.0] * 4
        device.unlink()
        assert answer(infer(server.client, "prefer", 3)) == [6.0] * 4
        status = restarted(server, 1)
        assert status["state"] == "degraded"
        assert status["device"] == {"policy": "cpu", "running": "cpu", "reason": "the fake device is not there"}
        by_name = {m["name"]: m for m in status["models"]}
        assert by_name["prefer"]["versions"][0]["device"] == "cpu"
        assert by_name["prefer"]["versions"][0]["device_reason"] == "the fake device is not there"
        assert "requires its device" in by_name["require"]["error"]
        refused = infer(server.client, "require", 3)
        assert refused.status_code == 404 and "requires its device" in refused.text
        told = infer(server.client, "prefer", 3).headers["x-device"]
        assert told == 'cpu; reason="the fake device is not there"'
        assert "appliance_degraded_models 1.0" in server.client.get("/metrics").text

        def back() -> dict[str, Any] | None:
            status = server.status()
            return status if status["device"]["running"] == "fake:0" and status["state"] == "ready" else None

        device.touch()
        status = server.wait_for(back, 60, "the device")
        assert "a new engine looks whether it is back" in status["engine"]["deaths"][-1]["reason"]
        counted = server.client.get("/metrics").text
        assert re.search(r'appliance_engine_restarts_total{engine="\w+",reason="asked"} [1-9]', counted)
        assert "appliance_degraded_models 0.0" in counted
        assert status["device"]["running"] == "fake:0" and status["device"]["reason"] is None
        assert answer(infer(server.client, "require", 3)) == [6.0] * 4


def test_under_load_nothing_is_lost(folder: Path, device: Path) -> None:
    fake(folder / "models", "m", device_file=str(device), run_ms=5)
    with Server(folder) as server, Callers(server.url, "m", 8) as callers:
        server.wait_for(callers.since(0, 50), 30)
        device.unlink()
        server.wait_for(callers.since(len(callers.outcomes), 50), 30)
        device.touch()
        restarted(server, 1)
    assert all(status == 200 and got == [2.0 * value] * 4 for value, status, got in callers.outcomes)


def test_lost_while_a_model_is_loaded(folder: Path, device: Path) -> None:
    """The warm-up's inputs are random; the file goes while it takes its time."""
    with Server(folder) as server:
        fake(folder / "models", "m", device_file=str(device), load_ms=1500)

        def loading() -> bool:
            return any(m["name"] == "m" for m in server.status()["models"])

        server.wait_for(loading, 30)
        device.unlink()
        server.wait_ready()
        assert answer(infer(server.client, "m", 3)) == [6.0] * 4
        assert server.status()["device"]["reason"] == "the fake device is not there"


async def _checked(device: Path, sick: bool) -> tuple[int | str, list[str]]:
    unfit: list[str] = []
    command = [*paths.program_command(), "engine", "--log-level", "error"]
    process, sock = await asyncio.to_thread(start_child, command)

    def on_unfit(reason: str) -> None:
        unfit.append(reason)
        process.kill()

    client = EngineClient(lambda reason: None, on_unfit)
    try:
        await client.connect(sock)
        await asyncio.wait_for(asyncio.shield(client.hello), 60)
        options = {"inputs": {"x": ["FP32", -1, 4]}, "device_file": str(device)}
        for handle, warmup in ((1, Warmup()), (2, Warmup(enabled=False))):
            config = ModelConfig(backend_options=options, warmup=warmup)
            await client.load(Load(handle, f"m{handle}", "1", "p", "r", "fake", "cpu", config, 0, 1))
        if sick:
            device.unlink()
        try:
            return await asyncio.wait_for(client.check(), 30), unfit
        except EngineDied:
            return "died", unfit
    finally:
        client.close()
        process.kill()
        await asyncio.to_thread(process.wait)


def test_a_check_runs_every_canary(folder: Path, device: Path) -> None:
    assert asyncio.run(_checked(device, sick=False)) == (1, [])


def test_a_check_finds_a_device_that_is_gone(folder: Path, device: Path) -> None:
    assert asyncio.run(_checked(device, sick=True)) == (
        "died",
        ["the canary of model 'm1' fails: the fake device is lost"],
    )
