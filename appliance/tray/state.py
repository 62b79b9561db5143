"""What the tray knows, made from the JSON of ``/api/status``. Pure."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

State = Literal["starting", "ready", "busy", "degraded", "stopped", "paused"]
ModelCondition = Literal["ready", "loading", "failed", "asleep", "unloaded"]


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """One model. ``memory`` is what its weights take, in bytes; ``asleep``: a request loads it."""

    name: str
    condition: ModelCondition
    pinned: bool = False
    device: str | None = None
    memory: int = 0
    running: int = 0
    waiting: int = 0
    error: str | None = None


class TrayState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the tray shows. Memory in bytes, None where the device does not tell.

    ``device`` is a text for people ("cuda:0 NVIDIA RTX 4060"); ``device_reason`` says why it is not the one that was
    asked for, ``device_choice`` how it was chosen. ``memory_parts``: who holds the device's memory. ``address`` is
    the API's base URL. ``restart_needed``: settings that count after a restart. ``starts_at_login``: None where it
    cannot be told. ``saving``: a diagnostic file is being made.
    """

    state: State
    address: str
    device: str
    device_reason: str | None = None
    device_choice: str | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory_parts: tuple[tuple[str, int], ...] = ()
    running: int = 0
    queued: int = 0
    models: tuple[ModelState, ...] = ()
    engine_running: bool = True
    engine_restarts: int = 0
    engine_last_end: str | None = None
    restart_needed: tuple[str, ...] = ()
    starts_at_login: bool | None = None
    saving: bool = False
    about: tuple[str, ...] = ()


def from_status(
    status: Mapping[str, Any], address: str, *, starts_at_login: bool | None = None, saving: bool = False
) -> TrayState:
    """The state of a status, which may lack everything but ``state``."""
    device, engine, queue = (status.get(part) or {} for part in ("device", "engine", "queue"))
    running = device.get("running") or ""
    first = running.partition(",")[0]
    readings = status.get("devices") or []
    shown = first or "cpu"
    reading = next((d for d in readings if d["id"] == shown), readings[-1] if readings else None)
    deaths = engine.get("deaths") or []
    return TrayState(
        state=status["state"],
        address=address,
        device=f"{shown} {reading['name']}" if reading else shown,
        device_reason=device.get("reason"),
        device_choice=_choice(device.get("policy"), first, [d["id"] for d in readings]),
        memory_used=reading["memory_used"] if reading else None,
        memory_total=reading["memory_total"] if reading else None,
        memory_parts=_parts((status.get("memory") or {}).get(shown) or {}),
        running=queue.get("running", 0),
        queued=queue.get("waiting", 0),
        models=tuple(_model(m) for m in status.get("models") or ()),
        engine_running=engine.get("state") == "ready",
        engine_restarts=engine.get("restarts", 0),
        engine_last_end=deaths[-1]["reason"] if deaths else None,
        restart_needed=tuple(status.get("restart_needed") or ()),
        starts_at_login=starts_at_login,
        saving=saving,
        about=_about(status, engine),
    )


def _choice(policy: str | None, running: str, known: list[str]) -> str | None:
    """Why it runs there, in words; None as long as nothing runs."""
    if not running or policy is None:
        return None
    if policy != "auto":
        return f"Asked for by the setting device = {policy}"
    if not running.startswith("cpu"):
        return "Found by itself (device = auto)"
    cards = [name for name in known if name != "cpu"]
    return None if cards else "No GPU was found (device = auto)"


def _parts(ledger: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Who holds what of one device's memory, the models first; nothing where it cannot be told."""
    if not ledger.get("known"):
        return ()
    models = sorted(ledger["models"].items(), key=lambda pair: (-pair[1], pair[0]))
    rest = ledger["ours"] - sum(size for _, size in models)
    parts = [*models, ("runs and runtime", rest), ("other programs", ledger["others"]), ("free", ledger["free"])]
    return tuple((name, size) for name, size in parts if size > 0)


def _model(model: Mapping[str, Any]) -> ModelState:
    versions = model["versions"]
    condition: ModelCondition = "unloaded"
    if model["ready"]:
        condition = "ready"
    elif model["error"]:
        condition = "failed"
    elif model["asleep"]:
        condition = "asleep"
    elif model["wanted"]:
        condition = "loading"
    return ModelState(
        name=model["name"],
        condition=condition,
        pinned=model["pinned"],
        device=next((v["device"] for v in versions if v["device"]), None),
        memory=sum(v["memory_bytes"] or 0 for v in versions),
        running=sum(v["running"] for v in versions),
        waiting=sum(v["waiting"] for v in versions),
        error=model["error"],
    )


def _about(status: Mapping[str, Any], engine: Mapping[str, Any]) -> tuple[str, ...]:
    names = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch"}
    runtimes = [f"{names.get(name, name)} {version}" for name, version in (engine.get("runtimes") or {}).items()]
    version = status.get("version")
    return (*([f"Version {version}"] if version else []), *runtimes, "Apache License 2.0")
