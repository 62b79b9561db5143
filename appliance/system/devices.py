"""What the devices of this machine are and how full they are: one reading, one small protocol, three probes.

`detect` picks the probes that work here. Every value that a device does not tell is None: drivers, boards
and virtual machines leave out different ones, and none of that is an error.
"""

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

Kind = Literal["nvml", "unified", "cpu"]


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True):
    """One device at one moment.

    `id` is "cpu" or "cuda:N" with CUDA's ordinal N in a process that has this one's CUDA_VISIBLE_DEVICES and
    CUDA_DEVICE_ORDER=PCI_BUS_ID. Memory in bytes; `memory_free` is what a new allocation can hope for.
    `used_by_us` is the memory of the processes that were asked about. `utilisation` is 0 to 1.
    `power_w` is what the whole card takes, in watts, `power_limit_w` what it may.
    `cuda_version` is the highest that the driver can run ("13.0"). Kind "unified": a GPU that shares the
    system's memory; its `used_by_us` then counts all that our processes hold of it, for the GPU or not.
    `power_mode` is the name of the one that a person has chosen, on boards that have such modes.
    """

    id: str
    name: str
    kind: Kind
    memory_total: int | None = None
    memory_used: int | None = None
    memory_free: int | None = None
    used_by_us: int | None = None
    utilisation: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    driver: str | None = None
    cuda_version: str | None = None
    compute_capability: str | None = None
    power_mode: str | None = None

    @property
    def pool(self) -> str:
        """The id of the device whose memory this is: devices of one pool fill up together."""
        return "cpu" if self.kind == "unified" else self.id


class ProbeUnavailable(RuntimeError):
    """This kind of probe cannot work here; the message says why in one line."""


class DeviceProbe(Protocol):
    """Reads devices. Never raises: what cannot be read is None, a device that is gone is left out."""

    def read(self, pids: Collection[int] = ()) -> list[DeviceReading]:
        """All devices now; `used_by_us` counts the processes `pids` (none given: this one and its children)."""
        ...

    def close(self) -> None:
        """Give back what the probe holds. Reading afterwards is allowed and opens it again."""
        ...


class ChainProbe:
    """Several probes as one: their devices in order. `missing` says why probes are not among them.

    Devices that share a pool of memory have the same `used_by_us`: the most that one of them knows of.
    """

    def __init__(self, probes: Sequence[DeviceProbe], missing: Sequence[str] = ()) -> None:
        self._probes = tuple(probes)
        self.missing = tuple(missing)

    def read(self, pids: Collection[int] = ()) -> list[DeviceReading]:
        readings = [reading for probe in self._probes for reading in probe.read(pids)]
        ours: dict[str, int] = {}
        for reading in readings:
            if reading.used_by_us is not None:
                ours[reading.pool] = max(ours.get(reading.pool, 0), reading.used_by_us)
        return [msgspec.structs.replace(reading, used_by_us=ours.get(reading.pool)) for reading in readings]

    def close(self) -> None:
        for probe in self._probes:
            probe.close()


class FakeProbe:
    """For tests: gives `readings`, which may be replaced at any time, and remembers what it was asked."""

    def __init__(self, readings: Sequence[DeviceReading] = ()) -> None:
        self.readings = list(readings)
        self.asked: list[tuple[int, ...]] = []
        self.closed = False

    def read(self, pids: Collection[int] = ()) -> list[DeviceReading]:
        self.asked.append(tuple(pids))
        return list(self.readings)

    def close(self) -> None:
        self.closed = True


Factory = Callable[[], DeviceProbe]


def detect(factories: Sequence[Factory] | None = None) -> ChainProbe:
    """The probes that work here: a Jetson's, else NVML's, then the CPU's.

    A factory raises ProbeUnavailable where its probe cannot work; the reason is kept in ``missing``.
    """
    probes: list[DeviceProbe] = []
    missing: list[str] = []
    for factory in default_factories() if factories is None else factories:
        try:
            probes.append(factory())
        except ProbeUnavailable as reason:
            missing.append(str(reason))
    return ChainProbe(probes, missing)


def default_factories(root: Path = Path("/")) -> list[Factory]:
    """The real probes; `root` is where the system's folders are looked for."""
    from appliance.system import devices_host, devices_jetson, devices_nvml, jetson

    cpu: Factory = lambda: devices_host.CpuProbe(root)  # noqa: E731 - reads better beside the other two
    if jetson.is_jetson(root):
        return [lambda: devices_jetson.JetsonProbe(root, nvml=devices_jetson.driver_probe), cpu]
    return [lambda: devices_nvml.NvmlProbe(env=os.environ), cpu]
