"""What the doctor makes of facts that are no fault, or another one than those of the table."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.doctor.facts import (
    Build,
    Chosen,
    Devices,
    Engine,
    Facts,
    Folder,
    Native,
    Port,
    Power,
    System,
    TensorRT,
    Trial,
)
from appliance.doctor.findings import findings
from appliance.doctor.machine import _cards
from appliance.doctor.report import Line
from appliance.system import devices as system_devices
from appliance.system.cuda import CudaFinding, Driver
from appliance.system.devices import DeviceReading, FakeProbe
from appliance.system.gpu_users import GpuUser
from appliance.system.windows_only import Session, ranges
from tests.unit.doctor import faults

GIB = 1 << 30


def of(facts: Facts, check: str) -> list[Line]:
    return [line for line in findings(facts) if line.check == check]


def one(facts: Facts, check: str) -> Line:
    (line,) = of(facts, check)
    return line


# --- CUDA that is wanted, and CUDA that is not ------------------------------------------------------------------

CPU_BUILD = CudaFinding(
    part="build", reason="the CPU build of ONNX Runtime is installed; for CUDA install the extra 'cuda'"
)
CPU_RAN = Trial(provider="CPUExecutionProvider", ran_on="cpu", run_ms=0.03)
CPU_ENGINE = Engine(providers=("AzureExecutionProvider", "CPUExecutionProvider"), trials=(CPU_RAN,))


def cpu_build(device: str, driver: Driver, cards: tuple[DeviceReading, ...] = ()) -> Facts:
    return Facts(
        chosen=Chosen(device=device),
        native=Native(driver=driver, fault=CPU_BUILD, least_driver="580.65.06"),
        engine=CPU_ENGINE,
        devices=Devices(readings=(*cards, faults.PROCESSOR), cards=len(cards)),
    )


def test_a_build_for_the_cpu_without_a_card_is_well() -> None:
    facts = cpu_build("auto", Driver(missing="no such file"))
    assert faults.bad(findings(facts)) == []
    assert one(facts, "driver").found == "no NVIDIA driver is installed (not needed here: built for the CPU)"


def test_a_build_for_the_cpu_beside_a_card_is_a_warning() -> None:
    facts = cpu_build("auto", faults.WELL, (faults.GPU,))
    (line,) = faults.bad(findings(facts))
    assert (line.check, line.verdict) == ("provider", "warning")
    assert "there is a card that could run models" in line.found and "extra 'cuda'" in line.cure


def test_a_build_for_the_cpu_that_was_told_to_use_cuda_has_failed() -> None:
    lines = faults.bad(findings(cpu_build("cuda:0", faults.WELL, (faults.GPU,))))
    assert [(line.check, line.verdict) for line in lines] == [("provider", "failed")]
    assert "the CPU build of ONNX Runtime is installed" in lines[0].found
    assert lines[0].cure == "for CUDA install the extra 'cuda'"


def test_whoever_wants_the_cpu_has_no_fault_of_cuda(tmp_path: Path) -> None:
    found = faults.native(tmp_path, Driver(missing="no such file"), missing=faults.NAMES)
    facts = faults.well(tmp_path, native=found, chosen=Chosen(device="cpu"), devices=Devices())
    assert faults.bad(findings(facts)) == []
    assert one(facts, "driver").found.endswith("(not needed here: the setting device is cpu)")


def test_what_ran_is_not_doubted(tmp_path: Path) -> None:
    """A library that no model has needed yet is missing, but CUDA ran."""
    found = faults.native(tmp_path, missing=["cufft64_12.dll"])
    assert found.fault is not None
    facts = faults.well(tmp_path, native=found, engine=faults.engine())
    assert {(line.check, line.verdict) for line in faults.bad(findings(facts))} == {
        ("CUDA", "warning"),
        ("library", "warning"),
    }
    assert "5 of 6 libraries load, from: pack" in one(facts, "CUDA").found


def test_all_is_in_place_but_cuda_does_not_start(tmp_path: Path) -> None:
    """ONNX Runtime's own words are the best there is then."""
    error = (
        "the driver, the device and the libraries are in place, but ONNX Runtime did not start CUDA; the log has it"
    )
    engine = msgspec.structs.replace(faults.engine(error=error), said="CUDA failure 804: forward compatibility")
    (line,) = faults.bad(findings(faults.well(tmp_path, engine=engine)))
    assert line.check == "provider" and line.verdict == "failed" and line.cure == "the log has it"
    assert line.found.endswith("did not start CUDA (it said: CUDA failure 804: forward compatibility)")


