"""Boards that are made up of files, with the contents that NVIDIA's guides and the kernel's describe."""

from pathlib import Path

import pytest

from appliance.system import jetson
from appliance.system.devices import (
    ChainProbe,
    DeviceProbe,
    DeviceReading,
    FakeProbe,
    ProbeUnavailable,
    default_factories,
    detect,
)
from appliance.system.devices_jetson import JetsonProbe
from appliance.system.jetson import Board, Zone

GIB = 1 << 30
KIB = 1 << 10


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MEMINFO = "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:   12582912 kB\nNvMapMemUsed:     {} kB\n"

# An Orin Nano with JetPack 6.2, as in NVIDIA's "Jetson Linux Developer Guide": the release file, nvpmodel's status
# and configuration, that chip's thermal zones with the trip points of the kernel's thermal documentation.
ORIN = {
    "proc/meminfo": MEMINFO.format(1000),
    "etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n",
    "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
    "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0nvidia,tegra234\0",
    "var/lib/nvpmodel/status": "pmode:0002 fmode:fan_mode_quiet",
    "etc/nvpmodel.conf": "# a comment: < POWER_MODEL ID=2 NAME=WRONG >\n"
    "< POWER_MODEL ID=0 NAME=15W >\nCPU_ONLINE CORE_0 1\n\n< POWER_MODEL ID=1 NAME=25W >\n"
    "< POWER_MODEL ID=2 NAME=MAXN_SUPER >\nGPU MAX_FREQ -1\n< PM_CONFIG DEFAULT=1 >\n",
    "sys/devices/platform/bus@0/17000000.gpu/load": "415\n",
    "sys/devices/platform/bus@0/15340000.vic/load": "999\n",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "60000\n",
    "sys/class/thermal/thermal_zone0/trip_point_0_type": "critical\n",
    "sys/class/thermal/thermal_zone0/trip_point_0_temp": "104500\n",
    "sys/class/thermal/thermal_zone0/trip_point_1_type": "passive\n",
    "sys/class/thermal/thermal_zone0/trip_point_1_temp": "99000\n",
    "sys/class/thermal/thermal_zone1/type": "gpu-thermal\n",
    "sys/class/thermal/thermal_zone1/temp": "51250\n",
}


def probe(root: Path, **more: object) -> JetsonProbe:
    return JetsonProbe(root, lambda pids: 7 if set(pids) == {1, 2} else None, **more)  # type: ignore[arg-type]


def test_a_board(tmp_path: Path) -> None:
    write(tmp_path, ORIN)
    assert jetson.look(tmp_path) == Board(
        model="NVIDIA Jetson Orin Nano Developer Kit",
        release="36.4.3",
        capability="8.7",
        power_mode="MAXN_SUPER",
        zones=(Zone("cpu-thermal", 60.0, 99.0), Zone("gpu-thermal", 51.25)),
    )


def test_its_gpu(tmp_path: Path) -> None:
    """All in the system's figures, of which the CPU's are the same; what of it the GPU has for us is the growth."""
    write(tmp_path, ORIN)
    found = probe(tmp_path)
    write(tmp_path, {"proc/meminfo": MEMINFO.format(3000)})
    (reading,) = found.read([1, 2])
    assert reading == DeviceReading(
        id="cuda:0",
        name="NVIDIA Jetson Orin Nano Developer Kit",
        kind="unified",
        memory_total=16 * GIB,
        memory_used=4 * GIB,
        memory_free=12 * GIB,
        used_by_us=7 + 2000 * KIB,
        utilisation=0.415,
        temperature_c=51.25,
        driver="L4T 36.4.3",
        compute_capability="8.7",
        power_mode="MAXN_SUPER",
    )
    assert reading.pool == "cpu"


@pytest.mark.parametrize(
    ("now", "used"),
    [(1000, 7), (500, 7), (1001, 7 + KIB)],
)
def test_memory_that_others_gave_back_is_not_less_than_ours(tmp_path: Path, now: int, used: int) -> None:
    write(tmp_path, ORIN)
    found = probe(tmp_path)
    write(tmp_path, {"proc/meminfo": MEMINFO.format(now)})
    assert found.read([1, 2])[0].used_by_us == used


