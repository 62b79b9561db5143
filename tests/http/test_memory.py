"""Memory as a client meets it: a fake device of 1 GiB that runs out like a real one, in a real server."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.conftest import fake
from tests.http.helpers import entry, infer, outputs, refused
from tests.support.server import Server

MIB = 1 << 20
DEVICE = "fake:0"
ONE = "[batching]\nmax = 1"
# All of the device may be used, so that the numbers are round.
ALL = {"memory_fraction": 1.0, "memory_reserve_bytes": 0}


def model(server: Server, name: str, config: str = "", **options: int) -> Path:
    """A model on the fake device; it costs what it says, in MiB where the name ends in ``_mib``."""
    given = {"device_bytes": 1024 * MIB}
    given |= {k.replace("_mib", "_bytes"): v * MIB if k.endswith("_mib") else v for k, v in options.items()}
    return fake(server, name, "\n".join(f"{k} = {v}" for k, v in given.items()), config)


def declared(run_mib: int = 0, item_mib: int = 0, instances: int = 64, more: str = "", top: str = "") -> str:
    """The settings of a model that says what it costs and is never merged."""
    memory = f"[memory]\nrun_bytes = {run_mib * MIB}\nitem_bytes = {item_mib * MIB}"
    return f"instances = {instances}\n{top}\n{ONE}\n{memory}\n{more}"


def ledger(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.status()["memory"].get(DEVICE, {})
    return found


def known(server: Server) -> dict[str, Any]:
    """The ledger once the device has told."""
    found: dict[str, Any] = server.wait_for(lambda: (b := ledger(server)).get("known") and b, 20, "a reading")
    return found


def gauge(server: Server, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return None


def at_once(server: Server, name: str, count: int, headers: dict[str, str] | None = None) -> list[httpx.Response]:
    """So many requests side by side, each on a connection of its own."""
    body = {"inputs": [entry([1.0], [1, 1])]}
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    with (
        httpx.Client(base_url=server.url, timeout=90, trust_env=False, limits=limits) as client,
        ThreadPoolExecutor(min(count, 128)) as pool,
    ):
        asked = [
            pool.submit(client.post, f"/v2/models/{name}/infer", json=body, headers=headers) for _ in range(count)
        ]
        return [a.result() for a in asked]


def executions(server: Server, name: str) -> int:
    stats = server.client.get(f"/v2/models/{name}/stats").json()["model_stats"][0]
    return int(stats["execution_count"])


def codes(answers: list[httpx.Response]) -> Counter[str]:
    return Counter("ok" if a.status_code == 200 else a.json()["code"] for a in answers)


# --- admission ---------------------------------------------------------------------------------------------------


def test_the_seventeenth_request(start: Callable[..., Server]) -> None:
    """500 at once, each of which takes a sixteenth of what is free. None fails for memory."""

    def prepare(server: Server) -> None:
        config = declared(run_mib=48)
        model(server, "heavy", config, weight_mib=256, run_mib=48, run_ms=30)

    server = start(prepare, queue_per_model=400, **ALL)
    assert known(server)["weights"] == 256 * MIB
    answers = at_once(server, "heavy", 500)
    found = codes(answers)
    assert set(found) <= {"ok", "queue_full"}, found
    assert found["ok"] >= 400
    assert all(a.headers["retry-after"] for a in answers if a.status_code == 429)
    assert executions(server, "heavy") == found["ok"]
    book = ledger(server)
    assert (book["out_of_memory"], book["in_flight"], book["narrowing"]) == (0, 0, 1.0)
    assert gauge(server, "appliance_out_of_memory_total", device=DEVICE) == 0
    deaths = server.status()["engine"]["deaths"]
    assert deaths == []


def test_without_admission_the_device_does_run_out(start: Callable[..., Server]) -> None:
    """The test above tests something: the same load, with a cost that says nothing, runs out."""
    server = start(
        lambda s: model(s, "heavy", declared(run_mib=1), weight_mib=256, run_mib=48, run_ms=30),
        queue_per_model=500,
        **ALL,
    )
    known(server)
    found = codes(at_once(server, "heavy", 64))
    assert found["ok"] == 64, f"each is run again with all there is: {found}"
    book = ledger(server)
    assert book["out_of_memory"] > 0
    assert gauge(server, "appliance_out_of_memory_total", device=DEVICE) == book["out_of_memory"]


def test_what_is_measured_at_warm_up_is_enough_to_go_by(start: Callable[..., Server]) -> None:
    server = start(
        lambda s: model(s, "heavy", f"instances = 64\n{ONE}", weight_mib=100, run_mib=100, run_ms=60), **ALL
    )
    known(server)
    found = codes(at_once(server, "heavy", 60))
    assert found == {"ok": 60}
    assert ledger(server)["out_of_memory"] == 0


def test_a_model_that_lies_about_its_cost(start: Callable[..., Server]) -> None:
    """Its cost is raised, less is admitted for a while, and then more again."""
    server = start(lambda s: model(s, "liar", declared(run_mib=50), run_mib=300, run_ms=40), **ALL)
    known(server)
    for _ in range(6):
        assert codes(at_once(server, "liar", 12)) == {"ok": 12}
    book = ledger(server)
    narrowed, ran_out = book["narrowing"], book["out_of_memory"]
    assert narrowed < 1 and ran_out >= 3
    # 50 MiB were raised by half again and again until so few run at once that it is true: 1024 ÷ 300 = 3.
    assert codes(at_once(server, "liar", 30)) == {"ok": 30}
    calm = ledger(server)["out_of_memory"]
    assert codes(at_once(server, "liar", 30)) == {"ok": 30}
    assert ledger(server)["out_of_memory"] == calm, "it has learned"
    server.wait_for(lambda: ledger(server)["narrowing"] > narrowed, 30, "a step back")
    assert ledger(server)["in_flight"] == 0


def test_a_batch_that_runs_out_is_split(start: Callable[..., Server]) -> None:
    memory = f"[memory]\nrun_bytes = 0\nitem_bytes = {50 * MIB}"
    server = start(
        lambda s: model(s, "liar", f"instances = 2\n{memory}\n[batching]\nmax = 8", item_mib=400, run_ms=60), **ALL
    )
    known(server)
    for _ in range(2):
        assert codes(at_once(server, "liar", 9)) == {"ok": 9}
    assert ledger(server)["out_of_memory"] > 0


def test_one_that_runs_out_whatever_is_done(start: Callable[..., Server]) -> None:
    server = start(
        lambda s: model(s, "liar", declared(run_mib=400) + "\n[warmup]\nenabled = false", run_mib=2000), **ALL
    )
    known(server)
    answer = infer(server, "liar", entry([1.0], [1, 1]))
    refused(answer, 503, "overloaded", "out of memory")
    assert int(answer.headers["retry-after"]) >= 2
    for _ in range(4):
        answer = infer(server, "liar", entry([1.0], [1, 1]))
    refused(answer, 507, "insufficient_memory")


def test_a_large_one_is_overtaken_but_not_for_longer_than_the_bound(start: Callable[..., Server]) -> None:
    def prepare(server: Server) -> None:
        model(server, "small", declared(run_mib=100, instances=8), run_mib=100, run_ms=300)
        model(server, "large", declared(run_mib=900, instances=1), run_mib=900, run_ms=20)

    server = start(prepare, max_overtake_ms=1500, **ALL)
    known(server)
    over = threading.Event()
    found: list[Counter[str]] = []

    def load() -> None:
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            body = {"inputs": [entry([1.0], [1, 1])]}
            while not over.is_set():
                found.append(codes([client.post("/v2/models/small/infer", json=body)]))

    clients = [threading.Thread(target=load) for _ in range(6)]
    for number, client in enumerate(clients):
        client.start()
        time.sleep(0.05 * (number % 2))
    try:
        server.wait_for(lambda: ledger(server)["in_flight"] >= 400 * MIB, 20, "the small ones")
        began, before = time.monotonic(), executions(server, "small")
        assert outputs(infer(server, "large", entry([1.0], [1, 1]))) == {"y": [2.0]}
        took, overtook = time.monotonic() - began, executions(server, "small") - before
    finally:
        over.set()
        for client in clients:
            client.join()
    assert 1.4 <= took < 1.5 + 0.3 + 4, took  # the bound, the runs in flight, and a busy machine
    assert overtook >= 6, "others were served meanwhile"
    assert sum(found, Counter()).keys() == {"ok"}
    assert ledger(server)["out_of_memory"] == 0 and ledger(server)["reserved"] == 0


def test_a_run_that_never_fits_is_refused_with_the_arithmetic(start: Callable[..., Server]) -> None:
    server = start(lambda s: model(s, "heavy", declared(item_mib=200), weight_mib=300, item_mib=200), **ALL)
    known(server)
    assert infer(server, "heavy", entry([1.0] * 3, [3, 1])).status_code == 200
    answer = infer(server, "heavy", entry([1.0] * 4, [4, 1]))
    refused(answer, 507, "insufficient_memory", "800 MiB (declared)", "1024 MiB", "300 MiB")
    assert "retry-after" not in answer.headers


# --- loading ------------------------------------------------------------------------------------------------------


def ready(server: Server, name: str) -> bool:
    return server.client.get(f"/v2/models/{name}/ready").status_code == 200


def asks(server: Server, name: str, **headers: str) -> httpx.Response:
    return infer(server, name, entry([1.0], [1, 1]), headers=headers)


def test_idle_models_make_room_and_come_back_when_they_are_asked(start: Callable[..., Server]) -> None:
    def prepare(server: Server) -> None:
        model(server, "pinned", declared(run_mib=1, top="required = true"), weight_mib=200)
        for name in ("a", "b"):
            model(server, name, declared(run_mib=1), weight_mib=350, load_ms=50)

    server = start(prepare, **ALL)
    known(server)
    for name in ("pinned", "a", "b", "a"):
        assert asks(server, name).status_code == 200
    model(server, "c", declared(run_mib=1, top='load = "lazy"'), weight_mib=350)
    server.wait_for(lambda: ("c", "1") in server.index(), 20, "the new folder")
    assert server.index()["c", "1"]["reason"] == "not loaded; a request loads it"
    assert outputs(asks(server, "c")) == {"y": [2.0]}
    assert (ready(server, "pinned"), ready(server, "a"), ready(server, "b")) == (True, True, False)
    assert server.client.get("/ready").status_code == 200, "sleeping is no fault"
    assert ledger(server)["weights"] == 900 * MIB
    assert outputs(asks(server, "b")) == {"y": [2.0]}
    assert (ready(server, "a"), ready(server, "b"), ready(server, "c")) == (False, True, True)
    assert asks(server, "pinned").status_code == 200
    assert server.status()["state"] == "ready" and ledger(server)["weights"] == 900 * MIB


def test_idle_models_also_leave_for_a_run_that_would_never_fit_beside_them(start: Callable[..., Server]) -> None:
    def prepare(server: Server) -> None:
        model(server, "idle", declared(run_mib=1), weight_mib=500)
        model(server, "m", declared(item_mib=200), weight_mib=100, item_mib=200, run_ms=50)

    server = start(prepare, **ALL)
    known(server)
    assert infer(server, "m", entry([1.0] * 2, [2, 1])).status_code == 200
    assert ready(server, "idle"), "424 are left, 400 fit"
    assert outputs(infer(server, "m", entry([1.0] * 3, [3, 1]))) == {"y": [2.0] * 3}
    assert not ready(server, "idle") and ledger(server)["out_of_memory"] == 0
    assert asks(server, "idle").status_code == 200, "a request wakes it"
    refused(infer(server, "m", entry([1.0] * 5, [5, 1])), 507, "insufficient_memory", "1000 MiB")


def test_a_burst_at_a_sleeping_model_waits_for_it_as_one(start: Callable[..., Server]) -> None:
    server = start(lambda s: model(s, "lazy", declared(run_mib=1, top='load = "lazy"'), load_ms=800), **ALL)
    assert not ready(server, "lazy")
    assert server.client.get("/ready").status_code == 200
    assert codes(at_once(server, "lazy", 20)) == {"ok": 20}
    assert ready(server, "lazy")


def test_a_load_longer_than_the_request_may_wait(start: Callable[..., Server]) -> None:
    server = start(lambda s: model(s, "lazy", declared(run_mib=1, top='load = "lazy"'), load_ms=2500), **ALL)
    answer = asks(server, "lazy", **{"X-Timeout-Ms": "300"})
    refused(answer, 503, "warming_up")
    assert asks(server, "lazy").status_code == 200, "the load went on"


def test_a_busy_model_is_waited_for_and_a_kept_one_is_not_sent_away(start: Callable[..., Server]) -> None:
    def prepare(server: Server) -> None:
        model(server, "busy", declared(run_mib=1), weight_mib=600, run_ms=1500)
        model(server, "other", declared(run_mib=1, top='load = "lazy"\nkeep_alive_s = 600'), weight_mib=600)

    server = start(prepare, **ALL)
    known(server)
    running = threading.Thread(target=asks, args=(server, "busy"))
    running.start()
    server.wait_for(lambda: server.status()["queue"]["running"], 20, "the run")
    refused(asks(server, "other", **{"X-Timeout-Ms": "300"}), 503, "overloaded", "600 MiB")
    assert asks(server, "other").status_code == 200, "it waited for the run"
    running.join()
    assert not ready(server, "busy")
    answer = asks(server, "busy", **{"X-Timeout-Ms": "500"})
    refused(answer, 503, "overloaded", "models hold 600 MiB (0 MiB of it idle)")
    assert answer.headers["retry-after"]
    assert ready(server, "other")
    refused(server.client.post("/v2/repository/models/busy/load"), 503, "overloaded")


def test_a_model_that_never_fits(start: Callable[..., Server]) -> None:
    def prepare(server: Server) -> None:
        model(server, "pinned", declared(run_mib=1, top="required = true"), weight_mib=100)

    server = start(prepare, memory_fraction=0.5, memory_reserve_bytes=12 * MIB)
    known(server)
    model(server, "huge", declared(run_mib=1), weight_mib=401)
    words = "it needs about 401 MiB; fake:0 can give 500 MiB, of which models hold 100 MiB (0 MiB of it idle)"
    server.wait_for(lambda: words in server.index().get(("huge", "1"), {}).get("reason", ""), 20, "the refusal")
    for _ in range(2):
        refused(asks(server, "huge"), 507, "insufficient_memory", words)
    refused(server.client.post("/v2/repository/models/huge/load"), 507, "insufficient_memory", words)
    assert server.index()["huge", "1"]["state"] == "UNAVAILABLE"
    assert server.status()["state"] == "degraded" and server.client.get("/ready").status_code == 200
    assert asks(server, "pinned").status_code == 200
    with (server.models / "huge" / "model.toml").open("w") as file:
        file.write(f'backend = "fake"\n[backend_options]\ndevice_bytes = {1024 * MIB}\nweight_bytes = {399 * MIB}\n')
    server.wait_for(lambda: ready(server, "huge"), 20, "the smaller one")
    assert ledger(server)["weights"] == 499 * MIB


def test_a_load_waits_for_the_runs_whose_memory_it_needs(start: Callable[..., Server]) -> None:
    def prepare(server: Server) -> None:
        model(server, "runs", declared(run_mib=150, top="required = true"), weight_mib=100, run_mib=150, run_ms=700)
        model(server, "lazy", declared(run_mib=1, top='load = "lazy"'), weight_mib=800, load_ms=200)

    server = start(prepare, **ALL)
    known(server)
    with ThreadPoolExecutor(12) as pool:
        first = [pool.submit(asks, server, "runs") for _ in range(6)]
        server.wait_for(lambda: ledger(server)["in_flight"] >= 300 * MIB, 20, "the runs")
        lazy = pool.submit(asks, server, "lazy")
        assert lazy.result().status_code == 200
        assert [f.result().status_code for f in first] == [200] * 6
    assert asks(server, "runs").status_code in (200, 507)
    assert ledger(server)["out_of_memory"] == 0


# --- afterwards ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_after_an_engine_s_death_the_ledger_is_right_again(start: Callable[..., Server]) -> None:
    def prepare(server: Server) -> None:
        model(server, "heavy", declared(run_mib=48), weight_mib=256, run_mib=48, run_ms=200)
        model(server, "asleep", declared(run_mib=1, top='load = "lazy"'), weight_mib=100)

    server = start(prepare, **ALL)
    assert known(server)["weights"] == 256 * MIB
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(at_once, server, "heavy", 60)
        server.wait_for(lambda: ledger(server)["in_flight"] > 0, 20, "the runs")
        os.kill(server.engine_pid, signal.SIGKILL)
        found = codes(asked.result())
    assert found == {"ok": 60}
    server.wait_ready()
    book = ledger(server)
    assert (book["weights"], book["in_flight"], book["reserved"]) == (256 * MIB, 0, 0)
    assert book["out_of_memory"] == 0 and not ready(server, "asleep")
    assert codes(at_once(server, "heavy", 60)) == {"ok": 60}


def test_status_and_metrics_tell_the_same(start: Callable[..., Server]) -> None:
    server = start(lambda s: model(s, "m", declared(run_mib=10), weight_mib=100), memory_fraction=0.8)
    book = known(server)
    assert book["ceiling"] == int(1024 * MIB * 0.8) - 256 * MIB == book["capacity"]
    assert book["room"] == book["capacity"] - 100 * MIB
    for kind in ("capacity", "weights", "in_flight", "reserved", "others"):
        assert gauge(server, "appliance_memory_budget_bytes", device=DEVICE, kind=kind) == book[kind]
    assert gauge(server, "appliance_out_of_memory_total", device=DEVICE) == 0
    assert server.status()["models"][0]["versions"][0]["memory_bytes"] == 100 * MIB
    server.client.post("/v2/repository/models/m/unload")
    assert ledger(server)["weights"] == 0
