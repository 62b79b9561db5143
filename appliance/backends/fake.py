"""A backend without a runtime, for tests of everything around one: it raises the same errors at the same points.

``[backend_options]`` of a fake model (all optional)::

    inputs  = { x = ["FP32", -1, 4] }    default: x FP32[-1,-1]
    gain = 2.0                           output ``y`` = gain × first input
    load_ms, run_ms                      how long loading and a run take
    chunks = 3                           a stream's answer comes in this many parts (split along the last axis)
    batch = true                         the first axis is a batch
    load_error = "words"                 loading fails
    load_crash = true                    loading kills the process
    crash_on, hang_on, fail_on, oom_on   values: an input that holds one kills the process, never ends,
                                         raises model_error, raises insufficient_memory
    nan_on                               value: the elements that hold it give NaN
    sick_on                              value: from then on every run gives twice as much
    lose_on                              value: the device is lost, this and every later run of any model on it fails
                                         with DeviceLost, until the process ends
    device_file = "path"                 it runs on ``fake:0`` while this file exists. Gone at load: it is opened
                                         on the CPU and says so (``require``: it is not); gone in a run: DeviceLost
    device_bytes = 1073741824            it runs on a fake device ``fake:0`` of this size (shared by all that name it)
    weight_bytes, run_bytes, item_bytes  what the model, a run, and each item of a run take of that device
    generation = { … }                   a language model, see ``fake_language.py``
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from appliance.backends.base import Cancellation, DeviceLost, LoadRequest, Opened
from appliance.backends.fake_device import FakeDevice
from appliance.backends.fake_language import FakeGeneration, FakeLanguage
from appliance.errors import Cancelled, InsufficientMemory, ModelError, ModelLoadError
from appliance.models.spec import TensorSpec
from appliance.models.tensors import Array

FAKE_DEVICE = "fake:0"
_AWAY = "the fake device is not there"


class FakeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module's text."""

    inputs: dict[str, list[Any]] = msgspec.field(default_factory=lambda: {"x": ["FP32", -1, -1]})
    gain: float = 2.0
    load_ms: float = 0
    run_ms: float = 0
    chunks: int = 1
    batch: bool = True
    load_error: str | None = None
    load_crash: bool = False
    crash_on: float | None = None
    hang_on: float | None = None
    fail_on: float | None = None
    oom_on: float | None = None
    nan_on: float | None = None
    sick_on: float | None = None
    lose_on: float | None = None
    device_file: str | None = None
    device_bytes: int | None = None
    weight_bytes: int = 0
    run_bytes: int = 0
    item_bytes: int = 0
    generation: FakeGeneration | None = None


class FakeBackend:
    """Opens anything."""

    name = "fake"

    def __init__(self) -> None:
        self._device: FakeDevice | None = None
        self._lost = threading.Event()

    def memory(self) -> dict[str, tuple[int, int, int]]:
        return {FAKE_DEVICE: self._device.memory()} if self._device is not None else {}

    def runtimes(self) -> dict[str, str]:
        return {}

    def providers(self) -> tuple[str, ...]:
        return ()

    def open(self, request: LoadRequest) -> "FakeSession | FakeLanguage":
        try:
            options = msgspec.convert(request.config.backend_options, FakeOptions)
        except msgspec.ValidationError as error:
            raise ModelLoadError(f"backend_options: {error}") from None
        time.sleep(options.load_ms / 1000)
        if options.load_crash:
            os.abort()
        if options.load_error:
            raise ModelLoadError(options.load_error)
        if options.generation is not None:
            if options.device_bytes is not None and self._device is None:
                self._device = FakeDevice(options.device_bytes)
            if self._device is not None:
                self._device.take(options.weight_bytes)
            return FakeLanguage(options.generation, self._device, options.weight_bytes, FAKE_DEVICE)
        if options.device_file is not None and not Path(options.device_file).exists():
            if request.config.device == "require":
                raise ModelLoadError(f"the model requires its device, which is not what would run it: {_AWAY}")
            return FakeSession(options, None, self._lost)
        if options.device_bytes is None:
            return FakeSession(options, None, self._lost)
        if self._device is None:
            self._device = FakeDevice(options.device_bytes)
        self._device.take(options.weight_bytes)
        return FakeSession(options, self._device, self._lost)


class _Flag:
    def __init__(self) -> None:
        self.event = threading.Event()

    def cancel(self) -> None:
        self.event.set()


class FakeSession:
    """``y`` = gain × first input."""

    def __init__(self, options: FakeOptions, device: FakeDevice | None, lost: threading.Event) -> None:
        self._options = options
        self._gain = options.gain
        self._device = device
        self._lost = lost
        self._file = Path(options.device_file) if options.device_file is not None else None
        away = self._file is not None and not self._file.exists()
        if away:
            self._file = None
        inputs = tuple(
            TensorSpec(name, str(what[0]), tuple(what[1:]), tuple(None for _ in what[1:]))
            for name, what in options.inputs.items()
        )
        output = TensorSpec("y", inputs[0].datatype, inputs[0].shape, inputs[0].axes)
        self.opened = Opened(
            "fake",
            inputs,
            (output,),
            FAKE_DEVICE if device or self._file else "cpu",
            (),
            _AWAY if away else None,
            batch_axis=options.batch,
        )

    def cancellation(self) -> _Flag:
        return _Flag()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Array]:
        assert isinstance(handle, _Flag)
        options, first = self._options, next(iter(inputs.values()))

        def holds(value: float | None) -> bool:
            return value is not None and bool(np.any(first == value))

        if self._device is not None:
            size = options.run_bytes + options.item_bytes * len(first)
            self._device.take(size)
            try:
                return self._run(first, outputs, handle, holds)
            finally:
                self._device.give(size)
        return self._run(first, outputs, handle, holds)

    def _run(
        self, first: Array, outputs: Sequence[str], handle: "_Flag", holds: Callable[[float | None], bool]
    ) -> list[Array]:
        options = self._options
        if holds(options.crash_on):
            os.abort()
        if holds(options.hang_on):
            threading.Event().wait()
        if handle.event.wait(options.run_ms / 1000) or handle.event.is_set():
            raise Cancelled("cancelled while it ran")
        if self.opened.degraded is None:
            if holds(options.lose_on) or (self._file is not None and not self._file.exists()):
                self._lost.set()
            if self._lost.is_set():
                raise DeviceLost("the fake device is lost")
        if holds(options.oom_on):
            raise InsufficientMemory("the fake device is out of memory")
        if holds(options.fail_on):
            raise ModelError("the fake model failed")
        if holds(options.sick_on):
            self._gain = 2 * options.gain
        found = (first * self._gain).astype(first.dtype)
        if holds(options.nan_on):
            found[first == options.nan_on] = np.nan
        return [found for _ in outputs]

    def stream(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> Iterator[list[Array]]:
        for part in np.array_split(next(iter(inputs.values())), self._options.chunks, axis=-1):
            yield self.run({"x": part}, outputs, handle)

    def close(self) -> None:
        if self._device is not None:
            self._device.give(self._options.weight_bytes)
