"""Libraries that are tried out: Windows' error numbers, and the model of one node."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from appliance.doctor import native
from appliance.doctor.facts import TensorRT
from appliance.doctor.model import MODEL, SUM, W, X
from appliance.doctor.trial import last_error
from appliance.system import dlls
from appliance.system.cuda_loader import FakeLoader
from tests.unit.doctor import faults


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (None, None),
        ("[WinError 127] Die angegebene Prozedur wurde nicht gefunden", 127),
        (faults.MOD_NOT_FOUND.format("cudnn64_9.dll"), 126),
        ("libcudnn.so.9: cannot open shared object file", None),
    ],
)
def test_the_number_of_windows_error(said: str | None, code: int | None) -> None:
    assert native.windows_code(said) == code


def test_a_library_is_loaded_once() -> None:
    inner = FakeLoader(libraries={"a.dll": "[WinError 193] bad"}, windows=True)
    loader = native.Remembering(inner)
    assert [loader.load("a.dll"), loader.load("a.dll"), loader.load("b.dll")] == ["[WinError 193] bad"] * 2 + [None]
    assert inner.loaded == ["a.dll", "b.dll"]
    assert (loader.code("a.dll"), loader.code("b.dll"), loader.code("never")) == (193, None, None)


def test_each_library_is_in_the_report_but_the_driver(tmp_path: Path) -> None:
    found = faults.native(tmp_path)
    assert [row.name for row in found.libraries] == faults.NAMES
    assert {(row.kind, row.loadable, row.code) for row in found.libraries} == {("pack", True, None)}
    assert (found.cuda, found.cudnn, found.fault, found.least_driver) == (13, 9, None, "580.88")


def test_versions_are_asked_only_where_all_of_a_product_loads(tmp_path: Path) -> None:
    """cuDNN ends the process when it is asked and a part of it is missing."""
    found = faults.native(tmp_path, missing=["cudnn_graph64_9.dll"])
    asked: list[str] = []

    class Watched:
        def choice(self, name: str) -> None:
            asked.append(name)

    assert native.versions(found, Watched(), True) == {}  # type: ignore[arg-type]
    assert asked == ["cudart64_13.dll"]


def test_the_model_is_what_it_says() -> None:
    model = onnx.load_from_string(MODEL)
    onnx.checker.check_model(model, full_check=True)
    wanted = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "doctor",
        [helper.make_tensor_value_info("x", 1, X), helper.make_tensor_value_info("w", 1, W)],
        [helper.make_tensor_value_info("y", 1, (1, 1, 6, 6))],
    )
    assert model.graph == wanted
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 13)]
    assert np.ones(W).sum() == SUM


def test_the_last_error_of_onnx_runtime() -> None:
    log = (
        b"2026-11-29 23:00:00.1 [W:onnxruntime:Default, env.cc:1 f] careful\n"
        b"\x1b[1;31m2026-11-29 23:00:00.2 [E:onnxruntime:Default, provider_bridge_ort.cc:2195 TryGet] "
        b'/opt/ort/provider_bridge_ort.cc:1778 [ONNXRuntimeError] : 1 : FAIL : LoadLibrary failed with error 126 "" '
        b'when trying to load "C:\\program\\onnxruntime_providers_cuda.dll"\x1b[m\n'
        b"something else\n"
    )
    told = last_error(log)
    assert told is not None and "LoadLibrary failed with error 126" in told
    assert "opt" not in told and "program" not in told and "\x1b" not in told
    assert last_error(b"all is well\n") is None


def test_whether_tensorrt_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = dlls.look("onnx", None, None, dlls.FakeSurroundings())
    none = TensorRT(fault="this build of ONNX Runtime has no TensorRT")
    assert native.with_tensorrt(None, libraries) == none
    provider = tmp_path / "libonnxruntime_providers_tensorrt.so"
    provider.write_bytes(b"nothing of it")
    assert native.with_tensorrt(provider, libraries) == none
    provider.write_bytes(b"\0libnvinfer.so.10\0")
    monkeypatch.setattr(native.tensorrt, "folders", lambda major: [])
    monkeypatch.setattr(native.tensorrt, "version", lambda windows, major, folder: f"{major}.13.3")
    monkeypatch.setattr(native.cuda_loader, "SystemLoader", lambda folders: FakeLoader())
    assert native.with_tensorrt(provider, libraries) == TensorRT(version="10.13.3")
    monkeypatch.setattr(native.cuda_loader, "SystemLoader", lambda folders: FakeLoader(only=()))
    found = native.with_tensorrt(provider, libraries)
    assert found.version is None and str(found.fault).startswith("libnvinfer.so.10 (TensorRT 10) was not found")
