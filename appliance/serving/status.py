"""The JSON of ``/api/status``: one picture of everything, for tray, dashboard, scripts and people."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from appliance import __version__
from appliance.engine.supervisor import Supervisor
from appliance.gate.budget import Ledger
from appliance.gate.gate import Gate
from appliance.metrics import Metrics
from appliance.serving.catalog import Catalog
from appliance.serving.engine_figures import engine_told, together
from appliance.serving.history import History, MemoryReading, Reading
from appliance.serving.served import ServedModel, ServedVersion
from appliance.serving.traffic import Figures, Traffic
from appliance.settings import Settings
from appliance.system.devices import DeviceReading

_DEVICES_EVERY_S = 1.0


def _ledger(ledger: Ledger) -> dict[str, Any]:
    """All figures in bytes."""
    return {
        "known": ledger.known,
        "total": ledger.total,
        "ours": ledger.ours,
        "free": ledger.free,
        "reserve": ledger.total - ledger.ceiling,
        "capacity": ledger.capacity,
        "ceiling": ledger.ceiling,
        "weights": ledger.weights,
        "in_flight": ledger.in_flight,
        "reserved": ledger.reserved,
        "room": ledger.room,
        "others": ledger.others,
        "narrowing": round(ledger.narrowing, 2),
        "out_of_memory": ledger.out_of_memory,
    }


def _by_model(ledger: Ledger) -> dict[str, int]:
    """What the weights of each model take, all its versions together."""
    found: dict[str, int] = {}
    for key, size in ledger.models.items():
        name = key[0] if isinstance(key, tuple) else str(key)
        found[name] = found.get(name, 0) + size
    return found


def _copies(version: ServedVersion) -> list[dict[str, Any]]:
    return [
        {
            "engine": engine,
            "device": copy.spec.device,
            "reason": copy.spec.degraded,
            "memory_bytes": copy.memory_bytes,
        }
        for engine, copy in sorted(version.copies.items())
        if copy.spec is not None
    ]


def _lanes(version: ServedVersion) -> int:
    """Runs at the same time: of all its copies, else of the one that is lost."""
    return sum(c.spec.lanes for c in version.copies.values() if c.spec) or (version.spec.lanes if version.spec else 0)


def _devices(version: ServedVersion) -> str | None:
    """Of all its copies: ``cuda:0, cuda:1``."""
    return ", ".join(sorted({c.spec.device for c in version.copies.values() if c.spec is not None})) or None


def _reason(version: ServedVersion) -> str | None:
    """Why a copy is not on the device asked for."""
    return next((c.spec.degraded for c in version.copies.values() if c.spec and c.spec.degraded), None)


class Status:
    """Collects the picture when asked. ``read_devices`` is asked at most once a second; ``address`` is set when
    the port is known; ``notes`` are standing remarks (a log folder that cannot be written); ``restart_needed`` names
    the settings whose change counts after the next start."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        gate: Gate,
        engines: Mapping[str, Supervisor],
        read_devices: Callable[[], list[DeviceReading]],
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._gate = gate
        self._engines = engines
        self._metrics = metrics
        self._read_devices = read_devices
        self._devices: list[DeviceReading] = []
        self._devices_at = 0.0
        self._started = time.time()
        self._was_ready = False
        self.address = ""
        self.notes: list[str] = []
        self.restart_needed: list[str] = []
        self.traffic = Traffic(lambda: metrics.by_model.meters, gate.clock)
        self.history = History(self.traffic, self._reading, time.time)

    def __call__(self) -> dict[str, Any]:
        """See ``docs/api.md`` for the keys."""
        gate = self._gate
        figures, all_together = self.traffic.figures()
        models = [self._model(m, figures) for _, m in sorted(self._catalog.models.items())]
        degraded = [v["device_reason"] for m in models for v in m["versions"] if v["device_reason"]]
        engines = [engine_told(name, supervisor) for name, supervisor in self._engines.items()]
        return {
            "name": "inference-appliance",
            "version": __version__,
            "state": self._state(bool(degraded)),
            "address": self.address,
            "started_at": round(self._started),
            "device": {
                "policy": self._settings.device,
                "running": self._running_device(models),
                "reason": degraded[0] if degraded else None,
            },
            "devices": [msgspec.to_builtins(d) for d in self.devices()],
            "engine": together(engines),
            "engines": engines,
            "memory": {
                device: {**_ledger(ledger), "models": _by_model(ledger)}
                for device, ledger in gate.memory.ledgers.items()
            },
            "queue": {"waiting": gate.waiting, "running": gate.running, "paused": gate.paused},
            "traffic": {
                **msgspec.to_builtins(all_together),
                "errors": self._metrics.refusals(),
            },
            "models": models,
            "restart_needed": self.restart_needed,
            "notes": self.notes,
        }

    def devices(self) -> list[DeviceReading]:
        """The devices, as they were at most a second ago."""
        now = time.monotonic()
        if now - self._devices_at > _DEVICES_EVERY_S:
            self._devices, self._devices_at = self._read_devices(), now
        return self._devices

    def _figures(
        self, name: str, version: ServedVersion, figures: Mapping[tuple[str, str], Figures]
    ) -> dict[str, Any]:
        """What a version costs and how it does."""
        key = (name, version.file.version)
        queue, meter = self._gate.queues.get(key), self._metrics.by_model.meters.get(key)
        source, points = self._gate.memory.told(version.spec.key if version.spec else key)
        runs = queue.stats.execution_count if queue else 0
        return {
            "backend": version.spec.backend if version.spec else None,
            "instances": _lanes(version),
            "mean_batch": round(queue.stats.inference_count / runs, 2) if queue and runs else None,
            "cost": {"source": source, "runs": [{"batch": batch, "bytes": size} for batch, size in points]},
            **msgspec.to_builtins(figures.get(key) or Figures()),
            "last_error": meter.fault._asdict() if meter and meter.fault else None,
        }

    def _state(self, degraded: bool) -> str:
        if self._gate.draining:
            return "stopped"
        if self._gate.paused:
            return "paused"
        if not self._catalog.ready():
            failed = self._catalog.ready_but_failed()
            return "degraded" if self._was_ready or failed else "starting"
        self._was_ready = True
        if degraded or any(m.error for m in self._catalog.models.values()):
            return "degraded"
        return "busy" if self._gate.running or self._gate.waiting else "ready"

    def _running_device(self, models: list[dict[str, Any]]) -> str | None:
        used = {c["device"] for m in models for v in m["versions"] for c in v["copies"]}
        return ", ".join(sorted(used, key=lambda device: (device.startswith("cpu"), len(device), device))) or None

    def _reading(self) -> Reading:
        ledgers = self._gate.memory.ledgers.items()
        memory = {d: MemoryReading(ledger.total, ledger.ours, ledger.others) for d, ledger in ledgers if ledger.known}
        return Reading(self._gate.waiting, self._gate.running, sum(self._metrics.refusals().values()), memory)

    def _model(self, model: ServedModel, figures: Mapping[tuple[str, str], Figures]) -> dict[str, Any]:
        versions = []
        for number, version in model.versions.items():
            queue, spec = self._gate.queues.get((model.name, number)), version.spec
            loaded = spec if version.ready else None
            versions.append(
                {
                    **self._figures(model.name, version, figures),
                    "version": number,
                    "state": version.state,
                    "error": version.error,
                    "progress": version.progress,
                    "device": _devices(version) if loaded else None,
                    "device_reason": _reason(version) if loaded else None,
                    "copies": _copies(version),
                    "cpu_nodes": loaded.cpu_nodes if loaded else 0,
                    "max_batch": loaded.max_batch if loaded else 0,
                    "load_ms": round(version.load_ms, 1),
                    "warmup_ms": round(version.warmup_ms, 1),
                    "memory_bytes": version.memory_bytes,
                    "kv_cache_bytes": queue.flights.booked if queue and spec and spec.generation else 0,
                    "waiting": len(queue.waiting) if queue else 0,
                    "running": queue.running if queue else 0,
                    "requests": queue.stats.success.count + queue.stats.fail.count if queue else 0,
                    "failed": queue.stats.fail.count if queue else 0,
                    "notes": list(spec.notes) if spec else [],
                }
            )
        return {
            "name": model.name,
            "ready": self._catalog.model_ready(model.name),
            "wanted": model.wanted,
            "required": model.folder.config.required,
            "embedded": model.folder.read_only,
            "pinned": model.pinned,
            "asleep": model.asleep,
            "parts": list(model.pipeline.parts) if model.pipeline else [],
            "task": model.pipeline.task if model.pipeline else None,
            "error": model.error,
            "notes": list(model.folder.notes),
            "versions": versions,
        }
