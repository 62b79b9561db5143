"""Readings from drivers and boards that are made up, each with something missing."""

import os
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.system import devices, devices_host
from appliance.system.devices import ChainProbe, DeviceReading, FakeProbe, ProbeUnavailable, detect
from appliance.system.devices_host import CpuProbe, Memory, UnifiedProbe, system_memory
from appliance.system.devices_nvml import NvmlProbe

GIB = 1 << 30


class NotSupported(Exception):
    """As pynvml.NVMLError_NotSupported."""


class Card:
    """One card of `Library`."""

    def __init__(self, name: str, total: int, uuid: str = "") -> None:
        self.name, self.total, self.uuid = name, total, uuid
        self.processes: list[Any] = []


class Library:
    """A stand-in for pynvml; a name in `broken` raises, a name in `absent` does not exist."""

    def __init__(self, *cards: Card, broken: Collection[str] = (), absent: Collection[str] = ()) -> None:
        self.cards, self.broken, self.absent = cards, set(broken), set(absent)
        self.starts = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            if name in self.absent:
                raise AttributeError(name)
            if name in self.broken:

                def fail(*_arguments: Any) -> None:
                    raise NotSupported("Not Supported")

                return fail
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        self.starts += 1

    def nvmlShutdown(self) -> None:
        self.starts -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        return next(card for card in self.cards if card.uuid == uuid)

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13020

    def nvmlDeviceGetName(self, card: Card) -> str:
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:
        return SimpleNamespace(total=card.total, used=2 * GIB, free=card.total - 2 * GIB)

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:
        return SimpleNamespace(gpu=37, memory=5)

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:
        assert sensor == 0
        return 55

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        return 71250

    def nvmlDeviceGetEnforcedPowerLimit(self, card: Card) -> int:
        return 115_000

    def nvmlDeviceGetCudaComputeCapability(self, card: Card) -> tuple[int, int]:
        return (8, 9)

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:
        return card.processes

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: Card) -> list[Any]:
        return [process for process in card.processes if process.pid == 11]


QUERIES = [name for name in vars(Library) if name.startswith("nvml") and name not in ("nvmlInit", "nvmlShutdown")]


def test_a_card_that_tells_everything() -> None:
    card = Card("NVIDIA RTX 4060", 8 * GIB)
    card.processes = [
        SimpleNamespace(pid=11, usedGpuMemory=GIB),
        SimpleNamespace(pid=12, usedGpuMemory=5),
        SimpleNamespace(pid=99, usedGpuMemory=7),
    ]
    library = Library(card)
    probe = NvmlProbe(library)
    assert probe.read([11, 12]) == [
        DeviceReading(
            id="cuda:0",
            name="NVIDIA RTX 4060",
            kind="nvml",
            memory_total=8 * GIB,
            memory_used=2 * GIB,
            memory_free=6 * GIB,
            used_by_us=GIB + 5,
            utilisation=0.37,
            temperature_c=55.0,
            power_w=71.25,
            power_limit_w=115.0,
            driver="580.65.06",
            cuda_version="13.2",
            compute_capability="8.9",
        )
    ]
    assert probe.read([1234])[0].used_by_us == 0
    probe.close()
    probe.close()
    assert library.starts == 0
    assert len(probe.read()) == 1  # opens again
    assert library.starts == 1


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("how", ["broken", "absent"])
def test_every_single_query_may_be_missing(query: str, how: str) -> None:
    library = Library(Card("Card", 8 * GIB), **{how: [query]})
    readings = NvmlProbe(library, shared_memory=lambda: Memory(1, 1, 0)).read()
    if query in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        assert readings == []
    else:
        assert [reading.id for reading in readings] == ["cuda:0"]


def test_a_card_that_tells_nothing_is_still_named() -> None:
    always = ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
    library = Library(Card("Card", 8 * GIB), broken=[query for query in QUERIES if query not in always])
    probe = NvmlProbe(library, shared_memory=lambda: Memory(None, None, None))
    assert probe.read() == [DeviceReading(id="cuda:0", name="NVIDIA GPU", kind="unified")]


def test_a_gpu_without_memory_of_its_own_uses_the_systems() -> None:
    library = Library(Card("NVIDIA GB10", 0), broken=["nvmlDeviceGetMemoryInfo"])
    reading = NvmlProbe(library, shared_memory=lambda: Memory(128 * GIB, 28 * GIB, 100 * GIB)).read()[0]
    assert (reading.kind, reading.memory_total, reading.memory_free) == ("unified", 128 * GIB, 100 * GIB)


def test_windows_does_not_tell_a_process_memory() -> None:
    card = Card("Card", 8 * GIB)
    card.processes = [SimpleNamespace(pid=11, usedGpuMemory=None)]
    assert NvmlProbe(Library(card)).read([11])[0].used_by_us is None


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["A", "B", "C"]),
        ("", []),
        ("2,0", ["C", "A"]),
        ("1,7,0", ["B"]),
        ("GPU-bbb", ["B"]),
        ("GPU-b", ["B"]),
        ("nonsense", []),
        ("-1", []),
        (" 0 , GPU-ccc ", ["A", "C"]),
    ],
)
def test_cuda_visible_devices_decides_which_and_in_what_order(visible: str | None, names: list[str]) -> None:
    library = Library(Card("A", GIB, "GPU-aaa"), Card("B", GIB, "GPU-bbb"), Card("C", GIB, "GPU-ccc"))
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    readings = NvmlProbe(library, env).read()
    assert [reading.name for reading in readings] == names
    assert [reading.id for reading in readings] == [f"cuda:{n}" for n in range(len(names))]


