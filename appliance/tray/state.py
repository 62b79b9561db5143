"""What the tray knows, made from the JSON of ``/api/status``. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

State = Literal["starting", "ready", "busy", "degraded", "stopped", "paused"]
ModelCondition = Literal["ready", "loading", "failed", "asleep", "unloaded"]

_NAMED = 3  # devices in one line


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """One model. ``device``: all that it is on ("cuda:0, cuda:1"); ``memory`` is what its weights take there, in
    bytes; ``asleep``: a request loads it; ``progress``: what its load, which takes long, is doing."""

    name: str
    condition: ModelCondition
    pinned: bool = False
    device: str | None = None
    memory: int = 0
    running: int = 0
    waiting: int = 0
    error: str | None = None
    progress: str | None = None


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process. ``state``: ``starting``, ``ready``, ``restarting`` or ``stopped``; ``last_end``: why the
    one before it ended."""

    id: str
    state: str = "ready"
    restarts: int = 0
    last_end: str | None = None


class DeviceState(msgspec.Struct, frozen=True, kw_only=True):
    """One device that is used. Memory as in ``TrayState``, of the ``pool`` that the device takes it from:
    ``cpu:0`` and ``cpu:1`` have the system's together. ``engines``: those that work on it."""

    id: str
    name: str = ""
    pool: str = ""
    memory_used: int | None = None
    memory_total: int | None = None
    memory_parts: tuple[tuple[str, int], ...] = ()
    engines: tuple[EngineState, ...] = ()


class TrayState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the tray shows. Memory in bytes, None where the device does not tell.

    ``device`` is a text for people ("cuda:0 NVIDIA RTX 4060"; of several "cuda:0, cuda:1"); ``device_reason`` says
    why it is not the one that was asked for, ``device_choice`` how it was chosen. ``memory_parts``: who holds the
    device's memory. ``devices``: those that are used, where they are several; ``memory_…`` is then of all together.
    ``engine_running``: all engines do. ``engine_last_end`` names the engine where there are several. ``address`` is
    the API's base URL. ``restart_needed``: settings that count after a restart. ``starts_at_login``: None where it
    cannot be told. ``saving``: a diagnostic file is being made. ``tokens_per_s``: of the language models' answers,
    over the last seconds, None where none was asked; ``kv_cache``: booked for those that run. ``attached``: the icon
    is a program of its own, and goes without the appliance. ``away``: why nothing is known of the appliance; all else
    says nothing then.
    """

    state: State
    address: str
    device: str
    device_reason: str | None = None
    device_choice: str | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    memory_parts: tuple[tuple[str, int], ...] = ()
    devices: tuple[DeviceState, ...] = ()
    running: int = 0
    queued: int = 0
    tokens_per_s: float | None = None
    kv_cache: int = 0
    models: tuple[ModelState, ...] = ()
    engines: tuple[EngineState, ...] = ()
    engine_running: bool = True
    engine_restarts: int = 0
    engine_last_end: str | None = None
    restart_needed: tuple[str, ...] = ()
    starts_at_login: bool | None = None
    saving: bool = False
    about: tuple[str, ...] = ()
    attached: bool = False
    away: str | None = None


def not_there(why: str, address: str, *, saving: bool = False) -> TrayState:
    """Of an appliance that does not answer an icon which is a program of its own."""
    return TrayState(state="stopped", address=address, device="", saving=saving, attached=True, away=why)


def from_status(
    status: Mapping[str, Any],
    address: str,
    *,
    starts_at_login: bool | None = None,
    saving: bool = False,
    attached: bool = False,
) -> TrayState:
    """The state of a status, which may lack everything but ``state``."""
    device, engine, queue = (status.get(part) or {} for part in ("device", "engine", "queue"))
    found = status.get("engines") or []
    engines = tuple(_engine(one) for one in found)
    devices = _devices(status, engines)
    shown = devices[0] if len(devices) == 1 else _together(devices)
    return TrayState(
        state=status["state"],
        address=address,
        device=f"{shown.id} {shown.name}".rstrip(),
        device_reason=device.get("reason"),
        device_choice=_choice(
            device.get("policy"), device.get("running") or "", [d["id"] for d in status.get("devices") or ()]
        ),
        memory_used=shown.memory_used,
        memory_total=shown.memory_total,
        memory_parts=shown.memory_parts,
        devices=devices if len(devices) > 1 else (),
        running=queue.get("running", 0),
        queued=queue.get("waiting", 0),
        kv_cache=sum(v.get("kv_cache_bytes") or 0 for m in status.get("models") or () for v in m["versions"]),
        tokens_per_s=(status.get("traffic") or {}).get("tokens_out_per_s"),
        models=tuple(_model(m) for m in status.get("models") or ()),
        engines=engines,
        engine_running=engine.get("state") == "ready",
        engine_restarts=engine.get("restarts", 0),
        engine_last_end=_last_end(found or [engine]),
        restart_needed=tuple(status.get("restart_needed") or ()),
        starts_at_login=starts_at_login,
        saving=saving,
        about=_about(status, engine),
        attached=attached,
    )


def _engine(told: Mapping[str, Any]) -> EngineState:
    deaths = told["deaths"]
    return EngineState(
        id=told["id"],
        state=told["state"],
        restarts=told["restarts"],
        last_end=deaths[-1]["reason"] if deaths else None,
    )


def _last_end(engines: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the engine that ended last did, with its name where it is one of several."""
    every = [(death["at"], one.get("id"), death["reason"]) for one in engines for death in one.get("deaths") or ()]
    if not every:
        return None
    _, name, reason = max(every, key=lambda death: death[0])
    return f"{name}: {reason}" if len(engines) > 1 else str(reason)


