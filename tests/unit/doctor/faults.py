"""Machines that are made up: one that is well, and each with one thing wrong. ``python -m tests.unit.doctor.faults``
prints the table of docs/doctor.md."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

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
    Trial,
    Windows,
)
from appliance.doctor.findings import findings
from appliance.doctor.native import examine
from appliance.doctor.report import Line
from appliance.system import dlls
from appliance.system.cuda import Driver, why_not_cuda
from appliance.system.cuda_loader import FakeLoader
from appliance.system.devices import DeviceReading
from appliance.system.gpu_users import GpuUser
from appliance.system.windows_only import Session, ranges

PROVIDER = "onnxruntime_providers_cuda.dll"
CURE = "install the extra 'cuda', or run: appliance runtime install cuda --from FILE"
PACKS = Path("/state/runtimes")
NAMES = [wanted.name for wanted in dlls.libraries("onnx", True, 13, 9)]
NEEDS = ("cublas64_13.dll", "cublasLt64_13.dll", "cudart64_13.dll", "cufft64_12.dll", "cudnn64_9.dll", "KERNEL32.dll")

# What Python says of LoadLibrary's errors.
MOD_NOT_FOUND = (
    "Could not find module '{}' (or one of its dependencies). Try using the full path with constructor syntax."
)
PROC_NOT_FOUND = "[WinError 127] The specified procedure could not be found"

WELL = Driver(version=13000, init=0, capabilities=((8, 9),))
NO_CARD = Driver(version=13000, init=100)
ADA = Session(1, "Console", False)

NETSH = """
Protocol tcp Port Exclusion Ranges

Start Port    End Port
----------    --------
      5357        5357
     11689       11788
     50000       50059     *

