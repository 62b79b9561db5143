"""ONNX Runtime behind the backend protocol."""

import ctypes
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from appliance.backends import cuda_errors, onnx_device
from appliance.backends.base import Cancellation, DeviceLost, LoadRequest, Opened
from appliance.errors import ApplianceError, Cancelled, InsufficientMemory, InvalidInput, ModelError, ModelLoadError
from appliance.models import onnx_file
from appliance.models.spec import TensorSpec
from appliance.models.tensors import Array
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

    def __init__(self, libraries: Libraries | None = None) -> None:
        """``libraries``: where CUDA's are; None: only where the system looks."""
        self._cuda = onnx_device.CudaLibraries(libraries)
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
        wanted = onnx_device.wanted(request.device, request.config.device, self.providers(), request.memory_limit)
        if wanted.index is not None:
            self._cuda.load()
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if request.threads:
            options.intra_op_num_threads = request.threads
        # Idle threads that spin would take the cores from the host process and from other programs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        try:
            session = ort.InferenceSession(str(request.path), options, providers=wanted.providers)
        except Exception as error:  # noqa: BLE001 - the runtime raises its own unrelated types
            raise _load_error(error, facts.custom_domains, request.path.parent) from None
        truth = onnx_device.truth(session, wanted, self._cuda.folders)
        if truth.degraded and request.config.device == "require":
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
            notes=truth.notes,
        )
        return OnnxSession(session, opened)


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


_SOURCE = re.compile(r"(\S+\.(?:cc|cpp|h|cu|py)):\d+ ")
_SIGNATURE = re.compile(r"^.*?\)(?: const)? (?=[A-Z\[\"'])")
_PATH = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[^\s/\\:'\"]+[/\\])+([^\s/\\:'\"]*)")


def _words(error: Exception, folder: Path | None = None) -> str:
    """ONNX Runtime's message without its prefix, source positions and folders (no local path may leave).

    ``folder``: one that the message may name; only so is one with spaces in its name known as such.
    """
    text = str(error)
    if folder is not None:
        text = text.replace(f"{folder}{os.sep}", "").replace(str(folder), "the model's folder")
    text = " ".join(text.split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text)
    if _SOURCE.search(text):
        text = _SIGNATURE.sub("", _SOURCE.sub("", text))
    return _PATH.sub(r"\1", text)[:600]


def _load_error(error: Exception, custom_domains: Sequence[str], folder: Path) -> ApplianceError | DeviceLost:
    text = _words(error, folder)
    if _is_out_of_memory(text):
        return InsufficientMemory(f"not enough memory to load the model: {text}")
    if _is_lost(error, text):
        return DeviceLost(cuda_errors.shortened(text))
    if custom_domains and "not a registered function/op" in text:
        return ModelLoadError(
            f"an operator library is needed: {text} (domains: {', '.join(custom_domains)}). "
            "Operator libraries from model folders are never loaded"
        )
    if "not a registered function/op" in text or "No Op registered" in text:
        return ModelLoadError(f"unknown operator: {text}")
    if "opset" in text.lower() and "guarantee" in text:
        return ModelLoadError(f"unsupported opset: {text}")
    return ModelLoadError(f"ONNX Runtime {ort.__version__} cannot load it: {text}")


def _is_out_of_memory(text: str) -> bool:
    # The runtime has no type for it; these are the words of its arena, of CUDA and of the C++ library.
    lowered = text.lower()
    return any(
        words in lowered
        for words in ("failed to allocate memory", "out of memory", "bad_alloc", "available memory of")
    )


def _is_lost(error: Exception, text: str) -> bool:
    # Its newest releases have a type for a device that was reset; for all else see `cuda_errors`.
    return type(error).__name__ == "DeviceReset" or cuda_errors.is_lost(text)


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

    def __init__(self, session: Any, opened: Opened) -> None:
        self._session = session
        self.opened = opened
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
        if self._usual.unusual(sum(a.nbytes for a in inputs.values())):
            handle.options.add_run_config_entry("memory.enable_memory_arena_shrinkage", self._arena)
        if self._strings:
            inputs = {name: _text(name, a) if name in self._strings else a for name, a in inputs.items()}
        try:
            if self._raw:
                return self._run_raw(inputs, outputs, handle)
            found: list[Array] = self._session.run(list(outputs), dict(inputs), handle.options)
        except Exception as error:  # noqa: BLE001 - the runtime raises its own unrelated types
            raise _run_error(error, handle) from None
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


def _run_error(error: Exception, handle: _Run) -> ApplianceError | DeviceLost:
    if isinstance(error, ApplianceError):
        return error
    text = _words(error)
    if _is_lost(error, text) and not _is_out_of_memory(text):
        return DeviceLost(cuda_errors.shortened(text))
    if handle.cancelled:
        return Cancelled("cancelled while it ran")
    if _is_out_of_memory(text):
        return InsufficientMemory(f"not enough memory for this run: {text}")
    if type(error).__name__ == "InvalidArgument":
        return InvalidInput(f"the model does not accept this input: {text}")
    return ModelError(f"the model failed: {text}")
