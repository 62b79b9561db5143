"""TensorRT: what it is asked for, what happens where it does not do it. Sessions are made up; no card is needed."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from appliance.backends import tensorrt as trt
from appliance.backends.base import DeviceLost, LoadRequest
from appliance.backends.tensorrt import Attempt, Model, TensorRT, build_options, profile
from appliance.backends.tensorrt_cache import Stack
from appliance.errors import ModelLoadError
from appliance.models.spec import Batching, ModelConfig, TensorRTConfig, TensorSpec
from appliance.system import tensorrt
from appliance.system.cuda_loader import FakeLoader

REST = [("CUDAExecutionProvider", {"device_id": 1, "gpu_mem_limit": 1 << 30}), "CPUExecutionProvider"]
BATCH = TensorSpec("x", "FP32", (-1, 3, 224, 224), ("N", None, None, None))
FREE = TensorSpec("x", "FP32", (-1, 3, -1, -1), ("N", None, "H", "W"))
STATIC = TensorSpec("x", "FP32", (1, 4))
ENGINE = "TensorrtExecutionProvider_graph_0.engine"


class Runtime:
    """Stands for ONNX Runtime: writes an engine where it is told to. ``fail``: errors for the coming sessions."""

    def __init__(self, *fail: Exception | None) -> None:
        self.fail = list(fail)
        self.asked: list[dict[str, Any]] = []
        self.found: list[bool] = []

    def __call__(self, providers: list[Any], try_again: bool) -> Any:
        assert try_again is False
        (name, options), *rest = providers
        assert (name, rest) == ("TensorrtExecutionProvider", REST)
        self.asked.append(options)
        if "trt_engine_cache_path" in options:
            file = Path(options["trt_engine_cache_path"]) / ENGINE
            self.found.append(file.exists())
            file.write_bytes(b"engine")
        error = self.fail.pop(0) if self.fail else None
        if error:
            raise error
        return f"session {len(self.asked)}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "models" / "m" / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"graph")
    return file


class Box:
    """One engine process with TensorRT 10."""

    def __init__(self, folder: Path, loader: FakeLoader | None = None, **stack: Any) -> None:
        provider = folder / "libonnxruntime_providers_tensorrt.so"
        provider.write_bytes(b"\0libnvinfer.so.10\0")
        self.loader = loader or FakeLoader()
        known = {"name": "RTX", "capability": "8.9", "driver": "580", "onnxruntime": "1.31.1", "cuda": "13.0"} | stack
        self.trt = TensorRT(
            folder / "state" / "tensorrt",
            provider,
            lambda folders: self.loader,
            lambda device: Stack(device=device, **known),
        )
        self.told: list[str] = []
        self.limit = 1 << 30

    def open(
        self,
        path: Path,
        runtime: Runtime,
        inputs: Sequence[TensorSpec] = (STATIC,),
        batch: bool = False,
        **config: Any,
    ) -> Attempt:
        request = LoadRequest(
            "m",
            path,
            path.parent,
            "cuda:1",
            0,
            ModelConfig(providers=("tensorrt", "cuda", "cpu"), **config),
            memory_limit=self.limit,
            max_batch=8,
            progress=self.told.append,
        )
        found = Model((path,), lambda: (inputs, batch), str, lambda error: "lost" in str(error))
        return self.trt.open(request, found, 1, REST, runtime)


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "version", lambda windows, major, folder=None: f"{major}.13.3")
    monkeypatch.setattr(tensorrt, "folders", lambda major: [])


def engines(folder: Path) -> list[Path]:
    return sorted((folder / "state" / "tensorrt").glob(f"*/*/{ENGINE}"))


def test_the_first_load_builds_and_the_second_finds_it(tmp_path: Path, model: Path) -> None:
    runtime = Runtime()
    box = Box(tmp_path)
    assert box.open(model, runtime) == Attempt(session="session 1")
    assert box.open(model, runtime) == Attempt(session="session 2")
    assert runtime.found == [False, True]
    assert box.told == [trt.BUILDING, trt.LOADING]
    assert len(engines(tmp_path)) == 1
    (options, _) = runtime.asked
    folder = Path(options["trt_engine_cache_path"])
    assert options == {
        "device_id": 1,
        "trt_fp16_enable": False,
        "trt_int8_enable": False,
        "trt_max_workspace_size": 1 << 30,
        "trt_engine_cache_enable": True,
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": True,
        "trt_timing_cache_path": str(folder.parent),
    }


def test_less_free_memory_is_no_other_engine(tmp_path: Path, model: Path) -> None:
    """The bound comes from what is free at that moment."""
    runtime, box = Runtime(), Box(tmp_path)
    box.open(model, runtime)
    box.limit = 1 << 20
    box.open(model, runtime)
    assert runtime.found == [False, True]
    assert [options["trt_max_workspace_size"] for options in runtime.asked] == [1 << 30, 1 << 20]
    box.open(model, runtime, tensorrt=TensorRTConfig(workspace_bytes=1 << 10))
    assert runtime.asked[-1]["trt_max_workspace_size"] == 1 << 10
    assert runtime.found[-1] is False


def test_another_driver_or_other_weights_build_anew(tmp_path: Path, model: Path) -> None:
    runtime = Runtime()
    Box(tmp_path).open(model, runtime)
    Box(tmp_path, driver="581").open(model, runtime)
    model.write_bytes(b"graph with other weights")
    Box(tmp_path).open(model, runtime)
    Box(tmp_path).open(model, runtime, tensorrt=TensorRTConfig(fp16=True))
    assert runtime.found == [False] * 4
    assert len(engines(tmp_path)) == 4


def test_what_is_not_known_of_the_machine_means_that_nothing_is_kept(tmp_path: Path, model: Path) -> None:
    runtime = Runtime()
    found = Box(tmp_path, driver=None).open(model, runtime)
    assert found.session == "session 1"
    assert found.notes == ("TensorRT's engine is not kept: unknown here: driver",)
    assert "trt_engine_cache_path" not in runtime.asked[0]
    assert engines(tmp_path) == []


def test_a_kept_engine_that_does_not_load_is_built_again(tmp_path: Path, model: Path) -> None:
    runtime = Runtime(None, RuntimeError("TensorRT EP could not deserialize engine from cache"))
    box = Box(tmp_path)
    box.open(model, runtime)
    assert box.open(model, runtime) == Attempt(session="session 3")
    assert runtime.found == [False, True, False]
    assert box.told == [trt.BUILDING, trt.LOADING, trt.BUILDING]


def test_why_it_does_not_build_is_told(tmp_path: Path, model: Path) -> None:
    found = Box(tmp_path).open(model, Runtime(RuntimeError("no implementation for node Foo")))
    assert found == Attempt(reason="it did not build an engine: no implementation for node Foo")


def test_a_lost_device_is_nobodys_answer(tmp_path: Path, model: Path) -> None:
    with pytest.raises(DeviceLost, match="the device is lost"):
        Box(tmp_path).open(model, Runtime(RuntimeError("the device is lost")))


def test_one_engine_for_all_batches(tmp_path: Path, model: Path) -> None:
    runtime = Runtime()
    found = Box(tmp_path).open(model, runtime, [BATCH], batch=True)
    assert (found.session, found.rows, found.notes) == ("session 1", 8, ())
    assert {key: value for key, value in runtime.asked[0].items() if "profile" in key} == {
        "trt_profile_min_shapes": "x:1x3x224x224",
        "trt_profile_opt_shapes": "x:8x3x224x224",
        "trt_profile_max_shapes": "x:8x3x224x224",
    }
    assert Box(tmp_path).open(model, runtime, [BATCH], batching=Batching(max=32)).rows == 32  # the operator's word


def test_where_that_cannot_be_built_the_shapes_that_come_are(tmp_path: Path, model: Path) -> None:
    """TensorRT wants shapes of what goes between the parts of the graph too, once any are given."""
    runtime = Runtime(RuntimeError("User needs to provide all the dynamic shape inputs with associated profiles"))
    box = Box(tmp_path)
    found = box.open(model, runtime, [BATCH], batch=True)
    assert (found.session, found.rows) == ("session 2", None)
    assert ["trt_profile_min_shapes" in options for options in runtime.asked] == [True, False]
    box.open(model, runtime, [BATCH], batch=True)
    assert ["trt_profile_min_shapes" in options for options in runtime.asked] == [True, False, False]  # remembered
    assert runtime.found == [False, False, True]


@pytest.mark.parametrize(
    ("inputs", "rows", "fits"),
    [
        ([STATIC], 8, False),
        ([FREE], 8, False),
        ([BATCH], 1, False),
        ([BATCH], 0, False),
        ([BATCH, STATIC], 8, True),
        ([BATCH, TensorSpec("ids", "INT64", (-1,))], 8, True),
        ([TensorSpec("x", "FP32", (2, -1))], 8, False),
    ],
)
def test_when_one_engine_will_do(inputs: list[TensorSpec], rows: int, fits: bool) -> None:
    assert (profile(inputs, rows) is not None) is fits


def test_free_axes_are_noted(tmp_path: Path, model: Path) -> None:
    found = Box(tmp_path).open(model, Runtime(), [FREE], batch=True)
    assert found.notes == (
        "input 'x' FP32[-1,3,-1,-1] has free axes: TensorRT builds its engine again for each shape that is new",
    )


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (TensorRTConfig(), {"trt_fp16_enable": False, "trt_int8_enable": False}),
        (
            TensorRTConfig(fp16=True, optimization_level=5, workspace_bytes=100),
            {
                "trt_fp16_enable": True,
                "trt_int8_enable": False,
                "trt_builder_optimization_level": 5,
                "trt_max_workspace_size": 100,
            },
        ),
        (
            TensorRTConfig(int8=True, calibration_table="ranges.flatbuffers"),
            {
                "trt_fp16_enable": False,
                "trt_int8_enable": True,
                "trt_int8_calibration_table_name": "ranges.flatbuffers",
                "trt_int8_use_native_calibration_table": False,
            },
        ),
    ],
)
def test_the_options(config: TensorRTConfig, options: dict[str, object]) -> None:
    assert build_options(config, 2) == {"device_id": 2} | options


def test_the_calibration_table_goes_beside_the_engine(tmp_path: Path, model: Path) -> None:
    config = TensorRTConfig(int8=True, calibration_table="ranges", timing_cache=False)
    runtime, box = Runtime(), Box(tmp_path)
    with pytest.raises(ModelLoadError, match="there is no file ranges beside the model"):
        box.open(model, runtime, tensorrt=config)
    (model.parent / "ranges").write_bytes(b"1")
    box.open(model, runtime, tensorrt=config)
    folder = Path(runtime.asked[0]["trt_engine_cache_path"])
    assert (folder / "ranges").read_bytes() == b"1"
    assert "trt_timing_cache_path" not in runtime.asked[0]
    (model.parent / "ranges").write_bytes(b"2")
    box.open(model, runtime, tensorrt=config)
    assert runtime.found == [False, False]


def test_a_calibration_table_from_outside_is_not_read(tmp_path: Path, model: Path) -> None:
    (tmp_path / "secret").write_bytes(b"1")
    try:
        (model.parent / "ranges").symlink_to(tmp_path / "secret")
    except OSError:
        pytest.skip("no links here")
    config = TensorRTConfig(int8=True, calibration_table="ranges")
    with pytest.raises(ModelLoadError):
        Box(tmp_path).open(model, Runtime(), tensorrt=config)


def test_libraries_that_are_not_there_are_looked_for_once(tmp_path: Path, model: Path) -> None:
    box = Box(tmp_path, FakeLoader(only=()))
    words = "libnvinfer.so.10 (TensorRT 10) was not found; install NVIDIA's TensorRT 10"
    runtime = Runtime()
    assert box.open(model, runtime) == Attempt(reason=words)
    tried = len(box.loader.loaded)
    assert box.open(model, runtime) == Attempt(reason=words)
    assert len(box.loader.loaded) == tried
    assert (runtime.asked, box.told) == ([], [])


def test_a_build_without_it(tmp_path: Path, model: Path) -> None:
    box = Box(tmp_path)
    box.trt = TensorRT(None, None, lambda folders: box.loader, lambda device: Stack(device=device))
    assert box.open(model, Runtime()) == Attempt(reason="this build of ONNX Runtime has no TensorRT")
    (tmp_path / "libonnxruntime_providers_tensorrt.so").write_bytes(b"what is this")
    provider = tmp_path / "libonnxruntime_providers_tensorrt.so"
    box.trt = TensorRT(None, provider, lambda folders: box.loader, lambda device: Stack(device=device))
    assert "does not say which version" in str(box.open(model, Runtime()).reason)


def test_a_disk_that_takes_nothing_is_a_reason(tmp_path: Path, model: Path) -> None:
    box = Box(tmp_path)
    (tmp_path / "state").write_bytes(b"a file, no folder")
    found = box.open(model, Runtime())
    assert found.session is None and str(found.reason).startswith("its files cannot be read or kept: ")


def test_a_long_build_is_told_again(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trt, "_TOLD_EVERY_S", 0.01)
    box, twice = Box(tmp_path), threading.Event()

    def tell(words: str) -> None:
        box.told.append(words)
        if len(box.told) == 3:
            twice.set()

    class Slow(Runtime):
        def __call__(self, providers: list[Any], try_again: bool) -> Any:
            assert twice.wait(30)
            return super().__call__(providers, try_again)

    request = LoadRequest("m", model, model.parent, "cuda:1", 0, ModelConfig(), progress=tell)
    found = Model((model,), lambda: ((STATIC,), False), str, lambda error: False)
    assert box.trt.open(request, found, 1, REST, Slow()).session == "session 1"
    assert box.told[0] == trt.BUILDING
    assert all(words.startswith(f"{trt.BUILDING}: ") and words.endswith(" s so far") for words in box.told[1:])
