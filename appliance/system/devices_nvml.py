"""NVIDIA cards through NVML. Every query may be missing, unsupported or failing; then its value is None."""

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from appliance.system.devices import DeviceReading, ProbeUnavailable
from appliance.system.devices_host import Memory, memory_of, process_tree, system_memory

_TEMPERATURE_GPU = 0  # nvml.h, NVML_TEMPERATURE_GPU
_NOT_SUPPORTED = 3  # nvml.h, NVML_ERROR_NOT_SUPPORTED
_MIG = 1  # nvml.h, NVML_DEVICE_MIG_ENABLE

# GPUs on the system's memory whose driver may tell a memory all the same, with the files that the system holds in
# its cache counted as used: what these names say goes before what it tells.
_INTEGRATED = ("GB10", "THOR", "ORIN", "XAVIER", "TEGRA")


class NvmlProbe:
    """All NVIDIA devices that a CUDA program with the environment `env` would see.

    `library` is pynvml or a stand-in; by default pynvml is imported now. Where a GPU has no memory of its own (it
    uses the system's), `shared_memory` is asked, and `size_of` for what our processes have resident of it.
    ProbeUnavailable without a driver that answers.
    """

    def __init__(
        self,
        library: Any = None,
        env: Mapping[str, str] | None = None,
        shared_memory: Callable[[], Memory] = system_memory,
        size_of: Callable[[Collection[int]], int | None] = memory_of,
    ) -> None:
        self._env = dict(env or {})
        self._shared_memory = shared_memory
        self._size_of = size_of
        self._open = False
        try:
            self._library = importlib.import_module("pynvml") if library is None else library
        except ImportError as error:
            raise ProbeUnavailable(f"NVML: {error}") from error
        reason = self._start()
        if reason:
            raise ProbeUnavailable(f"NVML: {reason}")

    def read(self, pids: Collection[int] = ()) -> list[DeviceReading]:
        if not self._open and self._start():
            return []
        count = self._ask("nvmlDeviceGetCount")
        if count is None:  # a driver that was reset or replaced needs a new start
            self.close()
            if self._start():
                return []
            count = self._ask("nvmlDeviceGetCount")
        ours = set(pids) or process_tree()
        driver = _text(self._ask("nvmlSystemGetDriverVersion"))
        cuda = _version(self._ask("nvmlSystemGetCudaDriverVersion_v2") or self._ask("nvmlSystemGetCudaDriverVersion"))
        handles = self._handles(int(count or 0))
        return [self._reading(n, handle, ours, driver, cuda) for n, handle in enumerate(handles)]

    def close(self) -> None:
        if self._open:
            self._open = False
            self._ask("nvmlShutdown")

    def _start(self) -> str | None:
        """Why NVML does not start, or None."""
        try:
            self._library.nvmlInit()
        except Exception as error:  # noqa: BLE001 - a missing driver shows in many ways, all mean "no"
            return str(error) or type(error).__name__
        self._open = True
        return None

    def _ask(self, name: str, *arguments: Any) -> Any:
        """The answer of one NVML function, or None if it is missing, unsupported, or fails."""
        return self._answer(name, *arguments)[0]

    def _answer(self, name: str, *arguments: Any) -> tuple[Any, bool]:
        """(the answer as `_ask` gives it, whether this is not supported for this device)."""
        function = getattr(self._library, name, None)
        if function is None:
            return None, False
        try:
            return function(*arguments), False
        except Exception as error:  # noqa: BLE001 - NVMLError, a symbol missing in an old driver, a wrong size: None
            return None, getattr(error, "value", None) == _NOT_SUPPORTED

    def _handles(self, count: int) -> list[Any]:
        """The devices in CUDA's order: all by bus, or what CUDA_VISIBLE_DEVICES names up to its first wrong entry."""
        visible = self._env.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            handles = [self._ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
            return [handle for handle in handles if handle is not None]
        handles = []
        for entry in (part.strip() for part in visible.split(",")):
            handle = self._handle(entry, count)
            if handle is None:
                break
            handles.append(handle)
        return handles

    def _handle(self, entry: str, count: int) -> Any:
        if entry.isdigit():
            return self._ask("nvmlDeviceGetHandleByIndex", int(entry)) if int(entry) < count else None
        if not entry.startswith(("GPU-", "MIG-")):
            return None
        handle = self._ask("nvmlDeviceGetHandleByUUID", entry)
        if handle is not None:
            return handle
        for index in range(count):  # CUDA takes the beginning of an id, too
            candidate = self._ask("nvmlDeviceGetHandleByIndex", index)
            if (_text(self._ask("nvmlDeviceGetUUID", candidate)) or "").startswith(entry):
                return candidate
        return None

    def _reading(
        self, number: int, handle: Any, ours: Collection[int], driver: str | None, cuda: str | None
    ) -> DeviceReading:
        name = _text(self._ask("nvmlDeviceGetName", handle)) or "NVIDIA GPU"
        memory, unsupported = self._answer("nvmlDeviceGetMemoryInfo", handle)
        integrated = any(part in name.upper() for part in _INTEGRATED)
        shared = self._shared_memory() if integrated or (unsupported and not self._split(handle)) else None
        used = self._used_by(handle, ours)
        utilisation = self._ask("nvmlDeviceGetUtilizationRates", handle)
        temperature = self._ask("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        return DeviceReading(
            id=f"cuda:{number}",
            name=name,
            kind="nvml" if shared is None else "unified",
            memory_total=_whole(memory, "total") if shared is None else shared.total,
            memory_used=_whole(memory, "used") if shared is None else shared.used,
            memory_free=_whole(memory, "free") if shared is None else shared.free,
            used_by_us=used if shared is None else together(used, self._size_of(ours)),
            utilisation=None if utilisation is None else utilisation.gpu / 100,
            temperature_c=None if temperature is None else float(temperature),
            power_w=self._watts("nvmlDeviceGetPowerUsage", handle),
            power_limit_w=self._watts("nvmlDeviceGetEnforcedPowerLimit", handle),
            driver=driver,
            cuda_version=cuda,
            compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        )

    def _split(self, handle: Any) -> bool:
        """Whether the card is cut up into parts (MIG), whose memory is not told for the whole."""
        mode = self._ask("nvmlDeviceGetMigMode", handle)
        return mode is not None and mode[0] == _MIG

    def _watts(self, name: str, handle: Any) -> float | None:
        """NVML counts in milliwatts."""
        milliwatts = self._ask(name, handle)
        return None if milliwatts is None else milliwatts / 1000

    def _used_by(self, handle: Any, ours: Collection[int]) -> int | None:
        """Memory of our processes on the card; None if the driver does not tell (Windows' display driver model).

        A process is listed once as computing and once as drawing if it does both, with the same memory.
        """
        used: dict[int, int] = {}
        told = False
        for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            processes = self._ask(function, handle)
            if processes is None:
                continue
            told = True
            for process in processes:
                if process.pid not in ours:
                    continue
                if process.usedGpuMemory is None:
                    return None
                used[process.pid] = max(used.get(process.pid, 0), int(process.usedGpuMemory))
        return sum(used.values()) if told else None


def together(*sizes: int | None) -> int | None:
    """The sum of what is told; None if nothing is."""
    told = [size for size in sizes if size is not None]
    return sum(told) if told else None


def _text(value: Any) -> str | None:
    """NVML's bindings gave bytes once and give text now."""
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _whole(memory: Any, name: str) -> int | None:
    value = getattr(memory, name, None)
    return None if value is None else int(value)


def _version(number: Any) -> str | None:
    """13020 → "13.2", as cuDriverGetVersion counts."""
    return None if number is None else f"{int(number) // 1000}.{int(number) % 1000 // 10}"
