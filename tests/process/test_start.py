"""What a start and an idle appliance cost, with the embedded models. The figures are printed; the bounds asserted
are generous, for a busy machine."""

import time
from pathlib import Path

import psutil

from tests.support.server import Server

READY_S, IDLE_S = 60.0, 10.0


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def test_start_and_idle(folder: Path) -> None:
    began = time.monotonic()
    with Server(folder, embedded=True) as server:
        took = time.monotonic() - began
        models = server.status()["models"]
        assert {"classify", "detect", "segment", "ocr"} <= {model["name"] for model in models if model["ready"]}
        assert all(model["ready"] and model["embedded"] for model in models)
        print(f"\nready, with {len(models)} embedded models, in {took:.1f} s (goal: 20)")
        assert took < READY_S

        assert server.process is not None
        host, engine = psutil.Process(server.process.pid), psutil.Process(server.engine_pid)
        time.sleep(1)  # the last of the start
        before, at = (_cpu_s(host), _cpu_s(engine)), time.monotonic()
        time.sleep(IDLE_S)
        span = time.monotonic() - at
        share = [100 * (now - then) / span for now, then in zip((_cpu_s(host), _cpu_s(engine)), before, strict=True)]
        rss = host.memory_info().rss / 2**20
        print(f"idle: host {share[0]:.2f} %, engine {share[1]:.2f} % of a core (goal: 0.5 in all)")
        print(f"memory: host {rss:.0f} MB (goal: 150), engine {engine.memory_info().rss / 2**20:.0f} MB")
        assert sum(share) < 3
        assert rss < 250