* - Administered port exclusions.
"""


def native(
    folder: Path,
    driver: Driver = WELL,
    missing: Sequence[str] = (),
    broken: Mapping[str, str] | None = None,
    also: Sequence[str] = (),
    index: int = 0,
    **loader: Any,
) -> Native:
    """A Windows machine with the build for CUDA and a pack that has all but ``missing``. ``broken``: names → what
    Python says when they are loaded; ``also``: names that the system finds; ``index``: the card that is wanted."""
    provider = folder / PROVIDER
    provider.touch()
    there = [name for name in NAMES if name not in missing]
    files = [PACKS / "cuda-13.5.37" / "bin" / name for name in there]
    libraries = dlls.look("onnx", PACKS, "1.31.1", dlls.FakeSurroundings(files))
    words = {name: MOD_NOT_FOUND.format(name) for name in missing} | dict(broken or {})
    loading = [name for name in (*there, PROVIDER, "KERNEL32.dll", *also) if name not in words]
    places = {file.name: file for file in files}
    fake = FakeLoader(
        driver, words, only=loading, places=places, windows=True, **{"needs": {PROVIDER: NEEDS}, **loader}
    )
    why = partial(why_not_cuda, provider=provider, cuda_major=13, cudnn_major=9, device=index, cure=CURE)
    found = examine(fake, libraries, provider, why, version="1.31.1", cure=CURE)
    whole = not found.fault and not missing and not broken
    return msgspec.structs.replace(found, versions={"CUDA": "13.0", "cuDNN": "9.28.1"} if whole else {})


def engine(found: Native | None = None, error: str | None = None) -> Engine:
    """What the engine would say on a machine where the libraries are so."""
    fault = error or (found.fault.reason if found and found.fault else None)
    cuda = (
        Trial(provider="CUDAExecutionProvider", error=fault)
        if fault
        else Trial(provider="CUDAExecutionProvider", ran_on="cuda:0", run_ms=0.12)
    )
    cpu = Trial(provider="CPUExecutionProvider", ran_on="cpu", run_ms=0.03)
    return Engine(providers=("CUDAExecutionProvider", "CPUExecutionProvider"), trials=(cpu, cuda))


GPU = DeviceReading(
    id="cuda:0",
    name="NVIDIA GeForce RTX 4090",
    kind="nvml",
    memory_total=24 << 30,
    memory_used=1 << 30,
    memory_free=23 << 30,
    used_by_us=0,
    driver="580.97",
    cuda_version="13.0",
    compute_capability="8.9",
)
PROCESSOR = DeviceReading(
    id="cpu",
    name="AMD Ryzen 9",
    kind="cpu",
    memory_total=32 << 30,
    memory_used=8 << 30,
    memory_free=24 << 30,
    used_by_us=0,
)
HOME = r"C:\Users\ada"
STATE = rf"{HOME}\AppData\Local\Inference Appliance"
PLACES = {
    "OneDrive": (rf"{HOME}\OneDrive",),
    "Downloads": (rf"{HOME}\Downloads",),
    "Temp": (rf"{HOME}\AppData\Local\Temp",),
    "Documents": (rf"{HOME}\Documents",),
}


def folders(models: str = rf"{HOME}\Inference Appliance\models", **of_models: Any) -> tuple[Folder, ...]:
    return (
        Folder(role="state", path=STATE, free=80 * 10**9),
        Folder(role="logs", path=rf"{STATE}\logs", free=80 * 10**9),
        Folder(role="models", path=models, free=80 * 10**9, **of_models),
        Folder(role="program", path=rf"{HOME}\AppData\Local\Programs\Inference Appliance"),
    )


def windows(**parts: Any) -> Windows:
    values = {"session": ADA, "long_paths": False, "code_page": "cp1252", "guarded": False, "places": PLACES}
    return Windows(**{**values, **parts})


def well(folder: Path, **parts: Any) -> Facts:
    """A machine that is well, but for ``parts``."""
    found = parts.pop("native", None) or native(folder)
    values: dict[str, Any] = {
        "chosen": Chosen(),
        "system": System(text="Windows 11 10.0.26100 (AMD64)", windows=True),
        "build": Build(version="0.1.0", python="3.13.9", frozen=True, packages={"onnxruntime-gpu": "1.31.1"}),
        "native": found,
        "engine": engine(found),
        "devices": Devices(readings=(GPU, PROCESSOR), cards=1),
        "port": Port(),
        "folders": folders(),
        "windows": windows(),
        "power": Power(plan="balanced"),
    }
    return Facts(**{**values, **parts})


def _no_driver(folder: Path) -> Facts:
    found = native(folder, Driver(missing=MOD_NOT_FOUND.format("nvcuda.dll")))
    return well(folder, native=found, devices=Devices(readings=(PROCESSOR,)))


def _old_driver(folder: Path) -> Facts:
    found = native(folder, Driver(version=12060, init=0, capabilities=((8, 9),)))
    gpu = msgspec.structs.replace(GPU, driver="560.94", cuda_version="12.6")
    return well(folder, native=found, devices=Devices(readings=(gpu, PROCESSOR), cards=1))


def _no_cudnn(folder: Path) -> Facts:
    gone = [name for name in NAMES if name.startswith("cudnn")]
    return well(folder, native=native(folder, missing=gone, broken={PROVIDER: MOD_NOT_FOUND.format(PROVIDER)}))


def _wrong_major(folder: Path) -> Facts:
    gone = [name for name in NAMES if not name.startswith("cudnn")]
    old = ["cudart64_12.dll", "cublas64_12.dll", "cublasLt64_12.dll", "cufft64_11.dll"]
    broken = {PROVIDER: MOD_NOT_FOUND.format(PROVIDER)}
    return well(folder, native=native(folder, missing=gone, broken=broken, also=old))


def _error_126(folder: Path) -> Facts:
    """cublas64_13.dll is there, but not the library that it needs itself."""
    broken = {name: MOD_NOT_FOUND.format(name) for name in ("cublas64_13.dll", PROVIDER)}
    needs = {PROVIDER: ("cublas64_13.dll", "cudart64_13.dll"), "cublas64_13.dll": ("cublasLt64_13.dll",)}
    return well(folder, native=native(folder, missing=["cublasLt64_13.dll"], broken=broken, needs=needs))


def _error_126_runtime(folder: Path) -> Facts:
    """Microsoft's own library is not there."""
    broken = {PROVIDER: MOD_NOT_FOUND.format(PROVIDER)}
    return well(folder, native=native(folder, broken=broken, needs={PROVIDER: (*NEEDS, "MSVCP140_1.dll")}))


