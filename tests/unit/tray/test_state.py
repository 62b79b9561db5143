"""From the JSON of a status to what the tray knows."""

from typing import Any

from appliance.tray.state import EngineState, ModelState, from_status

URL = "http://127.0.0.1:11711"


def reading(name: str, kind: str, used: int, total: int) -> dict[str, Any]:
    return {"id": name, "name": kind, "memory_used": used, "memory_total": total}


def version(**more: Any) -> dict[str, Any]:
    return {"device": "cuda:0", "memory_bytes": 100, "running": 1, "waiting": 2} | more


def model(name: str, *versions: dict[str, Any], **more: Any) -> dict[str, Any]:
    plain = {"ready": False, "wanted": True, "asleep": False, "pinned": False, "error": None}
    return {"name": name, "versions": list(versions)} | plain | more


def status(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "state": "busy",
        "version": "1.2",
        "device": {"policy": "auto", "running": "cuda:0", "reason": None},
        "devices": [reading("cuda:0", "RTX 4060", 3, 8), reading("cpu", "EPYC", 5, 16)],
        "engine": {"state": "ready", "restarts": 0, "deaths": [], "runtimes": {"onnxruntime": "1.32.0"}},
        "memory": {},
        "queue": {"running": 2, "waiting": 7},
        "models": [],
        "restart_needed": [],
    }
    return base | more


def test_device_memory_queue_and_versions() -> None:
    found = from_status(status(), URL, starts_at_login=True, saving=True)
    assert (found.state, found.address, found.device) == ("busy", URL, "cuda:0 RTX 4060")
    assert (found.memory_used, found.memory_total) == (3, 8)
    assert (found.running, found.queued) == (2, 7)
    assert (found.starts_at_login, found.saving, found.engine_running) == (True, True, True)
    assert found.about == ("Version 1.2", "ONNX Runtime 1.32.0", "Apache License 2.0")


def test_the_speed_of_language_models() -> None:
    assert from_status(status(traffic={"tokens_out_per_s": 12.5}), URL).tokens_per_s == 12.5
    assert from_status(status(traffic={"tokens_out_per_s": None}), URL).tokens_per_s is None
    assert from_status(status(), URL).tokens_per_s is None


def test_a_status_of_one_word_is_enough() -> None:
    found = from_status({"state": "stopped"}, URL)
    assert (found.state, found.models, found.engine_running, found.device_choice) == ("stopped", (), False, None)


def test_who_holds_the_memory_the_largest_model_first() -> None:
    ledger = {"known": True, "ours": 900, "others": 300, "free": 50, "models": {"a": 100, "b": 600}}
    found = from_status(status(memory={"cuda:0": ledger}), URL).memory_parts
    assert found == (("b", 600), ("a", 100), ("runs and runtime", 200), ("other programs", 300), ("free", 50))
    unknown = from_status(status(memory={"cuda:0": ledger | {"known": False}}), URL)
    assert unknown.memory_parts == ()
    more_than_seen = from_status(status(memory={"cuda:0": ledger | {"ours": 650}}), URL)
    assert "runs and runtime" not in dict(more_than_seen.memory_parts)


def test_how_the_device_was_chosen() -> None:
    def choice(policy: str, running: str | None, *ids: str) -> str | None:
        devices = [reading(name, "x", 1, 2) for name in ids]
        device = {"policy": policy, "running": running, "reason": None}
        return from_status(status(device=device, devices=devices), URL).device_choice

    assert choice("auto", "cuda:0", "cuda:0", "cpu") == "Found by itself (device = auto)"
    assert choice("auto", "cpu", "cpu") == "No GPU was found (device = auto)"
    assert choice("auto", "cpu", "cuda:0", "cpu") is None
    assert choice("cpu", "cpu", "cuda:0", "cpu") == "Asked for by the setting device = cpu"
    assert choice("auto", None, "cpu") is None


def test_every_condition_of_a_model() -> None:
    found = from_status(
        status(
            models=[
                model("a", version(), version(memory_bytes=11, waiting=0), ready=True, pinned=True),
                model("b", error="no such file"),
                model("c", asleep=True),
                model("d"),
                model("e", wanted=False),
            ]
        ),
        URL,
    ).models
    assert [one.condition for one in found] == ["ready", "failed", "asleep", "loading", "unloaded"]
    assert found[0] == ModelState(
        name="a", condition="ready", pinned=True, device="cuda:0", memory=111, running=2, waiting=2
    )
    assert found[1].error == "no such file"


def test_the_engines_last_end() -> None:
    engine = {
        "state": "restarting",
        "restarts": 2,
        "deaths": [{"at": 1, "reason": "old"}, {"at": 2, "reason": "killed"}],
    }
    found = from_status(status(engine=engine, restart_needed=["port"]), URL)
    assert (found.engine_restarts, found.engine_last_end, found.engine_running) == (2, "killed", False)
    assert found.restart_needed == ("port",)


def engine(name: str, state: str = "ready", *ends: tuple[float, str]) -> dict[str, Any]:
    deaths = [{"at": at, "reason": reason} for at, reason in ends]
    return {"id": name, "state": state, "restarts": len(ends), "deaths": deaths}