def test_a_driver_that_was_replaced_is_started_again() -> None:
    library = Library(Card("Card", GIB))
    probe = NvmlProbe(library)
    library.broken = {"nvmlDeviceGetCount"}
    assert probe.read() == []
    library.broken = {"nvmlInit"}
    probe.close()
    assert probe.read() == []
    library.broken = set()
    assert len(probe.read()) == 1


def test_no_driver_is_a_reason() -> None:
    with pytest.raises(ProbeUnavailable, match="NVML: Not Supported"):
        NvmlProbe(Library(broken=["nvmlInit"]))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MEMINFO = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:   12582912 kB\n"}
JETSON = MEMINFO | {
    "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n",
    "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
    "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,tegra234\0",
    "sys/devices/platform/gpu.0/load": "415\n",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "60000\n",
    "sys/class/thermal/thermal_zone1/type": "gpu-thermal\n",
    "sys/class/thermal/thermal_zone1/temp": "51250\n",
}


def test_a_jetson(tmp_path: Path) -> None:
    write(tmp_path, JETSON)
    assert UnifiedProbe(tmp_path, lambda pids: 7 if set(pids) == {1, 2} else None).read([1, 2]) == [
        DeviceReading(
            id="cuda:0",
            name="NVIDIA Jetson Orin Nano Developer Kit",
            kind="unified",
            memory_total=16 * GIB,
            memory_used=4 * GIB,
            memory_free=12 * GIB,
            used_by_us=7,
            utilisation=0.415,
            temperature_c=51.25,
            driver="L4T 36.4.3",
            compute_capability="8.7",
        )
    ]


@pytest.mark.parametrize("left", ["etc/nv_tegra_release", "proc/device-tree/model"])
def test_a_jetson_is_known_by_one_file(tmp_path: Path, left: str) -> None:
    write(tmp_path, {left: JETSON[left]})
    probe = UnifiedProbe(tmp_path)
    reading = probe.read()[0]
    assert "Jetson" in reading.name
    assert reading.utilisation is None
    assert reading.temperature_c is None
    assert reading.memory_total  # from the running system, where the made-up one has no meminfo
    probe.close()


def test_a_sleeping_sensor_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, JETSON)
    (tmp_path / "sys/class/thermal/thermal_zone1/temp").unlink()
    assert UnifiedProbe(tmp_path).read()[0].temperature_c is None


def test_anything_else_is_no_jetson(tmp_path: Path) -> None:
    write(tmp_path, {"proc/device-tree/model": "Raspberry Pi 5\0"})
    with pytest.raises(ProbeUnavailable):
        UnifiedProbe(tmp_path)


def test_the_cpu(tmp_path: Path) -> None:
    write(tmp_path, MEMINFO | {"proc/cpuinfo": "processor: 0\nmodel name\t: AMD  Ryzen 7\n"})
    loads = iter([0.0, 250.0, 25.0])
    probe = CpuProbe(tmp_path, lambda pids: len(pids), lambda: next(loads))
    reading = probe.read([5, 6])[0]
    assert (reading.id, reading.name, reading.kind, reading.used_by_us) == ("cpu", "AMD Ryzen 7", "cpu", 2)
    assert (reading.memory_total, reading.memory_free) == (16 * GIB, 12 * GIB)
    assert reading.utilisation == 1.0
    assert probe.read()[0].utilisation == 0.25


def test_the_cpu_of_this_machine() -> None:
    reading = CpuProbe().read()[0]
    assert reading.name
    assert reading.memory_total is not None
    assert reading.used_by_us is not None
    assert 10**6 < reading.used_by_us < reading.memory_total


@pytest.mark.parametrize(
    ("limit", "current", "expected"),
    [
        ("max", "5", Memory(16 * GIB, 4 * GIB, 12 * GIB)),
        (str(4 * GIB), str(GIB), Memory(4 * GIB, GIB, 3 * GIB)),
        (str(4 * GIB), "", Memory(4 * GIB, 0, 4 * GIB)),
        (str(4 * GIB), str(9 * GIB), Memory(4 * GIB, 4 * GIB, 0)),
        (str(32 * GIB), "5", Memory(16 * GIB, 4 * GIB, 12 * GIB)),
        (str(9223372036854771712), "5", Memory(16 * GIB, 4 * GIB, 12 * GIB)),
    ],
)
def test_a_container_has_only_its_share(tmp_path: Path, limit: str, current: str, expected: Memory) -> None:
    write(tmp_path, MEMINFO | {"sys/fs/cgroup/memory.max": limit, "sys/fs/cgroup/memory.current": current})
    assert system_memory(tmp_path) == expected


def test_memory_of_processes_that_are_gone() -> None:
    assert devices_host.memory_of([2**22 + 1]) is None
    mine = devices_host.memory_of([os.getpid(), 2**22 + 1])
    assert mine is not None
    assert mine > 10**6
    assert devices_host.process_tree(2**22 + 1) == {2**22 + 1}


def test_the_chain_keeps_the_reasons() -> None:
    fake = FakeProbe([DeviceReading(id="cpu", name="CPU", kind="cpu")])

    def refuse() -> Any:
        raise ProbeUnavailable("NVML: no driver")

    chain = detect([refuse, lambda: fake])
    assert isinstance(chain, ChainProbe)
    assert chain.missing == ("NVML: no driver",)
    assert [reading.id for reading in chain.read([3])] == ["cpu"]
    assert fake.asked == [(3,)]
    chain.close()
    assert fake.closed


def test_a_jetson_takes_its_own_probe_and_not_nvml(tmp_path: Path) -> None:
    write(tmp_path, JETSON)
    readings = detect(devices.default_factories(tmp_path)).read()
    assert [(reading.id, reading.kind) for reading in readings] == [("cuda:0", "unified"), ("cpu", "cpu")]


def test_this_machine_always_has_a_cpu() -> None:
    assert detect().read()[-1].id == "cpu"