@pytest.mark.parametrize(
    ("driver", "words", "cure"),
    [
        (Driver(hung=True), "does not answer", "restart the computer"),
        (Driver(version=13000, init=803), "does not fit the running NVIDIA driver (error 803)", "restart"),
        (Driver(version=13000, init=999), "did not start (error 999)", "restart"),
    ],
)
def test_a_driver_that_is_there_and_does_not_work(tmp_path: Path, driver: Driver, words: str, cure: str) -> None:
    line = one(faults.well(tmp_path, native=faults.native(tmp_path, driver)), "driver")
    assert line.verdict == "failed" and words in line.found and cure in line.cure


@pytest.mark.parametrize(
    ("driver", "device", "words", "cure"),
    [
        (faults.WELL, 3, "there is no device cuda:3, only cuda:0", "change the setting device"),
        (Driver(version=13000, init=0, capabilities=((6, 1),)), 0, "has compute capability 6.1, 7.5", "device = cpu"),
        (faults.NO_CARD, 0, "it finds no device", "nvidia-smi"),
    ],
)
def test_a_card_that_is_not_there_or_too_old(
    tmp_path: Path, driver: Driver, device: int, words: str, cure: str
) -> None:
    found = faults.native(tmp_path, driver, index=device)
    facts = faults.well(tmp_path, native=found, windows=None)
    line = next(line for line in of(facts, "device") if line.verdict == "failed")
    assert words in line.found and cure in line.cure


def test_shares_of_the_cores_want_no_card(tmp_path: Path) -> None:
    found = faults.native(tmp_path, Driver(missing="no such file"), missing=faults.NAMES)
    facts = faults.well(tmp_path, native=found, chosen=Chosen(device="cpu:0,cpu:1"), devices=Devices())
    assert faults.bad(findings(facts)) == []
    assert one(facts, "driver").found.endswith("(not needed here: the setting device is cpu:0,cpu:1)")


def test_one_of_two_cards_does_not_run(tmp_path: Path) -> None:
    """What works on the one excuses nothing of the other."""
    well = Trial(provider="CUDAExecutionProvider", device="cuda:0", ran_on="cuda:0", run_ms=0.1)
    bad = Trial(provider="CUDAExecutionProvider", device="cuda:1", error="there is no device cuda:1")
    engine = msgspec.structs.replace(faults.engine(), trials=(CPU_RAN, well, bad))
    facts = faults.well(
        tmp_path,
        native=faults.native(tmp_path, index=1),
        engine=engine,
        chosen=Chosen(device="cuda:0,cuda:1"),
        windows=None,
    )
    device = next(line for line in of(facts, "device") if line.verdict == "failed")
    assert "there is no device cuda:1, only cuda:0" in device.found
    _, first, second = of(facts, "provider")
    assert (first.verdict, second.verdict) == ("ok", "failed")
    assert second.found == "CUDAExecutionProvider did not run a model of one node on cuda:1: see 'device' above"


