"""TensorRT's libraries: found, of another version, or not there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.system import tensorrt
from appliance.system.cuda_loader import FakeLoader
from appliance.system.dlls import FakeSurroundings

NAMES = ("libnvinfer.so.10", "libnvonnxparser.so.10", "libnvinfer_plugin.so.10")


@pytest.mark.parametrize(
    ("content", "major"),
    [
        (b"\x7fELF...\0libcublas.so.13\0libnvinfer.so.10\0libnvonnxparser.so.10\0", 10),
        (b"MZ...\0cublas64_13.dll\0nvinfer_10.dll\0nvonnxparser_10.dll\0", 10),
        (b"\x7fELF...\0libnvinfer.so.8\0", 8),
        (b"\x7fELF...\0libcublas.so.13\0", None),
    ],
)
def test_the_provider_says_which_version_it_needs(tmp_path: Path, content: bytes, major: int | None) -> None:
    file = tmp_path / "libonnxruntime_providers_tensorrt.so"
    assert tensorrt.wanted_major(file) is None
    file.write_bytes(content)
    assert tensorrt.wanted_major(file) == major


def test_nvidias_package_is_taken_where_it_has_that_version(tmp_path: Path) -> None:
    file = tmp_path / "site-packages" / "tensorrt_libs" / "libnvinfer.so.10"
    around = FakeSurroundings([file], windows=False, packages=[tmp_path, tmp_path / "site-packages"])
    assert tensorrt.folders(10, around) == [file.parent]
    assert tensorrt.folders(11, around) == []
    dll = tmp_path / "program" / "tensorrt_libs" / "nvinfer_10.dll"
    around = FakeSurroundings([dll], program=tmp_path / "program")
    assert tensorrt.folders(10, around) == [dll.parent]


def test_all_of_it_is_loaded() -> None:
    loader = FakeLoader(only=NAMES)
    assert tensorrt.load(loader, 10) is None
    assert tuple(loader.loaded) == NAMES
    windows = FakeLoader(windows=True)
    assert tensorrt.load(windows, 10) is None
    assert windows.loaded == ["nvinfer_10.dll", "nvonnxparser_10.dll", "nvinfer_plugin_10.dll"]


def test_it_is_not_there() -> None:
    words = "libnvinfer.so.10 (TensorRT 10) was not found; install NVIDIA's TensorRT 10"
    assert tensorrt.load(FakeLoader(only=()), 10) == words
    words = "libnvonnxparser.so.10 (TensorRT 10) was not found; install NVIDIA's TensorRT 10"
    assert tensorrt.load(FakeLoader(only=NAMES[:1]), 10) == words


@pytest.mark.parametrize("other", [8, 9, 11, 12])
def test_another_version_is_there(other: int) -> None:
    words = tensorrt.load(FakeLoader(only=[f"libnvinfer.so.{other}"]), 10)
    assert words == (
        f"TensorRT 10 is needed (libnvinfer.so.10), but TensorRT {other} was found; install NVIDIA's TensorRT 10"
    )


def test_it_is_there_and_does_not_load() -> None:
    place = Path("/usr/lib/aarch64-linux-gnu/libnvinfer.so.10")
    needs = {NAMES[0]: "libcudart.so.13: cannot open shared object file: No such file or directory"}
    loader = FakeLoader(libraries=needs, places={NAMES[0]: place})
    assert tensorrt.load(loader, 10) == "libnvinfer.so.10 (TensorRT 10) needs libcudart.so.13, which was not found"
    broken = {NAMES[0]: "/usr/lib/aarch64-linux-gnu/libnvinfer.so.10: file too short"}
    loader = FakeLoader(libraries=broken, places={NAMES[0]: place})
    assert (
        tensorrt.load(loader, 10) == "libnvinfer.so.10 (TensorRT 10) does not load: libnvinfer.so.10: file too short"
    )


@pytest.mark.parametrize(
    ("major", "count", "version"), [(10, 101303, "10.13.3"), (11, 110400, "11.4.0"), (8, 8601, "8.6.1")]
)
def test_its_version(major: int, count: int, version: str) -> None:
    opened: list[str] = []

    def library(name: str) -> Any:
        opened.append(name)
        return SimpleNamespace(getInferLibVersion=lambda: count)

    assert tensorrt.version(False, major, library) == version
    assert tensorrt.version(False, major, library, Path("/folder")) == version
    assert opened == [f"libnvinfer.so.{major}", str(Path("/folder") / f"libnvinfer.so.{major}")]


def test_a_library_that_does_not_tell_its_version() -> None:
    def fails(name: str) -> Any:
        raise OSError(name)

    assert tensorrt.version(True, 10, fails) is None
    assert tensorrt.version(True, 10, lambda name: SimpleNamespace()) is None  # type: ignore[arg-type,return-value]