def test_roots_table_says_exactly_whose_memory_it_is(tmp_path: Path) -> None:
    table = (
        "CLIENT                        PROCESS      PID        SIZE\n"
        "user                      gnome-shell     1500      80000K\n"
        "user                          python3        2    1200000K\n"
        "user                     a name of two        1        512K\n"
        "total                                                1280512K\n"
    )
    write(tmp_path, ORIN | {"sys/kernel/debug/nvmap/iovmm/clients": table})
    assert probe(tmp_path).read([1, 2])[0].used_by_us == 7 + 1200512 * KIB


class Driver(FakeProbe):
    """NVML on a Thor: it tells what no file does there."""

    def __init__(self, used: int | None) -> None:
        told = DeviceReading(
            id="cuda:0",
            name="NVIDIA Thor",
            kind="unified",
            used_by_us=used,
            utilisation=0.9,
            temperature_c=80.0,
            power_w=42.0,
            driver="580.00",
            cuda_version="13.0",
            compute_capability="11.0",
        )
        super().__init__([told])


THOR = {
    "etc/nv_tegra_release": "# R38 (release), REVISION: 4.0, GCID: 1, BOARD: generic, EABI: aarch64\n",
    "proc/device-tree/model": "NVIDIA Jetson AGX Thor Developer Kit\0",
    "proc/device-tree/compatible": "nvidia,p3971-0080\0nvidia,tegra264\0",
    "proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:   12582912 kB\n",
}


def test_the_driver_fills_the_gaps(tmp_path: Path) -> None:
    write(tmp_path, THOR)
    driver = Driver(GIB)
    found = probe(tmp_path, nvml=lambda: driver)
    (reading,) = found.read([1, 2])
    assert reading == DeviceReading(
        id="cuda:0",
        name="NVIDIA Jetson AGX Thor Developer Kit",
        kind="unified",
        memory_total=16 * GIB,
        memory_used=4 * GIB,
        memory_free=12 * GIB,
        used_by_us=7 + GIB,
        utilisation=0.9,
        temperature_c=80.0,
        power_w=42.0,
        driver="L4T 38.4.0",
        cuda_version="13.0",
        compute_capability="11.0",
    )
    found.close()
    assert driver.closed and driver.asked == [(1, 2)]


def test_files_go_before_the_driver(tmp_path: Path) -> None:
    write(tmp_path, ORIN)
    (reading,) = probe(tmp_path, nvml=lambda: Driver(None)).read([1, 2])
    assert (reading.utilisation, reading.temperature_c, reading.power_w) == (0.415, 51.25, 42.0)
    assert (reading.compute_capability, reading.used_by_us) == ("8.7", 7)


def test_no_driver_that_answers_is_no_fault(tmp_path: Path) -> None:
    def none() -> DeviceProbe:
        raise ProbeUnavailable("NVML: Driver Not Loaded")

    write(tmp_path, THOR)
    (reading,) = probe(tmp_path, nvml=none).read([1, 2])
    assert (reading.used_by_us, reading.utilisation, reading.power_w) == (7, None, None)


def test_sensors_are_asked_once_a_second(tmp_path: Path) -> None:
    write(tmp_path, ORIN)
    time = [0.0]
    found = probe(tmp_path, now=lambda: time[0])
    write(tmp_path, {"sys/class/thermal/thermal_zone1/temp": "70000\n", "var/lib/nvpmodel/status": "pmode:0000"})
    time[0] = 0.9
    assert found.read()[0].temperature_c == 51.25
    time[0] = 1.0
    (reading,) = found.read()
    assert (reading.temperature_c, reading.power_mode) == (70.0, "15W")


