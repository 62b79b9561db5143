"""Packs as the build makes them are packs as the program reads them."""

import fnmatch
import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from appliance.runtimes import manifest as manifests
from appliance.runtimes.install import install, read
from appliance.runtimes.shelf import Shelf
from appliance.system.cuda_needs import libraries

SCRIPT = Path(__file__).resolve().parents[3] / "build" / "windows" / "make_pack.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_pack", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheels(folder: Path, names: list[str]) -> list[Path]:
    """NVIDIA's packages, made up, with these libraries in one of them."""
    folder.mkdir()
    found = []
    for package, version in [("nvidia_cuda_runtime", "13.5.37"), ("nvidia_cudnn_cu13", "9.28.1.4")]:
        found.append(folder / f"{package}-{version}-py3-none-win_amd64.whl")
        with zipfile.ZipFile(found[-1], "w") as wheel:
            wheel.writestr(f"{package}-{version}.dist-info/licenses/License.txt", f"licence of {package}")
            wheel.writestr("nvidia/cu13/include/cuda.h", "not in the pack")
            if package == "nvidia_cuda_runtime":
                for name in [*names, "nvblas64_13.dll", "cufftw64_12.dll"]:
                    wheel.writestr(f"nvidia/cu13/bin/x86_64/{name}", name * 100)
    return found


@pytest.mark.parametrize("pack", ["cuda", "torch"])
def test_a_pack_can_be_installed_and_is_the_same_each_time(script: ModuleType, tmp_path: Path, pack: str) -> None:
    names = [pattern.replace("*", "1") for pattern in script.PACKS[pack]]
    made = script.make(pack, wheels(tmp_path / "wheels", names), tmp_path / "out")
    assert made.name == f"{pack}-13.5.37_cudnn9.28.1.4-windows-x86_64.zip"
    manifest = read(made)
    assert manifest.contents == {"nvidia-cuda-runtime": "13.5.37", "nvidia-cudnn-cu13": "9.28.1.4"}
    licenses = {"licenses/nvidia-cuda-runtime-License.txt", "licenses/nvidia-cudnn-cu13-License.txt"}
    assert {file.path for file in manifest.files} == {f"bin/{name}" for name in names} | licenses
    assert install(made, Shelf(tmp_path / "runtimes"), pack, platform=script.PLATFORM) == (manifest, True)
    again = script.make(pack, sorted((tmp_path / "wheels").iterdir(), reverse=True), tmp_path / "again")
    assert again.read_bytes() == made.read_bytes()


def test_a_library_that_no_wheel_has(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no wheel has .*cublas64_\*\.dll"):
        script.make("cuda", wheels(tmp_path / "wheels", ["cudart64_13.dll"]), tmp_path / "out")
    assert list((tmp_path / "out").glob("*.zip")) == []


def test_both_agree_on_what_a_pack_is(script: ModuleType) -> None:
    assert script.FORMAT == manifests.FORMAT
    for pack, family in (("cuda", "onnx"), ("torch", "torch")):
        for wanted in libraries(family, True, 13, 9):  # type: ignore[arg-type]
            assert any(fnmatch.fnmatchcase(wanted.name, pattern) for pattern in script.PACKS[pack]), wanted.name


@pytest.mark.parametrize("pack", ["cuda", "torch"])
def test_locks_name_hashes_and_no_address(script: ModuleType, pack: str) -> None:
    lock = (SCRIPT.parents[1] / "locks" / f"windows-{pack}-pack.txt").read_text("utf-8")
    assert "://" not in lock
    packages = [line for line in lock.splitlines() if "==" in line]
    asked = (SCRIPT.parent / f"{pack}-pack.in").read_text("utf-8").splitlines()
    assert [line.partition("==")[0] for line in packages] == [line for line in asked if line.startswith("nvidia")]
    assert lock.count("--hash=sha256:") >= len(packages)
