"""What Prometheus is told of the state."""

import asyncio
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from appliance import __version__
from appliance.engine.messages import DeviceMemory
from appliance.errors import ModelLoadError
from appliance.metrics import Metrics
from appliance.serving.gauges import Gauges
from appliance.system.devices import DeviceReading
from tests.unit.serving.serving_helpers import Bench
from tests.unit.test_metrics import samples

GIB = 1 << 30
CARD = DeviceReading(
    id="cuda:0",
    name="Card",
    kind="nvml",
    memory_total=8 * GIB,
    memory_used=3 * GIB,
    memory_free=5 * GIB,
    used_by_us=GIB,
    utilisation=0.37,
    temperature_c=55.0,
    power_w=71.25,
    power_limit_w=115.0,
    driver="580.65.06",
    cuda_version="13.0",
    compute_capability="8.9",
)


def made(bench: Bench, devices: list[DeviceReading]) -> tuple[Metrics, Any]:
    """Metrics with their gauges, and the supervisor."""
    hello = SimpleNamespace(runtimes={"onnxruntime": "1.31.0"})
    causes = {"crash": 2, "hang": 0}
    supervisor: Any = SimpleNamespace(client=None, causes=causes, hello=None)
    metrics = Metrics()
    metrics.state.add(
        Gauges(bench.catalog, bench.gate, {"cpu": supervisor}, metrics, lambda: devices, lambda: 123, 1_700_000_000.5)
    )
    supervisor.up = lambda: (
        setattr(supervisor, "client", SimpleNamespace(memory_bytes=55)) or setattr(supervisor, "hello", hello)
    )
    return metrics, supervisor


def test_models_queues_and_the_engine(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        metrics, supervisor = made(bench, [])
        found = samples(metrics)
        assert (found["appliance_engine_up|cpu"], found["appliance_ready"]) == (0, 0)
        assert "appliance_engine_memory_bytes|cpu" not in found
        assert not [name for name in found if "runtime_info" in name]
        supervisor.up()
        worker = asyncio.ensure_future(bench.catalog.run())
        bench.engine_up()
        bench.model("a", "[limits]\nqueue = 7")
        bench.model("b")
        bench.client.faults["b"] = ModelLoadError("broken")
        await bench.rescan()
        found = samples(metrics)
        assert found["appliance_ready"] == 1 and found["appliance_paused"] == 0
        assert found["appliance_engine_up|cpu"] == 1 and found["appliance_engine_memory_bytes|cpu"] == 55
        assert found["appliance_engine_restarts_total|cpu|crash"] == 2
        assert found["appliance_engine_restarts_total|cpu|hang"] == 0
        assert found["appliance_host_memory_bytes"] == 123
        assert found["appliance_start_time_seconds"] == 1_700_000_000.5
        assert found["appliance_runtime_info|cpu|onnxruntime|1.31.0"] == 1
        build = next(name for name in found if "build_info" in name)
        assert __version__ in build and platform.python_version() in build
        assert found["appliance_models|READY"] == 1 and found["appliance_models|UNAVAILABLE"] == 1
        assert found["appliance_models|LOADING"] == 0
        assert found["appliance_model_ready|a|1"] == 1 and found["appliance_model_ready|b|1"] == 0
        assert found["appliance_pending_requests_limit|a|1"] == 7
        assert found["appliance_pending_requests_limit|b|1"] == 256
        assert found["appliance_queue_limit"] == 1024
        assert found["appliance_requests_total|ok|a|1"] == 0, "a rate needs a first value"
        assert found["appliance_degraded_models"] == 0
        bench.ask("a")
        bench.ask("a")
        bench.gate.pause()
        found = samples(metrics)
        assert found["appliance_paused"] == 1
        assert (found["appliance_queue_length"], found["appliance_runs_in_flight"]) == (1, 1)
        assert (found["appliance_pending_requests|a|1"], found["appliance_model_runs_in_flight|a|1"]) == (1, 1)
        assert (found["appliance_pending_requests|b|1"], found["appliance_model_runs_in_flight|b|1"]) == (0, 0)
        worker.cancel()

    asyncio.run(main())


def test_memory_before_and_after_the_device_has_told_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        metrics, _ = made(bench, [])
        worker = asyncio.ensure_future(bench.catalog.run())
        bench.engine_up()
        bench.model("a")
        await bench.rescan()
        found = samples(metrics)
        assert found["appliance_memory_budget_bytes|cpu|weights"] == 3  # as the fake engine says
        assert found["appliance_model_memory_bytes|cpu|a|1"] == 3
        assert found["appliance_out_of_memory_total|cpu"] == 0
        assert "appliance_memory_budget_bytes|cpu|capacity" not in found, "not known is not 0"
        bench.gate.memory_read({"cpu": DeviceMemory(total=1000, free=600, ours=100)})
        found = samples(metrics)
        kinds = ("capacity", "ceiling", "others", "weights", "in_flight", "reserved", "reserve")
        # Other programs hold 1000 - 600 - 100; what is free and what is ours is ours to use.
        assert [found[f"appliance_memory_budget_bytes|cpu|{k}"] for k in kinds] == [700, 1000, 300, 3, 0, 0, 0]
        assert found["appliance_memory_narrowing_ratio|cpu"] == 1
        bench.down()
        found = samples(metrics)
        assert found["appliance_model_memory_bytes|cpu|a|1"] == 0
        worker.cancel()

    asyncio.run(main())


def test_a_device_that_tells_everything_and_one_that_tells_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        metrics, _ = made(Bench(tmp_path), [CARD, DeviceReading(id="cuda:1", name="Other", kind="nvml")])
        found = samples(metrics)
        assert {name.removeprefix("appliance_device_"): v for name, v in found.items() if "_device_" in name} == {
            "info|8.9|13.0|cuda:0|580.65.06|Card": 1,
            "info|||cuda:1||Other": 1,
            "memory_bytes|cuda:0|total": 8 * GIB,
            "memory_bytes|cuda:0|used": 3 * GIB,
            "memory_bytes|cuda:0|free": 5 * GIB,
            "memory_bytes|cuda:0|ours": GIB,
            "utilisation_ratio|cuda:0": 0.37,
            "temperature_celsius|cuda:0": 55,
            "power_watts|cuda:0": 71.25,
            "power_limit_watts|cuda:0": 115,
        }

    asyncio.run(main())