@pytest.mark.parametrize("left", ["etc/nv_tegra_release", "proc/device-tree/model"])
def test_a_jetson_is_known_by_one_file(tmp_path: Path, left: str) -> None:
    write(tmp_path, {left: ORIN[left]})
    reading = JetsonProbe(tmp_path).read()[0]
    assert "Jetson" in reading.name
    assert (reading.utilisation, reading.temperature_c, reading.power_mode) == (None, None, None)
    assert reading.memory_total  # from the running system, where the made-up one has no meminfo
    assert reading.used_by_us  # what is resident


def test_a_sleeping_sensor_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, ORIN)
    (tmp_path / "sys/class/thermal/thermal_zone1/temp").unlink()
    assert JetsonProbe(tmp_path).read()[0].temperature_c is None


@pytest.mark.parametrize(
    ("file", "load"),
    [
        ("sys/devices/gpu.0/load", 0.1),
        ("sys/devices/platform/gpu.0/load", 0.1),
        ("sys/devices/17000000.ga10b/load", 0.1),
        ("sys/devices/platform/bus@0/17000000.ga10b/load", 0.1),
        ("sys/devices/platform/bus@0/15340000.vic/load", None),
    ],
)
def test_where_releases_keep_the_load(tmp_path: Path, file: str, load: float | None) -> None:
    write(tmp_path, {file: "100\n"})
    assert jetson.gpu_load(tmp_path) == load


@pytest.mark.parametrize(
    ("status", "mode"),
    [("pmode:0000", "15W"), ("pmode:0009 fmode:quiet", "mode 9"), ("", None), ("what", None)],
)
def test_power_modes(tmp_path: Path, status: str, mode: str | None) -> None:
    write(tmp_path, ORIN | {"var/lib/nvpmodel/status": status})
    assert jetson.power_mode(tmp_path) == mode


@pytest.mark.parametrize(
    ("release", "jetpack"),
    [
        ("35.4.1", "5.1.2"),
        ("36.3.0", "6.0"),
        ("36.4.3", "6.2"),
        ("36.4.99", "6"),
        ("38.2.1", "7.0"),
        ("38.4.0", "7.1"),
        ("39.2.0", "7.2"),
        ("99.1", None),
        (None, None),
    ],
)
def test_the_jetpack_of_a_release(release: str | None, jetpack: str | None) -> None:
    board = Board(model="Jetson", release=release)
    assert board.jetpack == jetpack
    assert board.generation == (int(jetpack[0]) if jetpack else None)


def test_anything_else_is_no_jetson(tmp_path: Path) -> None:
    write(tmp_path, {"proc/device-tree/model": "Raspberry Pi 5\0"})
    assert jetson.look(tmp_path) is None
    with pytest.raises(ProbeUnavailable):
        JetsonProbe(tmp_path)


def test_a_jetson_takes_its_own_probe_and_one_pool_of_memory(tmp_path: Path) -> None:
    write(tmp_path, ORIN)
    readings = detect(default_factories(tmp_path)).read()
    assert [(reading.id, reading.kind, reading.pool) for reading in readings] == [
        ("cuda:0", "unified", "cpu"),
        ("cpu", "cpu", "cpu"),
    ]
    assert {(r.memory_total, r.memory_free) for r in readings} == {(16 * GIB, 12 * GIB)}


def test_devices_of_one_pool_say_the_same_of_what_is_ours() -> None:
    """The processor's probe knows only what is resident."""
    gpu = DeviceReading(id="cuda:0", name="Orin", kind="unified", used_by_us=5 * GIB)
    cpu = DeviceReading(id="cpu", name="CPU", kind="cpu", used_by_us=2 * GIB)
    card = DeviceReading(id="cuda:1", name="RTX", kind="nvml", used_by_us=7 * GIB)
    silent = DeviceReading(id="cuda:2", name="RTX", kind="nvml")
    chain = ChainProbe([FakeProbe([gpu, card, silent]), FakeProbe([cpu])])
    assert [reading.used_by_us for reading in chain.read()] == [5 * GIB, 7 * GIB, None, 5 * GIB]
