"""ONNX Runtime behind the backend protocol."""

import ctypes
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from appliance.backends import onnx_device, onnx_errors, tensorrt_cache
from appliance.backends.base import Cancellation, LoadRequest, Opened
from appliance.backends.tensorrt import Attempt, Model, TensorRT
from appliance.errors import Cancelled, InvalidInput, ModelError, ModelLoadError
from appliance.models import onnx_file
from appliance.models.onnx_file import OnnxFacts
from appliance.models.spec import TensorSpec
from appliance.models.tensors import Array
from appliance.system import cuda_loader, devices
from appliance.system.dlls import Libraries

_LARGE = 32 << 20
_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(bfloat16)": "BF16",
    "tensor(string)": "BYTES",
}


class OnnxBackend:
    """Opens ``.onnx`` files with the providers that the device policy asks for."""

    name = "onnx"

    def __init__(self, libraries: Libraries | None = None, engines: Path | None = None) -> None:
        """``libraries``: where CUDA's are; None: only where the system looks. ``engines``: where TensorRT's are kept;
        None: they are not."""
        self._cuda = cuda = onnx_device.CudaLibraries(libraries)
        self._cards = onnx_device.Cards(cuda)
        self._tensorrt = TensorRT(
            engines,
            onnx_device.provider_library("tensorrt"),
            lambda folders: cuda_loader.SystemLoader([*folders, *cuda.folders]),
            _stack,
        )
        ort.disable_telemetry_events()  # Windows' event tracing, which knows no variable

    def runtimes(self) -> dict[str, str]:
        return {str(ort.package_name or "onnxruntime"): str(ort.__version__)}

    def providers(self) -> tuple[str, ...]:
        return tuple(ort.get_available_providers())

    def memory(self) -> dict[str, tuple[int, int, int]]:
        return {}

    def open(self, request: LoadRequest) -> "OnnxSession":
        """Inspect the file (nothing outside the model's folder is opened), then make the session."""
        facts = onnx_file.inspect(request.path, request.root)
        config = request.config
        wanted = onnx_device.wanted(
            request.device, config.device, self.providers(), request.memory_limit, config.providers
        )
        if wanted.index is not None:
            self._cuda.load()
            wanted = self._cards.checked(wanted)
        attempt = self._with_tensorrt(request, facts, wanted)
        try:
            session = attempt.session or _session(request, wanted.providers)
        except Exception as error:  # noqa: BLE001 - the runtime raises its own unrelated types
            raise onnx_errors.load_error(error, facts.custom_domains, request.path.parent) from None
        truth = onnx_device.truth(session, wanted, self._cuda.folders, attempt.reason)
        if truth.degraded and truth.device == "cpu" and config.device == "require":
            raise ModelLoadError(f"the model requires CUDA, which is not what would run it: {truth.degraded}")
        inputs = tuple(_spec(arg, "input") for arg in session.get_inputs())
        outputs = tuple(_spec(arg, "output") for arg in session.get_outputs())
        if any(t.datatype == "BF16" for t in (*inputs, *outputs)) and any(t.datatype == "BYTES" for t in inputs):
            # Its Python interface takes BF16 as OrtValues only, and makes none of texts.
            raise ModelLoadError(
                "it has text inputs beside BF16 tensors, which ONNX Runtime cannot be given from here"
            )
        opened = Opened(
            platform="onnxruntime_onnx",
            inputs=inputs,
            outputs=outputs,
            device=truth.device,
            providers=tuple(session.get_providers()),
            degraded=truth.degraded,
            cpu_nodes=truth.cpu_nodes,
            batch_axis=has_batch_axis(inputs, outputs),
            notes=truth.notes + attempt.notes,
        )
        return OnnxSession(session, opened, attempt.rows)

    def _with_tensorrt(self, request: LoadRequest, facts: OnnxFacts, wanted: onnx_device.Wanted) -> Attempt:
        if not wanted.tensorrt or wanted.index is None or not self._cards.show(wanted.index):
            return Attempt()  # without the driver, why CUDA does not run is what there is to say
        folder = request.path.parent
        model = Model(
            files=(request.path, *(folder / name for name in facts.external)),
            inputs=lambda: _signature(request),
            words=lambda error: onnx_errors.words(error, folder),
            lost=lambda error: onnx_errors.is_lost(error, onnx_errors.words(error)),
        )
        make = functools.partial(_session, request)
        return self._tensorrt.open(request, model, wanted.index, wanted.providers, make)


def _session(request: LoadRequest, providers: list[Any], try_again: bool = True) -> Any:
    """``try_again``: ONNX Runtime may make it with fewer providers if it fails with these."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if request.threads:
        options.intra_op_num_threads = request.threads
    # Idle threads that spin would take the cores from the host process and from other programs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return ort.InferenceSession(str(request.path), options, providers=providers, enable_fallback=int(try_again))


def _signature(request: LoadRequest) -> tuple[tuple[TensorSpec, ...], bool]:
    """What the model takes, and whether its first axes look like a batch; from a session that is let go at once.
    What cannot be found out is empty: whoever makes the real session says what is wrong."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(str(request.path), options, providers=["CPUExecutionProvider"])
        inputs = tuple(_spec(arg, "input") for arg in session.get_inputs())
        outputs = tuple(_spec(arg, "output") for arg in session.get_outputs())
    except Exception:  # noqa: BLE001 - the runtime raises its own unrelated types
        return (), False
    return inputs, has_batch_axis(inputs, outputs)


