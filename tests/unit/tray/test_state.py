"""From the JSON of a status to what the tray knows."""

from typing import Any

from appliance.tray.state import ModelState, from_status

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
    engine = {"state": "restarting", "restarts": 2, "deaths": [{"reason": "old"}, {"reason": "killed"}]}
    found = from_status(status(engine=engine, restart_needed=["port"]), URL)
    assert (found.engine_restarts, found.engine_last_end, found.engine_running) == (2, "killed", False)
    assert found.restart_needed == ("port",)