@pytest.mark.parametrize(
    ("policy", "cards"),
    [("cuda", [0]), ("cuda:2", [2]), ("cuda:1, cuda:3", [1, 3]), ("cpu:0,cpu:1", [0]), ("auto", [0, 1])],
)
def test_each_card_of_the_setting_is_tried(monkeypatch: pytest.MonkeyPatch, policy: str, cards: list[int]) -> None:
    readings = [DeviceReading(id=name, name="a card", kind="nvml") for name in ("cuda:0", "cuda:1")]
    monkeypatch.setattr(system_devices, "detect", lambda: FakeProbe([*readings, faults.PROCESSOR]))
    assert _cards(policy) == cards


def test_some_of_the_cards_are_hidden(tmp_path: Path) -> None:
    devices = Devices(readings=(faults.GPU,), cards=4, visible="2")
    line = one(faults.well(tmp_path, devices=devices), "device")
    assert line.verdict == "ok"
    assert line.found.endswith("; 1 of 4 cards are shown (CUDA_VISIBLE_DEVICES is '2')")


# --- the engine -------------------------------------------------------------------------------------------------


def test_an_engine_that_does_not_start_and_a_provider_that_fails(tmp_path: Path) -> None:
    gone = faults.well(tmp_path, engine=Engine(fault="the engine process ended when it was started"))
    assert one(gone, "provider") == Line(
        "provider", "failed", "the engine process ended when it was started", "run: appliance selftest"
    )
    wrong = Trial(provider="CPUExecutionProvider", ran_on="cpu", error="it gave a wrong answer")
    facts = Facts(engine=Engine(providers=("CPUExecutionProvider",), trials=(wrong,)))
    assert [line.verdict for line in of(facts, "provider")] == ["failed", "ok"]


def test_onnx_runtime_is_not_there_or_there_twice() -> None:
    build = Build(version="0.1.0", python="3.13.9", frozen=False, packages={})
    line = one(Facts(build=build, engine=Engine()), "program")
    assert line.verdict == "failed" and "ONNX Runtime is not installed" in line.found
    both = msgspec.structs.replace(build, packages={"onnxruntime": "1.31.0", "onnxruntime-gpu": "1.31.1"})
    line = one(Facts(build=both, engine=CPU_ENGINE), "program")
    assert line.verdict == "failed" and "onnxruntime and onnxruntime-gpu are both installed" in line.found
    frozen = msgspec.structs.replace(build, frozen=True)  # which has no list of packages
    line = one(Facts(build=frozen, engine=CPU_ENGINE), "program")
    assert line.verdict == "ok" and line.found.endswith("built for the CPU")


# --- memory -----------------------------------------------------------------------------------------------------


def gpu(total: int, free: int, ours: int | None, **chosen: Any) -> Facts:
    reading = msgspec.structs.replace(
        faults.GPU, memory_total=total, memory_used=total - free, memory_free=free, used_by_us=ours
    )
    devices = Devices(readings=(reading,), running=True, ours=(7,), users={"cuda:0": (GpuUser(7, "ours", None),)})
    return Facts(devices=devices, chosen=Chosen(memory_fraction=0.9, memory_reserve_bytes=GIB, **chosen))


def test_what_is_left_of_a_card_is_the_budgets_rule() -> None:
    """min(total × fraction, free + ours) − reserve: min(18, 6 + 10) − 1 = 15 of 20 GiB."""
    line = one(gpu(20 * GIB, 6 * GIB, 10 * GIB), "memory")
    assert line.verdict == "ok"
    assert line.found == "cuda:0: 14.0 GiB of 20.0 GiB used, 4.0 GiB by other programs; 15.0 GiB are left for models"


def test_a_card_that_is_tight_and_one_that_does_not_tell() -> None:
    line = one(gpu(20 * GIB, 6 * GIB, 0), "memory")  # 5 of 17
    assert line.verdict == "warning" and "5.0 GiB are left" in line.found
    # Windows' display driver model does not tell whose it is: with an appliance running it may all be its own.
    line = one(gpu(20 * GIB, GIB, None), "memory")
    assert line.verdict == "ok" and "other programs" not in line.found
    line = one(gpu(20 * GIB, 6 * GIB, 0, device="cpu"), "memory")
    assert line.verdict == "ok"  # nobody wants it