def _stack(device: str) -> tensorrt_cache.Stack:
    """What an engine of TensorRT has to fit to here, without its own version."""
    probe = devices.detect()
    try:
        reading = next((r for r in probe.read() if r.id == device), None)
    finally:
        probe.close()
    return tensorrt_cache.Stack(
        device=device,
        name=reading.name if reading else None,
        capability=reading.compute_capability if reading else None,
        driver=reading.driver if reading else None,
        onnxruntime=str(ort.__version__),
        cuda=str(getattr(ort, "cuda_version", "") or "") or None,
    )


def has_batch_axis(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """True if the file names one and the same dynamic first axis for every input and output."""
    names = {t.axes[0] if t.axes and t.shape[0] == -1 else None for t in (*inputs, *outputs)}
    return len(names) == 1 and None not in names


def _spec(arg: Any, what: str) -> TensorSpec:
    datatype = _DATATYPES.get(arg.type)
    if datatype is None:
        raise ModelLoadError(
            f"{what} '{arg.name}' is of type {arg.type}, which the Open Inference Protocol cannot carry"
        )
    dims = [d if isinstance(d, int) and d >= 0 else -1 for d in arg.shape]
    axes = tuple(d if isinstance(d, str) and d else None for d in arg.shape)
    return TensorSpec(arg.name, datatype, tuple(dims), axes)


class _Usual:
    """What inputs usually weigh, to know an unusually large run: after one, the arena gives back what it grew by.

    ``unusual(nbytes)``: more than 4 times the running mean, and at least 32 MiB.
    """

    def __init__(self) -> None:
        self._mean: float | None = None

    def unusual(self, nbytes: int) -> bool:
        mean = self._mean
        self._mean = float(nbytes) if mean is None else mean + 0.05 * (nbytes - mean)
        return mean is not None and nbytes >= _LARGE and nbytes > 4 * mean


class _Run:
    """Cancellation of one run: ``terminate`` is looked at between nodes."""

    def __init__(self) -> None:
        self.options = ort.RunOptions()
        self.options.log_severity_level = 3
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self.options.terminate = True


class OnnxSession:
    """An open ONNX model. ONNX Runtime sessions may run in several threads at once."""

    def __init__(self, session: Any, opened: Opened, rows: int | None = None) -> None:
        """``rows``: the most items that it takes, where there is a bound."""
        self._session = session
        self.opened = opened
        self._rows = rows
        self._raw = {t.name for t in (*opened.inputs, *opened.outputs) if t.datatype == "BF16"}
        self._usual = _Usual()
        self._arena = opened.device.replace("cuda", "gpu") if ":" in opened.device else f"{opened.device}:0"
        self._strings = {t.name for t in opened.inputs if t.datatype == "BYTES"}

    def cancellation(self) -> _Run:
        return _Run()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Array]:
        assert isinstance(handle, _Run)
        if handle.cancelled:
            raise Cancelled("cancelled before it ran")
        if self._rows is not None:
            _check_rows(self.opened.inputs, inputs, self._rows)
        if self._usual.unusual(sum(a.nbytes for a in inputs.values())):
            handle.options.add_run_config_entry("memory.enable_memory_arena_shrinkage", self._arena)
        if self._strings:
            inputs = {name: _text(name, a) if name in self._strings else a for name, a in inputs.items()}
        try:
            if self._raw:
                return self._run_raw(inputs, outputs, handle)
            found: list[Array] = self._session.run(list(outputs), dict(inputs), handle.options)
        except Exception as error:  # noqa: BLE001 - the runtime raises its own unrelated types
            raise onnx_errors.run_error(error, handle.cancelled) from None
        return [_out(a) for a in found]

    def stream(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> Iterator[list[Array]]:
        yield self.run(inputs, outputs, handle)

    def _run_raw(self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: _Run) -> list[Array]:
        """The same through OrtValues: numpy has no bfloat16, so its bits go in and out as uint16."""
        values = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.asarray(a, order="C"), _BFLOAT16)
            if name in self._raw
            else ort.OrtValue.ortvalue_from_numpy(np.asarray(a, order="C"))
            for name, a in inputs.items()
        }
        found = self._session.run_with_ort_values(list(outputs), values, handle.options)
        return [
            _bits(value) if name in self._raw else _out(value.numpy())
            for name, value in zip(outputs, found, strict=True)
        ]

    def close(self) -> None:
        self._session = None


def _check_rows(specs: Sequence[TensorSpec], inputs: Mapping[str, Array], most: int) -> None:
    """Beyond its bounds TensorRT fails with words that nobody understands."""
    for spec in specs:
        array = inputs.get(spec.name)
        if array is not None and spec.shape[:1] == (-1,) and not 1 <= array.shape[0] <= most:
            words = (
                f"input '{spec.name}': TensorRT's engine takes 1 to {most} items (batching.max), not {array.shape[0]}"
            )
            raise InvalidInput(words, param=spec.name)


def _bits(value: Any) -> Array:
    shape = tuple(value.shape())
    size = int(np.prod(shape)) * 2
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size), dtype=np.uint16).reshape(shape)


def _text(name: str, array: Array) -> Array:
    """ONNX strings are text: the bytes must be UTF-8."""
    try:
        decoded = [element.decode() for element in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise InvalidInput(f"input '{name}': a string is not UTF-8 ({error.reason})", param=name) from None
    return np.array(decoded, dtype=object).reshape(array.shape)


def _out(array: Any) -> Array:
    # Optional and sequence outputs are refused at load; a missing value can still come out of an optional one.
    if not isinstance(array, np.ndarray):
        raise ModelError(f"an output is a {type(array).__name__}, not a tensor")
    return array
