"""The state of everything, as samples for Prometheus. Looked up when asked; nothing is kept here."""

import platform
from collections.abc import Callable, Mapping
from functools import partial

from appliance import __version__
from appliance.engine.supervisor import Supervisor
from appliance.gate.budget import Ledger
from appliance.gate.gate import Gate
from appliance.metrics import Metrics, Put
from appliance.serving.catalog import Catalog
from appliance.serving.served import ServedVersion
from appliance.system.devices import DeviceReading

_STATES = ("READY", "LOADING", "UNAVAILABLE")
_BOOKED = ("weights", "in_flight", "reserved")
_READ = ("capacity", "ceiling", "others")  # known once the device has told its memory


class Gauges:
    """A source for ``StateMetrics``. ``started``: Unix time of the start; ``devices`` gives readings of at most a
    second ago; ``host_memory`` bytes."""

    def __init__(
        self,
        catalog: Catalog,
        gate: Gate,
        engines: Mapping[str, Supervisor],
        metrics: Metrics,
        devices: Callable[[], list[DeviceReading]],
        host_memory: Callable[[], int],
        started: float,
    ) -> None:
        self._catalog = catalog
        self._gate = gate
        self._engines = engines
        self._meter = metrics.by_model.meter
        self._devices = devices
        self._host_memory = host_memory
        self._started = started

    def __call__(self, put: Put) -> None:
        put("build_info", 1, __version__, platform.python_version(), f"{platform.system()} {platform.machine()}")
        put("start_time_seconds", self._started)
        put("host_memory_bytes", self._host_memory())
        for name, supervisor in self._engines.items():
            self._engine(put, name, supervisor)
        self._queues(put)
        self._models(put)
        for name, ledger in self._gate.memory.ledgers.items():
            self._ledger(put, name, ledger)
        for device in self._devices():
            _device(put, device)

    def _engine(self, put: Put, name: str, supervisor: Supervisor) -> None:
        client = supervisor.client
        put("engine_up", client is not None, name)
        if client is not None and client.memory_bytes:
            put("engine_memory_bytes", client.memory_bytes, name)
        for cause, count in supervisor.causes.items():
            put("engine_restarts", count, name, cause)
        if supervisor.hello is not None:
            for runtime, version in supervisor.hello.runtimes.items():
                put("runtime_info", 1, name, runtime, version)

    def _queues(self, put: Put) -> None:
        gate = self._gate
        put("queue_length", gate.waiting)
        put("queue_limit", gate.limits.queue_total)
        put("runs_in_flight", gate.running)
        put("paused", gate.paused)

    def _models(self, put: Put) -> None:
        states, degraded = dict.fromkeys(_STATES, 0), 0
        for model in self._catalog.models.values():
            limit = model.folder.config.limits.queue or self._gate.limits.queue_per_model
            for number, version in model.versions.items():
                states[version.state] += 1
                degraded += _degraded(version)
                self._version(put, model.name, number, version, limit)
        for state, count in states.items():
            put("models", count, state)
        put("degraded_models", degraded)
        put("ready", self._catalog.ready())

    def _version(self, put: Put, model: str, number: str, version: ServedVersion, limit: int) -> None:
        key = (model, number)
        self._meter(*key)  # its counters are there, and 0, before the first request
        queue, memory = self._gate.queues.get(key), self._gate.memory
        put("model_ready", version.ready, *key)
        put("pending_requests", len(queue.waiting) if queue else 0, *key)
        put("pending_requests_limit", limit, *key)
        put("model_runs_in_flight", queue.running if queue else 0, *key)
        if queue and version.spec is not None and version.spec.generation is not None:
            put("kv_cache_bytes", queue.flights.booked, *key)
        weights: dict[str, int] = {} if version.spec is None else {version.spec.device: 0}
        for copy in version.copies.values():
            if copy.spec is not None:
                size = memory.ledger(copy.spec.device).weight_of(copy.spec.key)
                weights[copy.spec.device] = weights.get(copy.spec.device, 0) + size
        for device, size in weights.items():
            put("model_memory_bytes", size, *key, device)

    def _ledger(self, put: Put, device: str, ledger: Ledger) -> None:
        for kind in (*_BOOKED, *(_READ if ledger.known else ())):
            put("memory_budget_bytes", getattr(ledger, kind), device, kind)
        put("memory_budget_bytes", self._gate.limits.memory_reserve_bytes, device, "reserve")
        put("memory_narrowing_ratio", ledger.narrowing, device)
        put("out_of_memory", ledger.out_of_memory, device)


def _degraded(version: ServedVersion) -> bool:
    return version.ready and any(c.spec and c.spec.degraded for c in version.copies.values())


def _device(put: Put, device: DeviceReading) -> None:
    """What the device does not tell has no sample."""
    told = (device.driver or "", device.cuda_version or "", device.compute_capability or "")
    put("device_info", 1, device.id, device.name, *told)
    some = partial(_some, put)
    some("device_memory_bytes", device.memory_total, device.id, "total")
    some("device_memory_bytes", device.memory_used, device.id, "used")
    some("device_memory_bytes", device.memory_free, device.id, "free")
    some("device_memory_bytes", device.used_by_us, device.id, "ours")
    some("device_utilisation_ratio", device.utilisation, device.id)
    some("device_temperature_celsius", device.temperature_c, device.id)
    some("device_power_watts", device.power_w, device.id)
    some("device_power_limit_watts", device.power_limit_w, device.id)


def _some(put: Put, name: str, value: float | None, *labels: str) -> None:
    if value is not None:
        put(name, value, *labels)
