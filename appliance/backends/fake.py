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
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from appliance.backends.base import Cancellation, LoadRequest, Opened
from appliance.errors import Cancelled, InsufficientMemory, ModelError, ModelLoadError
from appliance.models.spec import TensorSpec
from appliance.models.tensors import Array


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


class FakeBackend:
    """Opens anything."""

    name = "fake"

    def runtimes(self) -> dict[str, str]:
        return {}

    def providers(self) -> tuple[str, ...]:
        return ()

    def open(self, request: LoadRequest) -> "FakeSession":
        try:
            options = msgspec.convert(request.config.backend_options, FakeOptions)
        except msgspec.ValidationError as error:
            raise ModelLoadError(f"backend_options: {error}") from None
        time.sleep(options.load_ms / 1000)
        if options.load_crash:
            os.abort()
        if options.load_error:
            raise ModelLoadError(options.load_error)
        return FakeSession(options)


class _Flag:
    def __init__(self) -> None:
        self.event = threading.Event()

    def cancel(self) -> None:
        self.event.set()


class FakeSession:
    """``y`` = gain × first input."""

    def __init__(self, options: FakeOptions) -> None:
        self._options = options
        inputs = tuple(
            TensorSpec(name, str(what[0]), tuple(what[1:]), tuple(None for _ in what[1:]))
            for name, what in options.inputs.items()
        )
        output = TensorSpec("y", inputs[0].datatype, inputs[0].shape, inputs[0].axes)
        self.opened = Opened("fake", inputs, (output,), "cpu", (), batch_axis=options.batch)

    def cancellation(self) -> _Flag:
        return _Flag()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Array]:
        assert isinstance(handle, _Flag)
        options, first = self._options, next(iter(inputs.values()))

        def holds(value: float | None) -> bool:
            return value is not None and bool(np.any(first == value))

        if holds(options.crash_on):
            os.abort()
        if holds(options.hang_on):
            threading.Event().wait()
        if handle.event.wait(options.run_ms / 1000) or handle.event.is_set():
            raise Cancelled("cancelled while it ran")
        if holds(options.oom_on):
            raise InsufficientMemory("the fake device is out of memory")
        if holds(options.fail_on):
            raise ModelError("the fake model failed")
        return [(first * options.gain).astype(first.dtype) for _ in outputs]

    def stream(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> Iterator[list[Array]]:
        for part in np.array_split(next(iter(inputs.values())), self._options.chunks, axis=-1):
            yield self.run({"x": part}, outputs, handle)

    def close(self) -> None:
        pass