def test_a_machine_short_of_memory() -> None:
    reading = msgspec.structs.replace(faults.PROCESSOR, memory_free=100 << 20)
    line = one(Facts(devices=Devices(readings=(reading,))), "memory")
    assert line.verdict == "failed" and line.cure == "end other programs that use this memory"


# --- session, power, system -------------------------------------------------------------------------------------


def test_sessions_with_a_card_are_well(tmp_path: Path) -> None:
    for session, words in [
        (Session(0, "Services", False), "session 0: it runs as a service"),
        (Session(2, "RDP-Tcp#1", True), "session 2 (RDP-Tcp#1), a Remote Desktop session"),
    ]:
        facts = faults.well(tmp_path, windows=faults.windows(session=session))
        assert one(facts, "session") == Line("session", "ok", words)
        assert faults.bad(findings(facts)) == []


@pytest.mark.parametrize(
    ("power", "verdict", "words"),
    [
        (Power(battery=41.0, plugged=False), "warning", "on battery, 41 % left"),
        (Power(battery=90.0, plugged=True, plan="balanced"), "ok", "on mains, power plan: balanced"),
        (Power(plan="power saver"), "warning", "no battery, power plan: power saver"),
    ],
)
def test_power(power: Power, verdict: str, words: str) -> None:
    line = one(Facts(power=power), "power")
    assert (line.verdict, line.found) == (verdict, words)


def test_no_word_of_power_where_there_is_nothing_to_say() -> None:
    assert of(Facts(power=Power()), "power") == []


def test_tensorrt_is_told_and_is_no_fault(tmp_path: Path) -> None:
    found = msgspec.structs.replace(faults.native(tmp_path), tensorrt=TensorRT(version="10.13.3"))
    facts = faults.well(tmp_path, native=found)
    assert one(facts, "TensorRT") == Line("TensorRT", "ok", "TensorRT 10.13.3 loads")
    words = "libnvinfer.so.10 (TensorRT 10) was not found; install NVIDIA's TensorRT 10"
    found = msgspec.structs.replace(found, tensorrt=TensorRT(fault=words))
    line = one(faults.well(tmp_path, native=found), "TensorRT")
    assert line.verdict == "ok"
    assert line.found == (
        "libnvinfer.so.10 (TensorRT 10) was not found (not needed but for models whose providers name tensorrt)"
    )


def test_settings_that_cannot_be_read() -> None:
    line = one(Facts(chosen=Chosen(fault="settings: port: not a number")), "settings")
    assert line.verdict == "failed" and line.found.startswith("settings: port: not a number")


# --- port -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("port", "verdict", "words"),
    [
        (Port(), "ok", "11711 on 127.0.0.1 is free"),
        (Port(url="http://127.0.0.1:11711", pid=9, answers=True), "ok", "the appliance that runs has it"),
        (Port(url="http://127.0.0.1:11711", pid=9), "failed", "but it does not answer"),
        (Port(error="in use", other=True), "ok", "an appliance of another user, or with another state folder"),
        (Port(error="Permission denied"), "failed", "cannot be used: Permission denied"),
        # Reserved is another range: the system's own words are what there is.
        (Port(error="forbidden", reserved=((50000, 50059),)), "failed", "cannot be used: forbidden"),
    ],
)
def test_ports(port: Port, verdict: str, words: str) -> None:
    line = one(Facts(port=port), "port")
    assert line.verdict == verdict and words in line.found


def test_netsh_is_read_in_any_language() -> None:
    assert ranges(faults.NETSH) == ((5357, 5357), (11689, 11788), (50000, 50059))
    german = "Portausschlussbereiche (TCP)\r\n\r\nStartport    Endport\r\n------    ------\r\n 80  80 *\r\n"
    assert ranges(german) == ((80, 80),)
    assert ranges("nothing of the kind") == ()


# --- folders ----------------------------------------------------------------------------------------------------


