"""The fake backend's options: each does what it says, and wrong ones are refused."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance import backends
from appliance.backends.base import DeviceLost, LoadRequest
from appliance.backends.fake import FakeBackend, FakeSession
from appliance.errors import Cancelled, InsufficientMemory, ModelError, ModelLoadError
from appliance.models.spec import ModelConfig, TensorSpec


def fake(**options: Any) -> FakeSession:
    config = ModelConfig(backend_options=options)
    return FakeBackend().open(LoadRequest("m", Path("none"), Path(), "cpu", 0, config))


def run(session: FakeSession, *values: float) -> list[float]:
    (found,) = session.run({"x": np.array([values], np.float32)}, ["y"], session.cancellation())
    values_found: list[float] = found[0].tolist()
    return values_found


def test_the_default_doubles() -> None:
    session = fake()
    assert run(session, 1, 2) == [2, 4]
    assert session.opened.inputs == (TensorSpec("x", "FP32", (-1, -1), (None, None)),)
    assert session.opened.outputs[0].name == "y"
    assert session.opened.batch_axis
    assert not fake(batch=False).opened.batch_axis
    session.close()


def test_gain_and_inputs() -> None:
    session = fake(gain=3.0, inputs={"a": ["INT64", -1, 4], "b": ["BOOL"]})
    assert [t.describe() for t in session.opened.inputs] == ["INT64[-1,4]", "BOOL[]"]
    (found,) = session.run({"a": np.array([1, 2])}, ["y"], session.cancellation())
    assert (found.tolist(), found.dtype) == ([3, 6], np.int64)


def test_times_are_kept() -> None:
    started = time.monotonic()
    session = fake(load_ms=30, run_ms=30)
    loaded = time.monotonic()
    run(session, 1)
    assert loaded - started >= 0.03
    assert time.monotonic() - loaded >= 0.03


def test_faults_on_values() -> None:
    session = fake(fail_on=1, oom_on=2)
    assert run(session, 0) == [0]
    with pytest.raises(ModelError, match="the fake model failed"):
        run(session, 0, 1)
    with pytest.raises(InsufficientMemory):
        run(session, 2)


def test_values_that_are_not_finite_and_a_sickness_that_stays() -> None:
    session = fake(nan_on=5, sick_on=7)
    found = run(session, 1, 5)
    assert found[0] == 2 and np.isnan(found[1])
    assert run(session, 1, 2) == [2, 4]
    assert run(session, 7, 1) == [28, 4]
    assert run(session, 1) == [4]


def test_a_device_that_is_lost_stays_so_for_every_model_on_it() -> None:
    backend = FakeBackend()

    def opened(**options: Any) -> FakeSession:
        return backend.open(LoadRequest("m", Path("none"), Path(), "cpu", 0, ModelConfig(backend_options=options)))

    first, second = opened(lose_on=7), opened()
    assert run(first, 1) == run(second, 1) == [2]
    with pytest.raises(DeviceLost):
        run(first, 7)
    for session in (first, second, opened()):
        with pytest.raises(DeviceLost):
            run(session, 1)
    assert run(fake(), 1) == [2], "another process"


def test_a_device_that_is_there_while_its_file_is(tmp_path: Path) -> None:
    file = tmp_path / "device"
    away = fake(device_file=str(file), lose_on=7)
    assert (away.opened.device, away.opened.degraded) == ("cpu", "the fake device is not there")
    assert run(away, 7) == [14]
    config = ModelConfig(device="require", backend_options={"device_file": str(file)})
    with pytest.raises(ModelLoadError, match="requires its device"):
        FakeBackend().open(LoadRequest("m", Path("none"), Path(), "cpu", 0, config))
    file.touch()
    there = fake(device_file=str(file))
    assert (there.opened.device, there.opened.degraded) == ("fake:0", None)
    assert run(there, 1) == [2]
    file.unlink()
    with pytest.raises(DeviceLost):
        run(there, 1)
    assert run(away, 1) == [2]


def test_loading_can_fail() -> None:
    with pytest.raises(ModelLoadError, match=r"^words$"):
        fake(load_error="words")


@pytest.mark.parametrize("options", [{"speed": 1}, {"gain": "much"}, {"crash_on": [1]}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ModelLoadError, match=r"^backend_options: "):
        fake(**options)


def test_a_run_can_be_cancelled_before_and_during() -> None:
    session = fake(run_ms=20_000)
    handle = session.cancellation()
    handle.cancel()
    with pytest.raises(Cancelled):
        session.run({"x": np.ones((1, 1), np.float32)}, ["y"], handle)
    handle = session.cancellation()
    threading.Timer(0.02, handle.cancel).start()
    with pytest.raises(Cancelled):
        session.run({"x": np.ones((1, 1), np.float32)}, ["y"], handle)


def test_a_stream_comes_in_parts() -> None:
    session = fake(chunks=2)
    parts = session.stream({"x": np.array([[1, 2, 3]], np.float32)}, ["y"], session.cancellation())
    assert [p[0].tolist() for p in parts] == [[[2, 4]], [[6]]]


@pytest.mark.skipif(sys.platform == "win32", reason="abort opens a dialogue there")
def test_crash_on_ends_the_process() -> None:
    program = (
        "from tests.unit.backends.test_fake import fake, run; import faulthandler; faulthandler.disable();"
        "run(fake(crash_on=13), 13)"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], capture_output=True)
    assert ended.returncode == -6, ended.stderr


def test_backends_by_name() -> None:
    assert backends.get("fake").name == "fake"
    assert (backends.get("fake").runtimes(), backends.get("fake").providers()) == ({}, ())
    onnx = backends.get("onnx")
    assert onnx.name == "onnx"
    assert "CPUExecutionProvider" in onnx.providers()
    assert list(onnx.runtimes()) in (["onnxruntime"], ["onnxruntime-gpu"])
    known = r"backend 'tensorrt' is not known \(known: onnx, pytorch, genai, fake\)"
    with pytest.raises(ModelLoadError, match=known):
        backends.get("tensorrt")


def test_a_runtime_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "appliance.backends.onnx", raising=False)
    monkeypatch.delitem(sys.modules, "appliance.backends.onnx_device", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelLoadError, match="ONNX Runtime is not installed: install the extra 'cpu'"):
        backends.get("onnx")


def test_pytorch_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("appliance.backends.pytorch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelLoadError, match=r"PyTorch is not installed: install the extra 'torch'"):
        backends.get("pytorch")
