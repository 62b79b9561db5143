"""CUDA's libraries on Windows, with the real ones: a runtime pack is installed, then things are taken away.

Wine has no driver of NVIDIA, so CUDA itself never runs here. Where the libraries are looked at, a stand-in for the
driver's library says that there is a card. Needs the Windows Python of the CUDA build (``VARIANT=cuda
build/windows/setup.sh``) and the pack (``build/windows/make_pack.py --out $WIN_BASE/packs``): 1.3 GB of downloads, so
this is not for every run.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.wine import BASE, Wine, require
from tests.support import nets
from tests.support.server import ROOT

GCC = "x86_64-w64-mingw32-gcc"
require(GCC)

PYTHON = BASE / "python-cuda"
PACKS = sorted((BASE / "packs").glob("cuda-*-windows-x86_64.zip"))
if not (PYTHON / "Lib" / "site-packages" / "onnxruntime" / "capi" / "onnxruntime_providers_cuda.dll").exists():
    pytest.skip(
        "no Windows Python with onnxruntime-gpu (VARIANT=cuda build/windows/setup.sh)", allow_module_level=True
    )
if not PACKS:
    pytest.skip("no runtime pack (build/windows/make_pack.py --out $WIN_BASE/packs)", allow_module_level=True)

CURE = "install the extra 'cuda', or run: appliance runtime install cuda --from FILE"
NO_DRIVER = "no NVIDIA driver is installed (nvcuda.dll was not found); install driver 580.88 or newer"

# A driver as far as the device truth asks it: it runs CUDA 13.0 and has one card of compute capability 8.9.
DRIVER = """
__declspec(dllexport) int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
__declspec(dllexport) int cuInit(unsigned f) { return 0; }
__declspec(dllexport) int cuDeviceGetCount(int *n) { *n = 1; return 0; }
__declspec(dllexport) int cuDeviceGet(int *d, int i) { *d = i; return 0; }
__declspec(dllexport) int cuDeviceGetAttribute(int *x, int a, int d) { *x = a == 75 ? 8 : 9; return 0; }
"""
EMPTY = "__declspec(dllexport) int of_another_version(void) { return 0; }"


def library(folder: Path, name: str, source: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.c").write_text(source)
    command = [GCC, "-O1", "-s", "-shared", "-o", folder / name, folder / f"{name}.c"]
    subprocess.run(command, check=True)
    return folder / name


class Machine:
    """A Windows machine with the program's source, the GPU build of ONNX Runtime, and two models."""

    def __init__(self, wine: Wine) -> None:
        self.wine = wine
        self.made = wine.folder / "made"
        self.state = wine.state
        self.models = wine.home / "models"
        self.bin = self.state / "runtimes" / PACKS[0].name.removesuffix("-windows-x86_64.zip") / "bin"
        for policy in ("prefer", "require"):
            (self.models / policy / "1").mkdir(parents=True)
            nets.scale(self.models / policy / "1" / "model.onnx")
            (self.models / policy / "model.toml").write_text(f'device = "{policy}"\n')
        self.driver(False)

    def driver(self, there: bool) -> None:
        file = self.wine.drive / "windows" / "system32" / "nvcuda.dll"
        file.unlink(missing_ok=True)
        if there:
            shutil.copy(library(self.made, "nvcuda.dll", DRIVER), file)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.wine.run(PYTHON / "python.exe", *arguments, timeout=600)

    def appliance(self, *arguments: str) -> tuple[int, str]:
        """A command's exit code and output."""
        start = f"import sys; sys.path.insert(0, r'{self.wine.path(ROOT)}'); from appliance.cli import main; main()"
        done = self.python("-P", "-c", start, *arguments)
        return done.returncode, done.stdout

    def told(self) -> dict[str, Any]:
        """What an engine says of the models, by name."""
        probe = ROOT / "tests" / "packaging" / "cuda_probe.py"
        paths = [self.wine.path(path) for path in (probe, ROOT, self.state, self.models)]
        done = self.python(*paths)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert len(lines) == 2, done.stdout
        return {line["name"]: line for line in lines}

    def runs_on_the_cpu_for(self, reason: str) -> None:
        """The model that prefers CUDA goes on with the CPU, the one that requires it is refused, both with why."""
        told = self.told()
        assert told["prefer"] == {"name": "prefer", "device": "cpu", "degraded": reason, "error": None}
        wanted = f"the model requires CUDA, which is not what would run it: {reason}"
        assert told["require"] == {"name": "require", "device": None, "degraded": None, "error": wanted}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Wine(tmp_path_factory.mktemp("cuda")) as wine:
        yield Machine(wine)


@pytest.fixture(scope="module")
def packed(machine: Machine) -> Machine:
    """With the pack installed, by the command."""
    code, words = machine.appliance("runtime", "install", "cuda", "--from", machine.wine.path(PACKS[0]))
    assert (code, f"installed: {machine.bin.parent.name}" in words) == (0, True), words
    return machine


