"""What the devices' memory looks like from inside the engine process. (Child side.)"""

import os
from collections.abc import Callable, Iterable

import psutil

from appliance.backends.base import Backend
from appliance.engine.messages import DeviceMemory
from appliance.system.devices import DeviceProbe


class MemoryReader:
    """Readings of all devices; a device that does not tell its memory is left out."""

    def __init__(self, probe: DeviceProbe, backends: Callable[[], Iterable[Backend]]) -> None:
        self._probe = probe
        self._backends = backends
        self._process = psutil.Process()

    def read(self) -> dict[str, DeviceMemory]:
        """By device id (``cpu``, ``cuda:0``)."""
        found = {}
        for r in self._probe.read([os.getpid()]):
            if r.memory_total is not None and r.memory_free is not None and r.used_by_us is not None:
                found[r.id] = DeviceMemory(r.memory_total, r.memory_free, r.used_by_us)
        return found | self._own()

    def _own(self) -> dict[str, DeviceMemory]:
        """Of the devices that only their backend knows."""
        found: dict[str, DeviceMemory] = {}
        for backend in self._backends():
            found |= {device: DeviceMemory(*figures) for device, figures in backend.memory().items()}
        return found

    def rss(self) -> int:
        """Bytes of system memory that this process holds."""
        return int(self._process.memory_info().rss)

    def used(self, device: str) -> int:
        """Bytes of ``device`` that this process holds now; 0 where that is not known. Often asked: every 2 ms while
        a run is measured."""
        if device == "cpu":
            return self.rss()
        reading = self._own().get(device) or self.read().get(device)
        return reading.ours if reading else 0