def two_cards(**more: Any) -> dict[str, Any]:
    readings = [
        reading("cuda:0", "RTX 4060", 3, 8),
        reading("cuda:1", "RTX 4090", 4, 24),
        reading("cpu", "EPYC", 5, 16),
    ]
    base = {
        "device": {"policy": "auto", "running": "cuda:1, cuda:0", "reason": None},
        "devices": readings,
        "engines": [engine("cuda:0"), engine("cuda:1")],
    }
    return status(**(base | more))


def test_each_device_with_its_memory_and_its_engines() -> None:
    ledger = {"known": True, "ours": 6, "others": 0, "free": 2, "models": {"a": 5}}
    ends = ((5.0, "old"), (9.0, "killed"))
    found = from_status(
        two_cards(
            engines=[
                engine("cuda:0"),
                engine("cuda:1", "restarting", *ends),
                engine("cuda:0/torch", "ready", (7.0, "x")),
            ],
            engine={"state": "restarting", "restarts": 3, "deaths": []},
            memory={"cuda:0": ledger},
        ),
        URL,
    )
    first, second = found.devices
    assert (first.id, first.name, first.memory_used, first.memory_total) == ("cuda:0", "RTX 4060", 3, 8)
    assert first.memory_parts == (("a", 5), ("runs and runtime", 1), ("free", 2))
    assert [one.id for one in first.engines] == ["cuda:0", "cuda:0/torch"]
    assert second.engines == (EngineState(id="cuda:1", state="restarting", restarts=2, last_end="killed"),)
    assert (found.device, found.memory_used, found.memory_total) == ("cuda:0, cuda:1", 7, 32)
    assert found.memory_parts == ()
    assert (found.engine_running, found.engine_restarts, found.engine_last_end) == (False, 3, "cuda:1: killed")
    assert found.device_choice == "Found by itself (device = auto)"


def test_shares_of_the_cores_have_one_memory() -> None:
    ledger = {"known": True, "ours": 4, "others": 1, "free": 11, "models": {"a": 4}}
    found = from_status(
        two_cards(
            device={"policy": "cpu:0,cpu:1", "running": "cpu:1, cpu:0", "reason": None},
            engines=[engine("cpu:0"), engine("cpu:1")],
            memory={"cpu": ledger},
        ),
        URL,
    )
    assert [(d.id, d.name, d.memory_used, d.memory_total) for d in found.devices] == [
        ("cpu:0", "EPYC", 5, 16),
        ("cpu:1", "EPYC", 5, 16),
    ]
    assert {d.memory_parts for d in found.devices} == {(("a", 4), ("other programs", 1), ("free", 11))}
    assert (found.memory_used, found.memory_total) == (5, 16), "counted once"
    assert found.device_choice == "Asked for by the setting device = cpu:0,cpu:1"


def test_unified_memory_is_the_systems() -> None:
    ledger = {"known": True, "ours": 4, "others": 1, "free": 11, "models": {}}
    orin = reading("cuda:0", "Orin", 5, 16) | {"kind": "unified"}
    found = from_status(status(devices=[orin, reading("cpu", "Orin", 5, 16)], memory={"cpu": ledger}), URL)
    assert (found.device, found.memory_used, found.devices) == ("cuda:0 Orin", 5, ())
    assert found.memory_parts == (("runs and runtime", 4), ("other programs", 1), ("free", 11))


def test_an_engine_that_finds_its_device_by_itself_works_where_its_copies_are() -> None:
    copies = [{"engine": "auto", "device": "cpu"}, {"engine": "auto", "device": "cuda:0"}]
    models = [model("m", version(copies=copies[:1], device="cpu")), model("n", version(copies=copies[1:]))]
    told = status(
        engines=[engine("auto")], models=models, device={"policy": "auto", "running": "cuda:0, cpu", "reason": None}
    )
    found = from_status(told, URL)
    assert [(d.id, [e.id for e in d.engines]) for d in found.devices] == [("cuda:0", ["auto"]), ("cpu", ["auto"])]
    alone = from_status(status(engines=[engine("auto")], models=models[1:]), URL)
    assert (alone.devices, alone.device, alone.engine_last_end) == ((), "cuda:0 RTX 4060", None)


def test_many_devices_are_counted_and_unknown_memory_is_not_added_up() -> None:
    ids = [f"cuda:{n}" for n in range(8)]
    readings = [reading(name, "H200", 1, 2) for name in ids]
    told = two_cards(engines=[engine(name) for name in ids], devices=readings)
    found = from_status(told, URL)
    assert (found.device, found.memory_used, found.memory_total) == ("8 devices", 8, 16)
    readings[3]["memory_used"] = None
    assert from_status(told, URL).memory_used is None


def test_a_model_tells_all_its_devices() -> None:
    versions = (version(device="cuda:0, cuda:1"), version(device="cuda:1"), version(device=None))
    assert from_status(status(models=[model("a", *versions)]), URL).models[0].device == "cuda:0, cuda:1"