def test_little_room_is_a_warning() -> None:
    line = one(Facts(folders=(Folder(role="state", path="/state", free=300 * 10**6),)), "folder")
    assert line.verdict == "warning" and "only 300 MB are free" in line.found


@pytest.mark.parametrize(
    ("page", "letters", "verdict"),
    [("cp1252", "Jörg", "ok"), ("cp932", "模型", "ok"), ("cp1252", "模型", "warning"), ("cp0", "Jörg", "warning")],
)
def test_letters_count_by_the_code_page(tmp_path: Path, page: str, letters: str, verdict: str) -> None:
    facts = faults.well(tmp_path, folders=faults.folders(f"D:\\{letters}"), windows=faults.windows(code_page=page))
    (line,) = of(facts, "paths")
    assert line.verdict == verdict and letters in line.found


def test_letters_elsewhere_are_well() -> None:
    facts = Facts(system=System(text="Linux"), folders=(Folder(role="models", path="/home/jörg/models"),))
    assert one(facts, "paths").verdict == "ok" and "(ö)" in one(facts, "paths").found


def test_long_paths(tmp_path: Path) -> None:
    long = f"D:\\{'a' * 260}"  # 263
    enabled = faults.well(tmp_path, folders=faults.folders(longest=long), windows=faults.windows(long_paths=True))
    assert one(enabled, "paths").verdict == "ok" and "263 characters" in one(enabled, "paths").found
    extended = faults.well(tmp_path, folders=faults.folders(longest=long, extended=True))
    assert one(extended, "paths").verdict == "warning"
    just = faults.well(tmp_path, folders=faults.folders(longest=f"D:\\{'a' * 256}"))  # 259, which always works
    assert one(just, "paths").found.startswith("plain letters")
    linux = Facts(system=System(text="Linux"), folders=(Folder(role="models", path=f"/{'a' * 300}"),))
    assert one(linux, "paths").verdict == "ok"


@pytest.mark.parametrize(
    ("models", "more", "words"),
    [
        (r"C:\Users\ada\OneDrive\models", {}, "in OneDrive"),
        (r"c:\users\ADA\onedrive\models", {}, "in OneDrive"),
        (r"D:\Dropbox\models", {}, "in Dropbox"),
        (r"C:\Users\ada\Downloads\models", {}, "in Downloads"),
        (r"C:\Users\ada\AppData\Local\Temp\x", {}, "in the temporary folder"),
        (r"\\server\share\models", {"network": True}, "on a network share"),
    ],
)
def test_places_where_something_gets_in_the_way(tmp_path: Path, models: str, more: Any, words: str) -> None:
    line = one(faults.well(tmp_path, folders=faults.folders(models, **more)), "antivirus")
    assert line.verdict == "warning" and words in line.found and "setting models" in line.cure


def test_guarded_folders_count_only_where_they_are_guarded(tmp_path: Path) -> None:
    documents = faults.folders(r"C:\Users\ada\Documents\models")
    assert one(faults.well(tmp_path, folders=documents), "antivirus").verdict == "ok"
    guarded = faults.well(tmp_path, folders=documents, windows=faults.windows(guarded=True))
    line = one(guarded, "antivirus")
    assert line.verdict == "warning" and "Controlled folder access" in line.cure


def test_no_word_of_scanners_outside_windows() -> None:
    facts = Facts(system=System(text="Linux"), folders=(Folder(role="models", path="/srv/models"),))
    assert of(facts, "antivirus") == []


# --- what could not be found out --------------------------------------------------------------------------------


def test_what_is_not_known_is_told() -> None:
    facts = Facts(unknown={"engine": "no answer within 70 s", "devices": "NVML crashed"})
    assert findings(facts) == (
        Line("engine", "failed", "could not be looked at: no answer within 70 s", "run the doctor again"),
        Line("memory", "warning", "could not be looked at: NVML crashed", "run the doctor again"),
    )