def _error_127(folder: Path) -> Facts:
    """A cuDNN of another version has the right name."""
    lacking = {"cudnn64_9.dll": "cudnnGetVersion"}
    return well(folder, native=native(folder, broken={PROVIDER: PROC_NOT_FOUND}, lacking=lacking))


def _hidden(folder: Path) -> Facts:
    found = native(folder, NO_CARD, variables={"CUDA_VISIBLE_DEVICES": "-1"})
    return well(folder, native=found, devices=Devices(readings=(PROCESSOR,), cards=1, visible="-1"))


def _full(folder: Path) -> Facts:
    gpu = msgspec.structs.replace(GPU, memory_used=(24 << 30) - (100 << 20), memory_free=100 << 20)
    users = (GpuUser(4711, "python.exe", 22 << 30), GpuUser(1204, "dwm.exe", 1 << 30))
    words = "not enough memory to load the model: Failed to allocate memory for requested buffer of size 1048576"
    devices = Devices(readings=(gpu, PROCESSOR), users={"cuda:0": users}, cards=1)
    return well(folder, devices=devices, engine=engine(error=words))


def _no_card(folder: Path, session: Session) -> Facts:
    return well(
        folder,
        native=native(folder, NO_CARD),
        devices=Devices(readings=(PROCESSOR,)),
        windows=windows(session=session),
    )


def _taken(folder: Path) -> Facts:
    error = "Only one usage of each socket address (protocol/network address/port) is normally permitted"
    return well(folder, port=Port(error=error, owner="python.exe (pid 4711)"))


def _reserved(folder: Path) -> Facts:
    error = "An attempt was made to access a socket in a way forbidden by its access permissions"
    return well(folder, port=Port(error=error, reserved=ranges(NETSH)))


FAULTS: dict[str, Callable[[Path], Facts]] = {
    "no driver": _no_driver,
    "driver too old for CUDA 13": _old_driver,
    "cuDNN missing": _no_cudnn,
    "wrong CUDA major": _wrong_major,
    "`LoadLibrary` error 126: a library that another needs": _error_126,
    "`LoadLibrary` error 126: Microsoft's library": _error_126_runtime,
    "`LoadLibrary` error 127": _error_127,
    "hidden by `CUDA_VISIBLE_DEVICES`": _hidden,
    "device full by other programs": _full,
    "Remote Desktop session without a card": lambda folder: _no_card(folder, Session(3, "RDP-Tcp#7", True)),
    "service session without a card": lambda folder: _no_card(folder, Session(0, "Services", False)),
    "port taken": _taken,
    "port reserved by Windows": _reserved,
    "models folder not writable": lambda folder: well(folder, folders=folders(fault="Access is denied")),
    "path with non-ASCII letters": lambda folder: well(folder, folders=folders("D:\\模型")),
    "path over 260 characters": lambda folder: well(
        folder, folders=folders(r"D:\models", longest=rf"D:\models\{'a' * 255}\1\model.onnx")
    ),
}


def bad(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.verdict != "ok"]


def table(folder: Path) -> str:
    """The rows of docs/doctor.md: of each fault all lines that are not "ok", of libraries the first two."""
    rows = ["| simulated | line | what is found | what to do |", "|---|---|---|---|"]
    for name, make in FAULTS.items():
        lines = bad(findings(make(folder)))
        libraries = [line for line in lines if line.check == "library"]
        shown = [line for line in lines if line not in libraries[2:]]
        for number, line in enumerate(shown):
            more = len(libraries) > 2 and line == libraries[1]
            last = f" (and {len(libraries) - 2} more such lines)" if more else ""
            first = name if number == 0 else ""
            rows.append(f"| {first} | {line.verdict} {line.check} | {line.found}{last} | {line.cure} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(table(Path(place)), end="")
