"""Which providers are asked for and what is said of those that run. No card is needed."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.backends import onnx_device
from appliance.backends.onnx_device import Truth, Wanted, truth, wanted
from appliance.system import dlls

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
BUILT = [CUDA, CPU]


@pytest.fixture(autouse=True)
def reasons(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(onnx_device, "_why_not", lambda provider, index, folders=(): f"no CUDA for {index}")
    yield


@pytest.mark.parametrize(
    ("policy", "model", "available", "index", "reason"),
    [
        ("auto", "prefer", BUILT, 0, None),
        ("auto", "require", BUILT, 0, None),
        ("auto", "cpu", BUILT, None, None),
        ("auto", "prefer", [CPU], None, None),
        ("auto", "require", [CPU], None, "no CUDA for 0"),
        ("auto", "cpu", [CPU], None, None),
        ("cpu", "prefer", BUILT, None, None),
        ("cpu", "require", BUILT, None, "the server's setting `device` is `cpu`"),
        ("cpu", "cpu", BUILT, None, None),
        ("cpu", "require", [CPU], None, "the server's setting `device` is `cpu`"),
        ("cuda", "prefer", BUILT, 0, None),
        ("cuda", "prefer", [CPU], None, "no CUDA for 0"),
        ("cuda", "cpu", [CPU], None, None),
        ("cuda:1", "prefer", BUILT, 1, None),
        ("cuda:12", "require", BUILT, 12, None),
        ("cuda:1", "cpu", BUILT, None, None),
    ],
)
def test_wanted(policy: str, model: Any, available: list[str], index: int | None, reason: str | None) -> None:
    found = wanted(policy, model, available)
    assert (found.index, found.reason) == (index, reason)
    if index is None:
        assert found.providers == [CPU]
    else:
        assert [p if isinstance(p, str) else p[0] for p in found.providers] == [CUDA, CPU]
        assert found.providers[0][1]["device_id"] == index


def session(providers: list[str], on_cpu: int = 0, on_cuda: int = 5) -> Any:
    parts = [
        SimpleNamespace(ep_name=CUDA, get_nodes=lambda: [None] * on_cuda),
        SimpleNamespace(ep_name=CPU, get_nodes=lambda: [None] * on_cpu),
    ]
    return SimpleNamespace(get_providers=lambda: providers, get_provider_graph_assignment_info=lambda: parts)


def test_the_truth_about_the_cpu() -> None:
    assert truth(session([CPU]), Wanted([CPU], None)) == Truth("cpu", None, 0)
    assert truth(session([CPU]), Wanted([CPU], None, "why")) == Truth("cpu", "why", 0)


def test_the_truth_about_a_silent_fall_back() -> None:
    assert truth(session([CPU]), Wanted([], 1)) == Truth("cpu", "no CUDA for 1", 0)


def test_the_truth_about_a_card() -> None:
    assert truth(session(BUILT), Wanted([], 1)) == Truth("cuda:1", None, 0)
    found = truth(session(BUILT, on_cpu=3), Wanted([], 0))
    assert found == Truth("cuda:0", None, 3, ("3 nodes of the graph run on the CPU",))


def test_the_arena_is_bounded_by_the_budget() -> None:
    asked = onnx_device.wanted("cuda:1", "prefer", ("CUDAExecutionProvider",), memory_limit=1 << 30)
    options = {"device_id": 1, "arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": 1 << 30}
    assert asked.providers == [("CUDAExecutionProvider", options), "CPUExecutionProvider"]


def test_libraries_are_loaded_once_and_from_each_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("cudart64_13.dll", "cudnn64_9.dll")
    files = [tmp_path / "nvidia" / folder / "bin" / name for folder, name in zip("ab", names, strict=True)]
    asked: list[str] = []

    def preload(directory: str) -> None:
        print("Failed to load what is not there")
        asked.append(directory)
        raise RuntimeError("the folder went away")

    monkeypatch.setattr(onnx_device.ort, "preload_dlls", preload)
    found = dlls.look("onnx", None, None, dlls.FakeSurroundings(files, packages=[tmp_path]))
    libraries = onnx_device.CudaLibraries(found)
    libraries.load()
    libraries.load()
    assert asked == [str(file.parent) for file in reversed(files)]
    onnx_device.CudaLibraries(None).load()
    assert len(asked) == 2


def test_no_words_on_standard_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = dlls.look("onnx", None, None, dlls.FakeSurroundings([tmp_path / "nvidia/a/bin/cudart64_13.dll"]))
    onnx_device.CudaLibraries(found).load()
    assert capsys.readouterr().out == ""
