"""Two CPU engines: where models live, copies of one on both, and the death of one that nobody notices."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil

from tests.process.helpers import answer, code, fake, infer
from tests.support import nets
from tests.support.server import Server

TWO = "cpu:0,cpu:1"


def engines(server: Server) -> dict[str, dict[str, object]]:
    return {engine["id"]: engine for engine in server.status()["engines"]}


def homes(server: Server, model: str) -> list[str]:
    (found,) = [m for m in server.status()["models"] if m["name"] == model]
    return sorted(copy["device"] for version in found["versions"] for copy in version["copies"])


def test_models_spread_over_the_engines_and_each_keeps_to_its_cores(folder: Path) -> None:
    for name in ("a", "b", "c", "d"):
        nets.scale(folder / f"models/{name}/1/model.onnx")
    with Server(folder, device=TWO) as server:
        found = engines(server)
        assert set(found) == {"cpu:0", "cpu:1"}
        where = [homes(server, name) for name in ("a", "b", "c", "d")]
        assert all(len(place) == 1 for place in where)
        assert sorted(place[0] for place in where) == ["cpu:0", "cpu:0", "cpu:1", "cpu:1"]
        for name, (place,) in zip(("a", "b", "c", "d"), where, strict=True):
            got = infer(server.client, name, 3)
            assert answer(got) == [6.0] * 4 and got.headers["x-device"] == place
        cores = [set(psutil.Process(int(str(e["pid"]))).cpu_affinity()) for e in found.values()]
        own = len(psutil.Process().cpu_affinity())
        assert not cores[0] & cores[1] and {len(c) for c in cores} == {own // 2}
        memory = server.status()["memory"]
        assert list(memory) == ["cpu"], "they share the system's memory"
        assert sum(memory["cpu"]["models"].values()) == memory["cpu"]["weights"]


def test_a_copy_on_each_device_and_the_death_of_one_under_load(folder: Path) -> None:
    fake(folder / "models", "both", 'devices = ["all"]', run_ms=5)
    with Server(folder, device=TWO) as server:
        server.wait_for(lambda: homes(server, "both") == ["cpu:0", "cpu:1"], what="both copies")
        devices: dict[str, int] = {}
        wrong: list[object] = []
        stop = threading.Event()
        lock = threading.Lock()

        def call() -> None:
            n = 0
            while not stop.is_set():
                n = n % 100 + 1
                got = infer(server.client, "both", n)
                with lock:
                    if got.status_code != 200 or answer(got) != [2.0 * n] * 4:
                        wrong.append((got.status_code, got.text))
                    else:
                        where = got.headers["x-device"]
                        devices[where] = devices.get(where, 0) + 1

        callers = [threading.Thread(target=call) for _ in range(8)]
        for caller in callers:
            caller.start()
        try:
            time.sleep(1)
            with lock:
                before = dict(devices)
            assert set(before) == {"cpu:0", "cpu:1"}, "each takes its part"
            pid = int(str(engines(server)["cpu:1"]["pid"]))
            os.kill(pid, signal.SIGKILL)
            server.wait_for(lambda: engines(server)["cpu:1"]["restarts"] == 1, what="the restart")
            assert server.client.get("/ready").status_code == 200 or engines(server)["cpu:0"]["state"] == "ready"
            server.wait_for(lambda: homes(server, "both") == ["cpu:0", "cpu:1"], what="its copy again")
            with lock:
                then = dict(devices)
            server.wait_for(lambda: devices["cpu:1"] > then["cpu:1"], what="answers of the new engine")
        finally:
            stop.set()
            for caller in callers:
                caller.join(30)
        assert wrong == []
        found = engines(server)
        assert (found["cpu:0"]["restarts"], found["cpu:1"]["restarts"]) == (0, 1)
        told = server.client.get("/metrics").text
        assert 'appliance_engine_restarts_total{engine="cpu:1",reason="crash"} 1.0' in told
        assert 'appliance_engine_up{engine="cpu:0"} 1.0' in told
        config = server.client.get("/v2/models/both/config").json()
        assert [group["name"] for group in config["instance_group"]] == ["both_0", "both_1"]


def test_a_model_moves_when_its_engine_does_not_come_back(folder: Path) -> None:
    fake(folder / "models", "m", run_ms=1)
    with Server(folder, device=TWO) as server:
        (home,) = homes(server, "m")
        other = "cpu:1" if home == "cpu:0" else "cpu:0"
        for deaths in (1, 2, 3):
            server.wait_for(lambda: engines(server)[home]["pid"] and engines(server)[home]["state"] == "ready")
            os.kill(int(str(engines(server)[home]["pid"])), signal.SIGKILL)
            server.wait_for(lambda n=deaths: engines(server)[home]["restarts"] >= n, what="a death")
        assert answer(infer(server.client, "m", 4)) == [8.0] * 4
        server.wait_for(lambda: homes(server, "m") in ([home], [other]), what="a home")


def test_a_device_that_is_not_used_is_told_by_its_name(folder: Path) -> None:
    fake(folder / "models", "m", 'devices = ["cpu:0", "cuda:3"]')
    with Server(folder, device=TWO) as server:
        got = infer(server.client, "m", 1)
        assert got.status_code == 404 and code(got) == "model_not_found"
        told = got.json()["error"]
        assert "'cuda:3' is not used here (used: cpu:0, cpu:1" in told and "line 2" in told
