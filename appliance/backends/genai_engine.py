"""Streams that share the library's own ``Engine``: for models that were made for it (paged attention).

It batches whoever has something to do, cuts long prompts to its limit of tokens a step, and keeps one pool for all KV
caches, which is there from the start. A request goes to the engine as one turn. It cannot let a stream rest: what its
reader has not read waits, which is ``max_tokens`` at most.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import onnxruntime_genai as og

from appliance.backends import onnx_errors
from appliance.backends.genai_loop import make_way, tell
from appliance.backends.genai_stream import Stream
from appliance.backends.genai_voice import guidance_error, is_greedy, library_seed
from appliance.errors import ModelError

CAN = ("repetition_penalty", "seed", "guidance", "merges")
_EVENTS = 256
_BLOCKED_S = 0.002
_RETRIES = 20


class _Open(msgspec.Struct, eq=False):
    """A stream that is with the engine: as its request and turn."""

    stream: Stream
    request: Any
    turn: int
    stops: frozenset[int]


class EngineTurns:
    """Made in the thread that uses it: the library insists on one."""

    def __init__(self, model: Any, vocabulary: int) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._open: list[_Open] = []
        self._retries = 0
        self._engine: Any = None  # none after a fault that it does not get over
        self._events: Any = None
        self._renew()

    @property
    def longest(self) -> int:
        """Most tokens of prompt and answer that the pool has room for; 0 if the library does not say."""
        return int(self._engine.get_capabilities().max_request_length)

    def admit(self, stream: Stream) -> None:
        options, prompt = stream.options, stream.prompt
        limits = og.RequestOptions()
        limits.set_max_session_tokens(prompt.size + options.max_tokens)
        try:
            if self._engine is None:
                self._renew()
            request = self._engine.create_request(options=limits)
            told = og.TurnOptions(request)
            told.set_max_generated_tokens(options.max_tokens)
            told.set_do_sample(not is_greedy(options))
            if not is_greedy(options):
                told.set_temperature(options.temperature)
                told.set_top_p(options.top_p)
                told.set_top_k(min(options.top_k, self._vocabulary))
                if options.seed is not None:
                    told.set_seed(library_seed(options.seed))
            if options.repetition_penalty != 1:
                told.set_repetition_penalty(options.repetition_penalty)
            if options.guidance is not None:
                told.set_guidance(*options.guidance)
            elif options.ignore_end:
                told.set_min_generated_tokens(options.max_tokens)
            turn = request.begin_turn(prompt, told)
        except Exception as error:  # noqa: BLE001 - the library raises nothing but RuntimeError
            raise guidance_error(error) or onnx_errors.run_error(error, False) from None
        self._open.append(_Open(stream, request, turn, frozenset(options.stop_ids)))

    def round(self, pause: Callable[[], None]) -> bool:
        if not self._open:
            return False
        try:
            events = list(self._engine.run(self._events))
        except Exception as error:  # noqa: BLE001 - as above
            self._all_failed(onnx_errors.run_error(error, False))
            return True
        for event in events:
            self._hear(event)
        now = time.monotonic()
        if sum(one.stream.tell(now) for one in self._open):
            make_way()
        return True

    def drop(self) -> list[Stream]:
        return self._let_go([one for one in self._open if one.stream.handle.cancelled])

    def drop_all(self) -> list[Stream]:
        return self._let_go(list(self._open))

    def _hear(self, event: Any) -> None:
        flags, known = int(event.flags.value), og.EngineEventFlags
        if flags & known.CAPACITY_BLOCKED.value:  # the pool is full: others must end first
            time.sleep(_BLOCKED_S)
            return
        if flags & known.RETRYABLE.value:
            self._retries += 1
            if self._retries > _RETRIES:
                self._all_failed(ModelError("the language model's engine makes no progress"))
            return
        self._retries = 0
        one = next((o for o in self._open if o.request is event.request and o.turn == event.turn_id), None)
        if flags & known.FAILED.value:
            if one is not None and event.error_code == og.EngineErrorCode.REQUEST_UNSERVICEABLE:
                self._end(one, ModelError("the language model's engine cannot serve this request"))
            else:
                self._all_failed(ModelError("the language model's engine has failed"))
            return
        if one is None:  # let go meanwhile
            return
        if flags & known.TOKEN.value:
            token = int(event.token)
            if token in one.stops:
                self._end(one, b"stop")
                return
            one.stream.say(token, None)
        if flags & known.TURN_FINISHED.value:
            long = (og.FinishReason.MAX_GENERATED_TOKENS, og.FinishReason.MAX_SESSION_TOKENS)
            self._end(one, b"length" if event.finish_reason in long else b"stop")

    def _end(self, one: _Open, how: bytes | ModelError) -> None:
        for stream in self._let_go([one]):
            if isinstance(how, bytes):
                stream.end(how)
            else:
                tell(stream, how)

    def _all_failed(self, error: Exception) -> None:
        """The engine is of no use any more; the model may still be: the next request gets a new engine."""
        for stream in self.drop_all():
            tell(stream, error)
        self._engine = self._events = None

    def _let_go(self, gone: list[_Open]) -> list[Stream]:
        self._open = [one for one in self._open if one not in gone]
        for one in gone:
            try:
                one.request.cancel_turn(one.turn)
                one.request.close()
            except Exception:  # noqa: BLE001, S110 - of an engine that has failed: nothing is left to give back
                pass
        return [one.stream for one in gone]

    def _renew(self) -> None:
        self._engine = og.Engine(self._model)
        self._events = self._engine.create_event_buffer(_EVENTS)
        self._retries = 0