def _devices(status: Mapping[str, Any], engines: tuple[EngineState, ...]) -> tuple[DeviceState, ...]:
    """The devices that engines were made for, in the order of the setting, and others that models run on; never none.

    An engine that was to find its device by itself (``auto``, ``cuda``) works where its copies are.
    """
    copies = [copy for m in status.get("models") or () for v in m["versions"] for copy in v.get("copies") or ()]
    running = ((status.get("device") or {}).get("running") or "").split(", ")
    places = {engine.id: engine.id.partition("/")[0] for engine in engines}
    own = [place for place in places.values() if place not in ("auto", "cuda")]
    ids = list(dict.fromkeys([*own, *sorted(filter(None, running))]))
    if not own:  # a GPU first: what was found by itself
        ids.sort(key=lambda one: one.startswith("cpu"))
    works = {(copy["engine"], copy["device"]) for copy in copies}
    return tuple(
        _device(one, status, tuple(e for e in engines if places[e.id] == one or (e.id, one) in works))
        for one in ids or ["cpu"]
    )


def _device(name: str, status: Mapping[str, Any], engines: tuple[EngineState, ...]) -> DeviceState:
    shares = name.startswith("cpu")
    reading = next((d for d in status.get("devices") or () if d["id"] == ("cpu" if shares else name)), None)
    pool = "cpu" if shares or (reading or {}).get("kind") == "unified" else name
    return DeviceState(
        id=name,
        name=reading["name"] if reading else "",
        pool=pool,
        memory_used=reading["memory_used"] if reading else None,
        memory_total=reading["memory_total"] if reading else None,
        memory_parts=_parts((status.get("memory") or {}).get(pool) or {}),
        engines=engines,
    )


def _together(devices: tuple[DeviceState, ...]) -> DeviceState:
    """All of them as one; memory that they share counts once."""
    pools = {device.pool: device for device in devices}.values()
    ids = ", ".join(device.id for device in devices)
    return DeviceState(
        id=ids if len(devices) <= _NAMED else f"{len(devices)} devices",
        memory_used=_sum(device.memory_used for device in pools),
        memory_total=_sum(device.memory_total for device in pools),
    )


def _sum(sizes: Iterable[int | None]) -> int | None:
    """None where one is not known."""
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


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
        device=", ".join(dict.fromkeys(d for v in versions for d in (v["device"] or "").split(", ") if d)) or None,
        memory=sum(v["memory_bytes"] or 0 for v in versions),
        running=sum(v["running"] for v in versions),
        waiting=sum(v["waiting"] for v in versions),
        error=model["error"],
        progress=next((v["progress"] for v in versions if v.get("progress")), None),
    )


def _about(status: Mapping[str, Any], engine: Mapping[str, Any]) -> tuple[str, ...]:
    names = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch"}
    runtimes = [f"{names.get(name, name)} {version}" for name, version in (engine.get("runtimes") or {}).items()]
    version = status.get("version")
    return (*([f"Version {version}"] if version else []), *runtimes, "Apache License 2.0")
