"""The JSON of ``/api/status``: one picture of everything, for tray, dashboard, scripts and people."""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from appliance import __version__
from appliance.engine.supervisor import Supervisor
from appliance.gate.budget import Ledger
from appliance.gate.gate import Gate
from appliance.metrics import Metrics
from appliance.serving.catalog import Catalog
from appliance.serving.served import ServedModel
from appliance.settings import Settings
from appliance.system.devices import DeviceReading

_DEVICES_EVERY_S = 1.0


def _ledger(ledger: Ledger) -> dict[str, Any]:
    """All figures in bytes."""
    return {
        "known": ledger.known,
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


class Status:
    """Collects the picture when asked. ``read_devices`` is asked at most once a second; ``address`` is set when
    the port is known; ``notes`` are standing remarks (a log folder that cannot be written)."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        gate: Gate,
        supervisor: Supervisor,
        metrics: Metrics,
        read_devices: Callable[[int | None], list[DeviceReading]],
        host_memory: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._gate = gate
        self._supervisor = supervisor
        self._metrics = metrics
        self._read_devices = read_devices
        self._host_memory = host_memory
        self._devices: list[DeviceReading] = []
        self._devices_at = 0.0
        self._started = time.time()
        self._was_ready = False
        self.address = ""
        self.notes: list[str] = []

    def __call__(self) -> dict[str, Any]:
        """See ``docs/api.md`` for the keys."""
        gate, supervisor = self._gate, self._supervisor
        now = time.monotonic()
        if now - self._devices_at > _DEVICES_EVERY_S:
            self._devices, self._devices_at = self._read_devices(supervisor.pid), now
        models = [self._model(m) for _, m in sorted(self._catalog.models.items())]
        degraded = [v["device_reason"] for m in models for v in m["versions"] if v["device_reason"]]
        client = supervisor.client
        status = {
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
            "devices": [msgspec.to_builtins(d) for d in self._devices],
            "engine": {
                "state": supervisor.state,
                "pid": supervisor.pid,
                "restarts": supervisor.restarts,
                "deaths": [msgspec.to_builtins(d) for d in supervisor.deaths],
                "next_start_at": supervisor.next_start,
                "memory_bytes": client.memory_bytes if client else None,
                "runtimes": supervisor.hello.runtimes if supervisor.hello else {},
                "providers": list(supervisor.hello.providers) if supervisor.hello else [],
            },
            "memory": {device: _ledger(ledger) for device, ledger in gate.memory.ledgers.items()},
            "queue": {"waiting": gate.waiting, "running": gate.running, "paused": gate.paused},
            "models": models,
            "notes": self.notes,
        }
        self._gauges(models, len(degraded))
        return status

    def _state(self, degraded: bool) -> str:
        if self._gate.closing:
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
        used = {v["device"] for m in models for v in m["versions"] if v["device"]}
        return ", ".join(sorted(used, reverse=True)) or None

    def _model(self, model: ServedModel) -> dict[str, Any]:
        versions = []
        for number, version in model.versions.items():
            queue, spec = self._gate.queues.get((model.name, number)), version.spec
            loaded = spec if version.ready else None
            versions.append(
                {
                    "version": number,
                    "state": version.state,
                    "error": version.error,
                    "device": loaded.device if loaded else None,
                    "device_reason": loaded.degraded if loaded else None,
                    "cpu_nodes": loaded.cpu_nodes if loaded else 0,
                    "max_batch": loaded.max_batch if loaded else 0,
                    "load_ms": round(version.load_ms, 1),
                    "warmup_ms": round(version.warmup_ms, 1),
                    "memory_bytes": version.memory_bytes,
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
            "task": model.pipeline.task if model.pipeline else None,
            "error": model.error,
            "notes": list(model.folder.notes),
            "versions": versions,
        }

    def _gauges(self, models: list[dict[str, Any]], degraded: int) -> None:
        m, states = self._metrics, [v["state"] for model in models for v in model["versions"]]
        for state in ("READY", "LOADING", "UNAVAILABLE"):
            m.models.labels(state).set(states.count(state))
        m.waiting.set(self._gate.waiting)
        m.running.set(self._gate.running)
        m.ready.set(self._catalog.ready())
        m.engine_up.set(self._supervisor.client is not None)
        m.engine_restarts.set(self._supervisor.restarts)
        m.degraded.set(degraded)
        m.host_memory.set(self._host_memory())
        if self._supervisor.client and self._supervisor.client.memory_bytes:
            m.engine_memory.set(self._supervisor.client.memory_bytes)
        for name, ledger in self._gate.memory.ledgers.items():
            for kind in ("capacity", "weights", "in_flight", "reserved", "others"):
                m.ledger.labels(name, kind).set(getattr(ledger, kind))
            m.out_of_memory.labels(name).set(ledger.out_of_memory)
        for device in self._devices:
            if device.memory_total is not None:
                m.device_memory.labels(device.id, "total").set(device.memory_total)
            if device.memory_used is not None:
                m.device_memory.labels(device.id, "used").set(device.memory_used)
