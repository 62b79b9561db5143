"""Which providers are asked for and what is said of those that run. No card is needed."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.backends import onnx_device
from appliance.backends.onnx_device import Truth, Wanted, truth, wanted
from appliance.system import dlls
from appliance.system.cuda import Driver
from appliance.system.cuda_code import Code
from appliance.system.cuda_loader import FakeLoader

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


TRT = "TensorrtExecutionProvider"
ALL = ["tensorrt", "cuda", "cpu"]


@pytest.mark.parametrize(
    ("policy", "model", "named", "available", "index", "providers", "trt", "reason"),
    [
        ("auto", "prefer", ALL, BUILT, 0, [CUDA, CPU], True, None),
        ("cuda:1", "require", ALL, BUILT, 1, [CUDA, CPU], True, None),
        ("auto", "prefer", ["tensorrt"], BUILT, 0, [CPU], True, None),
        ("auto", "prefer", ["cuda"], BUILT, 0, [CUDA, CPU], False, None),
        ("auto", "prefer", ["cpu"], BUILT, None, [CPU], False, None),
        ("cuda", "prefer", ["cpu"], BUILT, None, [CPU], False, None),
        ("auto", "prefer", ALL, [CPU], None, [CPU], False, "no CUDA for 0"),
        ("auto", "prefer", ["cuda"], [CPU], None, [CPU], False, "no CUDA for 0"),
        ("cpu", "prefer", ALL, BUILT, None, [CPU], False, "the server's setting `device` is `cpu`"),
    ],
)
def test_providers_that_a_model_names(
    policy: str,
    model: Any,
    named: list[str],
    available: list[str],
    index: int | None,
    providers: list[str],
    trt: bool,
    reason: str | None,
) -> None:
    found = wanted(policy, model, available, named=named)
    assert (found.index, found.tensorrt, found.reason) == (index, trt, reason)
    assert [p if isinstance(p, str) else p[0] for p in found.providers] == providers


def counted(providers: list[str], **nodes: int) -> Any:
    names = {"trt": TRT, "cuda": CUDA, "cpu": CPU}
    parts = [SimpleNamespace(ep_name=names[n], get_nodes=lambda k=k: [None] * k) for n, k in nodes.items()]
    return SimpleNamespace(get_providers=lambda: providers, get_provider_graph_assignment_info=lambda: parts)


WITH = Wanted([(CUDA, {}), CPU], 0, tensorrt=True)
ALONE = Wanted([CPU], 0, tensorrt=True)


def test_tensorrt_runs() -> None:
    assert truth(counted([TRT, CUDA, CPU], trt=9), WITH) == Truth("cuda:0", None, 0)
    assert truth(counted([TRT, CPU], trt=9), ALONE) == Truth("cuda:0", None, 0)
    assert truth(counted([TRT, CUDA, CPU]), WITH) == Truth("cuda:0", None, 0)  # a runtime that does not tell
    found = truth(counted([TRT, CUDA, CPU], trt=9, cuda=2, cpu=1), WITH)
    assert found == Truth(
        "cuda:0",
        None,
        1,
        ("2 nodes of the graph run on CUDA, which TensorRT does not take", "1 nodes of the graph run on the CPU"),
    )


def test_tensorrt_that_was_asked_for_and_does_not_run_is_told() -> None:
    found = truth(counted([CUDA, CPU], cuda=9), WITH, failed="libnvinfer.so.10 was not found")
    assert found == Truth("cuda:0", "TensorRT was asked for, but CUDA runs it: libnvinfer.so.10 was not found", 0)
    found = truth(counted([CUDA, CPU], cuda=9), WITH)
    assert found.degraded == (
        "TensorRT was asked for, but CUDA runs it: ONNX Runtime did not start it; the engine's log has its message"
    )
    found = truth(counted([TRT, CUDA, CPU], cuda=9), WITH)
    assert found.degraded == "TensorRT was asked for, but it takes no part of this model"
    found = truth(counted([CPU], cpu=9), ALONE, failed="this build of ONNX Runtime has no TensorRT")
    assert found == Truth(
        "cpu", "TensorRT was asked for, but the CPU runs it: this build of ONNX Runtime has no TensorRT", 0
    )


def test_without_cuda_that_is_the_reason() -> None:
    assert truth(counted([CPU], cpu=9), WITH, failed="TensorRT's own") == Truth("cpu", "no CUDA for 0", 0)
    assert truth(counted([CPU], cpu=9), ALONE) == Truth("cpu", "no CUDA for 0", 0)


# --- code for the card ------------------------------------------------------------------------------------------


def cards(monkeypatch: pytest.MonkeyPatch, driver: Driver, code: Code | None) -> onnx_device.Cards:
    monkeypatch.setattr(onnx_device.cuda_loader, "SystemLoader", lambda folders: FakeLoader(driver))
    monkeypatch.setattr(onnx_device, "provider_library", lambda name="cuda": Path("provider.so"))
    monkeypatch.setattr(onnx_device.cuda_code, "read", lambda provider: code)
    return onnx_device.Cards(onnx_device.CudaLibraries(None))


ORIN = Driver(version=13020, init=0, capabilities=((8, 7),))
PYPI = Code(frozenset({(8, 9), (9, 0), (12, 0), (12, 1)}))


def test_a_build_without_code_for_the_card_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session would be made, and fail at its first kernel."""
    found = cards(monkeypatch, ORIN, PYPI).checked(Wanted([(CUDA, {}), CPU], 0, tensorrt=True))
    assert (found.providers, found.index, found.tensorrt) == ([CPU], None, False)
    assert found.reason is not None and found.reason.startswith("cuda:0 has compute capability 8.7, for which")


def test_what_is_not_known_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Wanted([(CUDA, {}), CPU], 0)
    assert cards(monkeypatch, ORIN, None).checked(asked) is asked
    assert cards(monkeypatch, Driver(hung=True), PYPI).checked(asked) is asked
    assert cards(monkeypatch, ORIN, PYPI).checked(Wanted([CPU], None)).reason is None


def test_which_cards_the_driver_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cards(monkeypatch, ORIN, None)
    assert (found.show(0), found.show(1)) == (True, False)
    assert not cards(monkeypatch, Driver(missing="no such file"), None).show(0)


def test_why_not_tells_of_missing_code_after_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = tmp_path / "libonnxruntime_providers_cuda.so"
    provider.touch()
    monkeypatch.setattr(onnx_device.cuda_code, "read", lambda provider: PYPI)
    found = onnx_device.why_not(FakeLoader(ORIN), provider, 0)
    assert (found.part, found.wanted) == ("device", "8.7")
    old = Driver(version=12060, init=0, capabilities=((8, 7),))
    monkeypatch.setattr(onnx_device.ort, "cuda_version", "13.0", raising=False)
    assert onnx_device.why_not(FakeLoader(old), provider, 0).part == "driver"
    assert onnx_device.why_not(FakeLoader(ORIN), None, 0).part == "build"