@pytest.fixture
def whole(packed: Machine) -> Iterator[Machine]:
    """Afterwards the pack is as it was."""
    kept = packed.state / "kept"
    kept.mkdir(exist_ok=True)
    before = {file.name for file in packed.bin.iterdir()}
    yield packed
    for file in list(packed.bin.iterdir()):
        if file.name not in before:
            file.unlink()
    for file in list(kept.iterdir()):
        file.replace(packed.bin / file.name)
    packed.driver(False)


def without(machine: Machine, name: str) -> None:
    (machine.bin / name).rename(machine.state / "kept" / name)


def test_without_a_pack_and_without_a_driver(machine: Machine) -> None:
    machine.runs_on_the_cpu_for(NO_DRIVER)


def test_without_a_pack(machine: Machine) -> None:
    machine.driver(True)
    machine.runs_on_the_cpu_for(f"cublasLt64_13.dll (CUDA 13) was not found; {CURE}")
    machine.driver(False)


def test_with_a_pack_and_no_driver(whole: Machine) -> None:
    whole.runs_on_the_cpu_for(NO_DRIVER)
    code, words = whole.appliance("runtime", "libraries", "--json")
    rows = {row["name"]: row for row in json.loads(words[words.index("[") :])}
    driver = rows.pop("nvcuda.dll")
    assert code == 1
    assert (driver["kind"], driver["loadable"]) == ("missing", False)
    assert {(row["kind"], row["loadable"], row["reason"]) for row in rows.values()} == {("pack", True, None)}
    assert len(rows) == 14
    assert whole.appliance("runtime", "verify") == (0, f"{whole.bin.parent.name}: whole\n")


def test_with_all_but_a_card_that_works(whole: Machine) -> None:
    """Nothing is missing that could be named: what is left is that CUDA did not start."""
    whole.driver(True)
    words = "the driver, the device and the libraries are in place, but ONNX Runtime did not start CUDA"
    assert whole.told()["prefer"]["degraded"].startswith(words)


@pytest.mark.parametrize(
    ("name", "product"),
    [
        ("cublasLt64_13.dll", "CUDA 13"),
        ("cufft64_12.dll", "CUDA 13"),
        ("nvrtc64_130_0.dll", "CUDA 13"),
        ("cudnn64_9.dll", "cuDNN 9"),
        ("cudnn_graph64_9.dll", "cuDNN 9"),
    ],
)
def test_with_one_library_removed(whole: Machine, name: str, product: str) -> None:
    whole.driver(True)
    without(whole, name)
    whole.runs_on_the_cpu_for(f"{name} ({product}) was not found; {CURE}")
    code, words = whole.appliance("runtime", "verify", "cuda")
    assert code == 1
    assert f"bin/{name} is missing" in words


def test_with_a_library_of_another_major_version(whole: Machine) -> None:
    whole.driver(True)
    without(whole, "cublasLt64_13.dll")
    shutil.copy(library(whole.made, "cublasLt64_12.dll", EMPTY), whole.bin)
    whole.runs_on_the_cpu_for(f"CUDA 13 is needed (cublasLt64_13.dll), but CUDA 12 was found; {CURE}")


def test_with_a_library_of_another_version_under_the_right_name(whole: Machine) -> None:
    whole.driver(True)
    without(whole, "cublasLt64_13.dll")
    shutil.copy(library(whole.made, "cublasLt64_13.dll", EMPTY), whole.bin)
    reason = whole.told()["prefer"]["degraded"]
    assert reason.startswith("cublasLt64_13.dll is of another version than ONNX Runtime needs (it has no cublasLt")
    assert reason.endswith(CURE)
    code, words = whole.appliance("runtime", "verify", "cuda")
    assert (code, "bin/cublasLt64_13.dll has " in words) == (1, True)


def test_a_pack_in_use_stays(whole: Machine) -> None:
    dll = whole.wine.path(whole.bin / "cudart64_13.dll")
    holder = whole.wine.start(
        PYTHON / "python.exe",
        "-c",
        f"import ctypes, pathlib, time; ctypes.WinDLL(r'{dll}'); pathlib.Path(r'C:/held').touch(); time.sleep(120)",
    )
    held = whole.wine.drive / "held"
    for _ in range(300):
        if held.exists():
            break
        time.sleep(0.1)
    assert held.exists()
    code, words = whole.appliance("runtime", "remove", "cuda")
    assert code == 1
    assert f"appliance: {whole.bin.parent.name} is in use: stop the appliance" in words
    whole.wine.end_all()
    holder.wait(30)
    assert whole.appliance("runtime", "verify") == (0, f"{whole.bin.parent.name}: whole\n")


def test_removed(packed: Machine) -> None:
    assert packed.appliance("runtime", "remove", "cuda") == (0, f"removed: {packed.bin.parent.name}\n")
    assert not packed.bin.exists()
