"""The peak over a piece of work, and whose memory is read."""

import threading
import time

import pytest

from appliance.backends.fake_device import FakeDevice
from appliance.engine.memory import MemoryReader
from appliance.engine.messages import DeviceMemory
from appliance.engine.meter import peak_over
from appliance.errors import InsufficientMemory
from appliance.system.devices import DeviceReading, FakeProbe


class Used:
    """What is used, set by the work, and how often it was asked for."""

    def __init__(self, value: int = 10) -> None:
        self.value = value
        self.asked = threading.Event()

    def __call__(self) -> int:
        self.asked.set()
        return self.value

    def seen(self, value: int) -> None:
        """Hold a value until the meter has read it for sure (it reads, then this reading and a whole one pass)."""
        self.value = value
        for _ in range(2):
            self.asked.clear()
            assert self.asked.wait(10)


def test_the_highest_of_before_during_and_after() -> None:
    used = Used(10)

    def rises() -> str:
        used.seen(70)
        used.seen(30)
        used.value = 20
        return "done"

    assert peak_over(rises, used) == ("done", 70)
    assert peak_over(lambda: None, Used(5)) == (None, 5)

    def keeps() -> None:
        used.value = 90  # an arena keeps what it took

    assert peak_over(keeps, used)[1] == 90
    used.value = 100

    def falls() -> None:
        used.value = 1

    assert peak_over(falls, used)[1] == 100


def test_a_fault_passes_and_no_thread_is_left() -> None:
    def fails() -> None:
        raise InsufficientMemory("full")

    with pytest.raises(InsufficientMemory):
        peak_over(fails, Used())
    assert not [t for t in threading.enumerate() if t.name == "meter"]


class Backend:
    """Of a fake device."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def memory(self) -> dict[str, tuple[int, int, int]]:
        return {"fake:0": self.device.memory()}


def reading(id: str, total: int | None, free: int | None, ours: int | None) -> DeviceReading:
    return DeviceReading(id=id, name=id, kind="nvml", memory_total=total, memory_free=free, used_by_us=ours)


def test_devices_that_do_not_tell_are_left_out() -> None:
    probe = FakeProbe([reading("cuda:0", 100, 60, 30), reading("cuda:1", 100, 60, None), reading("cpu", 50, 40, 5)])
    device = FakeDevice(1000)
    device.take(300)
    reader = MemoryReader(probe, lambda: [Backend(device)])  # type: ignore[list-item]
    assert reader.read() == {
        "cuda:0": DeviceMemory(100, 60, 30),
        "cpu": DeviceMemory(50, 40, 5),
        "fake:0": DeviceMemory(1000, 700, 300),
    }
    assert (reader.used("cuda:0"), reader.used("cuda:1"), reader.used("fake:0")) == (30, 0, 300)
    asked = len(probe.asked)
    assert reader.used("fake:0") == 300 and reader.used("cpu") == pytest.approx(reader.rss(), rel=0.2)
    assert len(probe.asked) == asked, "no probe is troubled for what is nearer"


def test_the_fake_device_runs_out_at_its_size_from_any_thread() -> None:
    device, taken, refused = FakeDevice(100), [], []

    def take() -> None:
        for _ in range(50):
            try:
                device.take(7)
            except InsufficientMemory as error:
                refused.append(error.message)
                continue
            taken.append(1)
            assert device.memory()[2] <= 100
            time.sleep(0.0001)
            device.give(7)

    threads = [threading.Thread(target=take) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.memory() == (100, 100, 0)
    assert len(taken) + len(refused) == 1500
    device.take(100)
    with pytest.raises(InsufficientMemory, match="1 bytes asked for, 0 free"):
        device.take(1)
