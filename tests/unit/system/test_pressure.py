"""What this machine is short of, with figures that the test chooses."""

from pathlib import Path

from appliance.system.pressure import Pressure

GB = 10**9
SHORT = "this machine is short of memory: hardly any of its 16.0 GB is free"
FULL = "the disk that holds the state folder is full"


class Host:
    def __init__(self) -> None:
        self.available = 8 * GB
        self.free: int | None = 50 * GB
        self.asked: list[Path] = []

    def disk(self, folder: Path) -> int:
        self.asked.append(folder)
        if self.free is None:
            raise OSError("no such device")
        return self.free

    def pressure(self, folder: Path) -> Pressure:
        return Pressure(folder, lambda: (self.available, 16 * GB), self.disk)


def test_memory_comes_and_goes_without_a_flutter(tmp_path: Path) -> None:
    host = Host()
    pressure = host.pressure(tmp_path)
    found = []
    for available in (8.0, 0.81, 0.79, 0.81, 0.99, 1.01, 0.81, 0.1, 8):
        host.available = int(available * GB)
        found.append(pressure.look() == [SHORT])
    assert found == [False, False, True, True, True, False, False, True, False]


def test_the_disk_comes_and_goes_without_a_flutter(tmp_path: Path) -> None:
    host = Host()
    pressure = host.pressure(tmp_path)
    found = []
    for free in (500, 105, 104, 110, 130, 132, 105, 0):
        host.free = free << 20
        found.append(pressure.look() == [FULL])
    assert found == [False, False, False, False, False, False, False, True]
    for free, full in ((101, True), (124, True), (126, False), (99, True)):
        host.free = free << 20
        assert (pressure.look() == [FULL]) is full


def test_a_folder_that_is_not_there_yet_lies_on_the_disk_of_the_one_above(tmp_path: Path) -> None:
    host = Host()
    assert host.pressure(tmp_path / "a" / "b").look() == []
    assert host.asked == [tmp_path]


def test_a_disk_that_cannot_be_asked_is_not_full(tmp_path: Path) -> None:
    host = Host()
    host.free, host.available = None, GB // 2
    assert host.pressure(tmp_path).look() == [SHORT]


def test_this_machine_can_be_asked(tmp_path: Path) -> None:
    assert isinstance(Pressure(tmp_path).look(), list)
