"""The fake backend's language model: it says what it was told to, at the pace that it was told to.

``generation`` of a fake model's ``[backend_options]`` (all optional)::

    answer = [5, 6, 7]      the ids it says, then it ends; without: the prompt again and again
    token_ms                how long each takes
    context, streams, token_bytes, vocabulary, can      see ``Generation``
    crash_on, fail_on, oom_on                           a prompt that holds this id kills the process at its second
                                                        token, raises model_error, raises insufficient_memory
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import msgspec
import numpy as np

from appliance.backends.base import Cancellation, Opened
from appliance.backends.fake_device import FakeDevice
from appliance.errors import Cancelled, InsufficientMemory, ModelError
from appliance.models.spec import Generation, GenerationOptions, TensorSpec
from appliance.models.tensors import Array

END = 2
"""The id that ends its answers."""


class FakeGeneration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module's text."""

    answer: list[int] | None = None
    token_ms: float = 0
    context: int = 2048
    streams: int = 4
    token_bytes: int = 0
    vocabulary: int = 1 << 20
    can: list[str] = msgspec.field(default_factory=lambda: ["seed", "logprobs", "guidance"])
    crash_on: int | None = None
    fail_on: int | None = None
    oom_on: int | None = None


class _Flag:
    def __init__(self) -> None:
        self.event = threading.Event()

    def cancel(self) -> None:
        self.event.set()


class FakeLanguage:
    """An open fake language model."""

    def __init__(self, told: FakeGeneration, device: FakeDevice | None, weight: int, name: str) -> None:
        self._told = told
        self._device = device
        self._weight = weight
        self.opened = Opened(
            "fake",
            (TensorSpec("input_ids", "INT32", (-1,)), TensorSpec("options", "BYTES", (1,))),
            (
                TensorSpec("token_ids", "INT32", (-1,)),
                TensorSpec("logprobs", "FP32", (-1,)),
                TensorSpec("finish", "BYTES", (-1,)),
            ),
            name if device else "cpu",
            (),
            generation=Generation(
                told.context, told.streams, told.token_bytes, told.vocabulary, (END,), tuple(told.can)
            ),
        )

    def cancellation(self) -> _Flag:
        return _Flag()

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation) -> list[Array]:
        raise ModelError("a language model answers in streams")

    def stream(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], handle: Cancellation
    ) -> Iterator[list[Array]]:
        assert isinstance(handle, _Flag)
        told, prompt = self._told, [int(i) for i in inputs["input_ids"]]
        options = msgspec.json.decode(inputs["options"][0], type=GenerationOptions)
        if told.fail_on in prompt:
            raise ModelError("the fake language model failed")
        if told.oom_on in prompt:
            raise InsufficientMemory("the fake device is out of memory")
        size = told.token_bytes * (len(prompt) + options.max_tokens)
        if self._device is not None:
            self._device.take(size)
        try:
            finish = b"length"
            for said, token in enumerate(told.answer if told.answer is not None else cycle(prompt)):
                if handle.event.wait(told.token_ms / 1000) or handle.event.is_set():
                    raise Cancelled("cancelled while it spoke")
                if token in options.stop_ids or said >= options.max_tokens:
                    finish = b"stop" if token in options.stop_ids else b"length"
                    break
                if told.crash_on in prompt and said == 1:
                    os.abort()
                yield _part([token], [-0.5] if options.logprobs else [], None, outputs)
            else:
                finish = b"stop"
            yield _part([], [], finish, outputs)
        finally:
            if self._device is not None:
                self._device.give(size)

    def close(self) -> None:
        if self._device is not None:
            self._device.give(self._weight)


def _part(ids: list[int], logprobs: list[float], finish: bytes | None, outputs: Sequence[str]) -> list[Array]:
    ends = np.empty(1 if finish else 0, dtype=object)
    ends[:] = [finish] if finish else []
    arrays: dict[str, Array] = {
        "token_ids": np.array(ids, np.int32),
        "logprobs": np.array(logprobs, np.float32),
        "finish": ends,
    }
    return [arrays[name] for name in outputs]
