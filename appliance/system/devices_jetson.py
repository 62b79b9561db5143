"""The GPU of a Jetson, which shares the system's memory."""

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from appliance.system import jetson
from appliance.system.devices import DeviceProbe, DeviceReading, ProbeUnavailable
from appliance.system.devices_host import memory_of, process_tree, system_memory
from appliance.system.devices_nvml import NvmlProbe, together

_FRESH_S = 1.0  # a sensor is read by asking another processor, and memory is read every 2 ms while it is measured


class _Sensors(NamedTuple):
    power_mode: str | None
    temperature_c: float | None
    utilisation: float | None


def driver_probe() -> DeviceProbe:
    """NVML, where the board has it, for what no file tells; asked for the GPU's memory alone."""
    return NvmlProbe(env=os.environ, size_of=lambda pids: None)


class JetsonProbe:
    """The board's GPU, as "cuda:0". ProbeUnavailable on anything else.

    `used_by_us` is what the processes have resident and what the GPU has for them. That is, the best first: of the
    kernel's table, which only root may read; NVML's; or by how much all of the GPU's memory has grown since this
    probe was made, in which another program's growth counts too. `nvml`: see `driver_probe`; None: it is not asked.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        size_of: Callable[[Collection[int]], int | None] = memory_of,
        nvml: Callable[[], DeviceProbe] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        board = jetson.look(root)
        if board is None:
            raise ProbeUnavailable("this is not a Jetson")
        self._root, self._size_of, self._now = root, size_of, now
        self._board = board
        self._start = jetson.gpu_memory(root)
        self._driver = _opened(nvml)
        self._sensors = self._sense()
        self._sensed_at = now()

    def read(self, pids: Collection[int] = ()) -> list[DeviceReading]:
        ours = pids or process_tree()
        memory = system_memory(self._root)
        found = next(iter(self._driver.read(ours)), None) if self._driver else None
        told = found or DeviceReading(id="cuda:0", name="", kind="unified")
        if self._now() - self._sensed_at >= _FRESH_S:
            self._sensors, self._sensed_at = self._sense(), self._now()
        mode, temperature, load = self._sensors
        return [
            DeviceReading(
                id="cuda:0",
                name=self._board.model,
                kind="unified",
                memory_total=memory.total,
                memory_used=memory.used,
                memory_free=memory.free,
                used_by_us=self._ours(ours, told.used_by_us),
                utilisation=told.utilisation if load is None else load,
                temperature_c=told.temperature_c if temperature is None else temperature,
                power_w=told.power_w,
                power_limit_w=told.power_limit_w,
                driver=f"L4T {self._board.release}" if self._board.release else told.driver,
                cuda_version=told.cuda_version,
                compute_capability=self._board.capability or told.compute_capability,
                power_mode=mode,
            )
        ]

    def close(self) -> None:
        if self._driver:
            self._driver.close()

    def _ours(self, pids: Collection[int], of_driver: int | None) -> int | None:
        resident = self._size_of(pids)
        for_gpu = jetson.gpu_memory_of(pids, self._root)
        if for_gpu is None:
            for_gpu = of_driver
        if for_gpu is None:
            for_gpu = self._growth()
        return together(resident, for_gpu)

    def _growth(self) -> int | None:
        now = jetson.gpu_memory(self._root)
        return None if now is None or self._start is None else max(0, now - self._start)

    def _sense(self) -> _Sensors:
        zones = jetson.zones(self._root)
        gpu = next((zone.celsius for zone in zones if "gpu" in zone.name.lower()), None)
        return _Sensors(jetson.power_mode(self._root), gpu, jetson.gpu_load(self._root))


def _opened(nvml: Callable[[], DeviceProbe] | None) -> DeviceProbe | None:
    """Its absence is nothing that need be told: JetPack 5 has none."""
    try:
        return nvml() if nvml else None
    except ProbeUnavailable:
        return None
