"""What the doctor says of a Jetson: what fits to its JetPack, and only of a board."""

from typing import Any

import pytest

from appliance.doctor.facts import Chosen, Devices, Engine, Facts, Native, Trial
from appliance.doctor.findings import findings
from appliance.doctor.report import Line
from appliance.system.cuda import Driver, why_not_cuda
from appliance.system.cuda_code import Code, fault
from appliance.system.cuda_loader import FakeLoader
from appliance.system.jetson import Board, Zone

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
RAN = Trial(provider=CPU, ran_on="cpu", run_ms=0.03)
PYPI = Code(frozenset({(8, 9), (9, 0), (12, 0), (12, 1)}))


def board(release: str | None = "36.4.3", **more: Any) -> Board:
    return Board(model="NVIDIA Jetson Orin Nano", release=release, capability="8.7", **more)


def told(facts: Facts, check: str) -> list[Line]:
    return [line for line in findings(facts) if line.check == check]


@pytest.mark.parametrize(
    ("release", "words", "cure"),
    [
        ("32.7.3", "JetPack 4 (L4T 32.7.3): models run on the CPU; its CUDA 10.2", "set device = cpu"),
        ("35.4.1", "JetPack 5.1.2 (L4T 35.4.1): models run on the CPU; its CUDA 11.4", "move to a newer JetPack"),
        ("36.4.3", "JetPack 6.2 (L4T 36.4.3): models run on the CPU; it has CUDA 12.6", "build ONNX Runtime"),
        ("38.4.0", "JetPack 7.1 (L4T 38.4.0): models run on the CPU; PyPI's build for arm64", "build ONNX Runtime"),
        ("99.1", "L4T 99.1, which is not known here", "docs/jetson.md"),
        (None, "no release file of NVIDIA's", "docs/jetson.md"),
    ],
)
def test_what_fits(release: str | None, words: str, cure: str) -> None:
    (line,) = told(Facts(board=board(release)), "JetPack")
    assert line.verdict == "warning"
    assert line.found.startswith("NVIDIA Jetson Orin Nano, ") and words in line.found
    assert cure in line.cure


def test_what_runs_is_not_doubted() -> None:
    engine = Engine(providers=(CUDA, CPU), trials=(RAN, Trial(provider=CUDA, ran_on="cuda:0", run_ms=0.1)))
    (line,) = told(Facts(board=board(), engine=engine), "JetPack")
    assert line == Line(
        "JetPack",
        "ok",
        "NVIDIA Jetson Orin Nano, JetPack 6.2 (L4T 36.4.3): this build of ONNX Runtime runs on its GPU",
    )


def test_whoever_wants_the_cpu_is_not_warned() -> None:
    (line,) = told(Facts(board=board(), chosen=Chosen(device="cpu")), "JetPack")
    assert line.verdict == "ok" and "the setting device is cpu" in line.found


def test_power_mode_and_heat() -> None:
    zones = (Zone("cpu-thermal", 60.4, 99.0), Zone("gpu-thermal", 51.2), Zone("tj-thermal", 61.0, 99.0))
    facts = Facts(board=board(power_mode="15W", zones=zones))
    assert told(facts, "power mode") == [Line("power mode", "ok", "15W (nvpmodel)")]
    assert told(facts, "heat") == [Line("heat", "ok", "61 °C at most (tj-thermal)")]
    hot = Facts(board=board(zones=(*zones, Zone("soc0-thermal", 99.0, 99.0))))
    (line,) = told(hot, "heat")
    assert (line.verdict, line.found) == (
        "warning",
        "soc0-thermal is at 99 °C, and from 99 °C the board slows down",
    )
    bare = Facts(board=board())
    assert told(bare, "power mode") == [] and told(bare, "heat") == []


def test_no_word_of_it_elsewhere() -> None:
    assert findings(Facts()) == ()


def facts_of(driver: Driver, found: Any) -> Facts:
    engine = Engine(providers=(CUDA, CPU), trials=(RAN, Trial(provider=CUDA, error=found.reason)))
    native = Native(driver=driver, fault=found, least_driver="580.65.06")
    return Facts(board=board(), native=native, engine=engine, devices=Devices())


def test_pypis_build_on_jetpack_6(tmp_path: Any) -> None:
    """The driver runs CUDA 12.6; it is JetPack's and cannot be replaced by itself."""
    provider = tmp_path / "libonnxruntime_providers_cuda.so"
    provider.touch()
    driver = Driver(version=12060, init=0, capabilities=((8, 7),))
    facts = facts_of(driver, why_not_cuda(FakeLoader(driver), provider))
    (line,) = told(facts, "driver")
    assert line.verdict == "failed"
    assert "too old: it runs CUDA 12.6 at most, CUDA 13.0 is needed" in line.found
    assert line.cure == "see the line 'JetPack'"


def test_pypis_build_on_a_board_with_cuda_13() -> None:
    driver = Driver(version=13020, init=0, capabilities=((8, 7),))
    facts = facts_of(driver, fault(driver, 0, PYPI))
    line = next(line for line in told(facts, "device") if line.verdict == "failed")
    assert "compute capability 8.7, for which this build of ONNX Runtime has no code" in line.found
    assert line.cure == "install a build of ONNX Runtime for this GPU"
    (driver_line,) = told(facts, "driver")
    assert driver_line.verdict == "ok" and "needed" not in driver_line.found
