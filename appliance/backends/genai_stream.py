"""One answer of a language model: what is asked, and the way of its tokens from the decode thread to its reader."""

import math
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from appliance.backends.base import DeviceLost
from appliance.errors import (
    ApplianceError,
    Cancelled,
    ContextLengthExceeded,
    InvalidInput,
    ModelError,
    UnsupportedParameter,
)
from appliance.models.spec import Generation, GenerationOptions
from appliance.models.tensors import Array

AHEAD = 256
"""Most tokens of one answer that wait for its reader; then its decoding rests, and that of others goes on."""

GAP_S = 0.01
"""Least time between two parts of one answer. To wake a reader costs the decode thread some 0.3 ms, and of a model of
5 ms a token nobody sees single ones."""

_LOOK_S = 5.0

Said = tuple[int, float | None]
"""A token and its log probability, where that is wanted."""


class Handle:
    """Cancellation of one stream, before, while and after it runs."""

    def __init__(self) -> None:
        self.cancelled = False
        self._woken: Callable[[], None] | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self._woken is not None:
            self._woken()

    def attach(self, woken: Callable[[], None]) -> None:
        """``woken`` is called by ``cancel`` from now on."""
        self._woken = woken


class Stream:
    """An answer that is asked for. All but ``parts``, which is its reader's, belongs to the decode thread."""

    def __init__(self, prompt: Array, options: GenerationOptions, handle: Handle, room: Callable[[], None]) -> None:
        """``room``: called when the decode thread may go on after it had to rest."""
        self.prompt = prompt
        self.options = options
        self.handle = handle
        self.said = 0
        self._taken = 0
        self._resting = False
        self._room = room
        self._held: list[Said] = []
        self._told_at = -math.inf
        self._events: queue.SimpleQueue[list[Said] | bytes | BaseException] = queue.SimpleQueue()

    def rests(self) -> bool:
        """Whether its reader must read before more is said; then ``room`` is called once it has."""
        if self.said - self._taken < AHEAD:
            return False
        self._resting = True  # the reader has many to take yet, so it comes upon this
        self._flush()
        return True

    def say(self, token: int, logprob: float | None) -> None:
        """Its reader hears of it with the next ``tell`` or ``end``."""
        self.said += 1
        self._held.append((token, logprob))

    def tell(self, now: float) -> bool:
        """Have the reader hear what was said, unless it did a moment before ``now`` (seconds); whether it does."""
        if not self._held or now - self._told_at < GAP_S:
            return False
        self._told_at = now
        self._flush()
        return True

    def end(self, finish: bytes) -> None:
        self._flush()
        self._events.put(finish)

    def fail(self, error: BaseException) -> None:
        self._flush()
        self._events.put(error)

    def _flush(self) -> None:
        if self._held:
            held, self._held = self._held, []
            self._events.put(held)

    def parts(self, outputs: Sequence[str], decoder: threading.Thread) -> Iterator[list[Array]]:
        """The named outputs, in parts: what there is, as soon as there is something. Raises what ``fail`` was given,
        and ModelError when ``decoder``, the decode thread, has ended."""
        while True:
            ids, logprobs, finish = self._some(decoder)
            yield _part(ids, logprobs, finish, outputs)
            if finish is not None:
                return

    def _some(self, decoder: threading.Thread) -> tuple[list[int], list[float], bytes | None]:
        ids: list[int] = []
        logprobs: list[float] = []
        event = self._next(decoder)
        while True:
            if isinstance(event, bytes):
                return ids, logprobs, event
            if isinstance(event, BaseException):
                raise event
            ids += [token for token, _ in event]
            logprobs += [value for _, value in event if value is not None]
            self._taken += len(event)
            if self._resting:
                self._resting = False
                self._room()
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                return ids, logprobs, None
            if isinstance(event, BaseException):  # what was said before it is told first
                self._events.put(event)
                return ids, logprobs, None

    def _next(self, decoder: threading.Thread) -> list[Said] | bytes | BaseException:
        while True:
            try:
                return self._events.get(timeout=_LOOK_S)
            except queue.Empty:
                if not decoder.is_alive():
                    raise ModelError("the language model has stopped") from None


def read(inputs: Mapping[str, Array], says: Generation) -> tuple[Array, GenerationOptions]:
    """The prompt (INT32[-1]) and the options of a request. Raises InvalidInput for what the model cannot do."""
    prompt = np.array(inputs["input_ids"], dtype=np.int32).reshape(-1)  # a copy: the library asks to write into it
    given = inputs["options"].reshape(-1)
    if given.size != 1:
        raise InvalidInput("'options' must hold one text", param="options")
    try:
        options = msgspec.json.decode(given[0], type=GenerationOptions)
    except (msgspec.DecodeError, TypeError) as error:
        raise InvalidInput(f"'options' cannot be read: {error}", param="options") from None
    if not prompt.size:
        raise InvalidInput("the prompt is empty", param="input_ids")
    # The library takes any number for an id, and reads the memory beside its table.
    if int(prompt.min()) < 0 or int(prompt.max()) >= says.vocabulary:
        raise InvalidInput(f"the prompt holds an id that is not below {says.vocabulary}", param="input_ids")
    if options.max_tokens < 1:
        raise InvalidInput("'max_tokens' must be at least 1", param="max_tokens")
    if prompt.size + options.max_tokens > says.context:
        raise ContextLengthExceeded(
            f"the prompt's {prompt.size} tokens and max_tokens {options.max_tokens} are more than the model's "
            f"context of {says.context}",
            param="max_tokens",
        )
    wanted = {
        "guidance": options.guidance is not None,
        "logprobs": options.logprobs,
        "repetition_penalty": options.repetition_penalty != 1,
        "frequency_penalty": options.frequency_penalty != 0,
        "presence_penalty": options.presence_penalty != 0,
        "seed": options.seed is not None,
    }
    for name, asked in wanted.items():
        if asked and name not in says.can:
            raise UnsupportedParameter(f"'{name}' is not possible with this model", param=name)
    for name in ("temperature", "top_p", "repetition_penalty", "frequency_penalty", "presence_penalty"):
        if not math.isfinite(getattr(options, name)):
            raise InvalidInput(f"'{name}' must be a number", param=name)
    if options.temperature < 0 or not 0 <= options.top_p <= 1 or options.top_k < 0 or options.repetition_penalty <= 0:
        raise InvalidInput(
            "temperature and top_k must not be below 0, top_p must be 0 to 1, repetition_penalty above 0"
        )
    return prompt, options


def failed(error: BaseException) -> ApplianceError | DeviceLost:
    """A failure as a reader may meet it."""
    if isinstance(error, ApplianceError | DeviceLost):
        return error
    return ModelError(f"the language model failed: {type(error).__name__}")


def cancelled() -> Cancelled:
    return Cancelled("cancelled while it spoke")


def _part(ids: list[int], logprobs: list[float], finish: bytes | None, outputs: Sequence[str]) -> list[Array]:
    ends = np.empty(0 if finish is None else 1, dtype=object)
    if finish is not None:
        ends[0] = finish
    arrays: dict[str, Array] = {
        "token_ids": np.array(ids, np.int32),
        "logprobs": np.array(logprobs, np.float32),
        "finish": ends,
    }
    return [arrays[name] for name in outputs]
