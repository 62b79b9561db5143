"""Readings from drivers and boards that are made up, each with something missing."""

import os
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.system import devices_host
from appliance.system.devices import ChainProbe, DeviceReading, FakeProbe, ProbeUnavailable, detect
from appliance.system.devices_host import CpuProbe, Memory, system_memory
from appliance.system.devices_nvml import NvmlProbe

GIB = 1 << 30


class NotSupported(Exception):
    """As pynvml.NVMLError_NotSupported."""

    value = 3


class Lost(Exception):
    """As pynvml.NVMLError_GpuIsLost."""

    value = 15


class Card:
    """One card of `Library`."""

    def __init__(self, name: str, total: int, uuid: str = "") -> None:
        self.name, self.total, self.uuid = name, total, uuid
        self.processes: list[Any] = []


class Library:
    """A stand-in for pynvml; a name in `broken` raises, a name in `absent` does not exist."""

    def __init__(
        self,
        *cards: Card,
        broken: Collection[str] = (),
        absent: Collection[str] = (),
        how: type[Exception] = NotSupported,
        mig: int = 0,
    ) -> None:
        self.cards, self.broken, self.absent = cards, set(broken), set(absent)
        self.how, self.mig = how, mig
        self.starts = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            if name in self.absent:
                raise AttributeError(name)
            if name in self.broken:

                def fail(*_arguments: Any) -> None:
                    raise self.how("Not Supported")

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

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        return [self.mig, self.mig]

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
    probe = NvmlProbe(library, shared_memory=lambda: Memory(None, None, None), size_of=lambda pids: None)
    assert probe.read() == [DeviceReading(id="cuda:0", name="NVIDIA GPU", kind="unified")]


SHARED = Memory(128 * GIB, 28 * GIB, 100 * GIB)


def gb10(name: str = "NVIDIA GB10", **library: Any) -> DeviceReading:
    card = Card(name, 120 * GIB)
    card.processes = [SimpleNamespace(pid=11, usedGpuMemory=3 * GIB)]
    probe = NvmlProbe(Library(card, **library), shared_memory=lambda: SHARED, size_of=lambda pids: GIB)
    return probe.read([11])[0]


def test_a_gpu_without_memory_of_its_own_uses_the_systems() -> None:
    """As a DGX Spark answers: all but the memory. What it has for us and what we have resident is one pool's."""
    reading = gb10(broken=["nvmlDeviceGetMemoryInfo"])
    assert (reading.kind, reading.pool) == ("unified", "cpu")
    assert (reading.memory_total, reading.memory_used, reading.memory_free) == SHARED
    assert reading.used_by_us == 4 * GIB
    assert (reading.utilisation, reading.temperature_c, reading.compute_capability) == (0.37, 55.0, "8.9")


@pytest.mark.parametrize("name", ["NVIDIA GB10", "NVIDIA Thor", "Orin (nvgpu)"])
def test_a_known_gpu_of_that_kind_is_not_asked(name: str) -> None:
    """Some drivers tell a memory all the same, in which the system's cache counts as used."""
    assert (gb10(name).kind, gb10(name).memory_free) == ("unified", 100 * GIB)


def test_without_its_own_memory_a_gpu_that_tells_no_processes_has_what_we_have_resident() -> None:
    every = [
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
    ]
    assert gb10(broken=every).used_by_us == GIB


def test_a_card_that_was_lost_or_is_cut_up_has_no_memory_of_the_systems() -> None:
    """Another error than "not supported", and MIG, say nothing of whose the memory is."""
    for library in ({"how": Lost}, {"mig": 1}):
        reading = gb10("NVIDIA A100", broken=["nvmlDeviceGetMemoryInfo"], **library)
        assert (reading.kind, reading.pool, reading.memory_total) == ("nvml", "cuda:0", None)


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


def test_this_machine_always_has_a_cpu() -> None:
    assert detect().read()[-1].id == "cpu"
