"""One answer of a language model on its way through the gate, for the surfaces that ask one."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, cast

import msgspec
import numpy as np

from appliance.api.context import Context
from appliance.api.oip import deadlines, priority
from appliance.api.oip_codec import DEFAULT_PRIORITY
from appliance.api.respond import Headers, timing
from appliance.errors import ApplianceError, InferenceTimeout, InvalidInput, ModelError, ModelNotFound, WarmingUp
from appliance.gate.limits import shortened
from appliance.gate.ticket import Outputs, Ticket
from appliance.models.spec import GenerationOptions, ModelSpec
from appliance.models.tensors import Tensor, decode_bytes, encode_bytes, from_array, to_array
from appliance.pipelines.base import Told
from appliance.pipelines.language.generate import Generate
from appliance.serving.served import ServedVersion

_OUTPUTS = ("token_ids", "logprobs", "finish")
_APART = 16  # so many parts may wait as they came
_JOINED = 256  # tokens of a part that they are joined to
_LATE_S = 1.0  # a caller that does not read: so long after the run's deadline its answer is given up

_encode = msgspec.json.Encoder().encode


def speaker(context: Context, model: str, version: str | None = None) -> tuple[ServedVersion, Generate]:
    """A language model that serves, and its task. InvalidInput for a model that is none; ModelNotFound, WarmingUp."""
    served = context.catalog.version(model, version)
    pipeline = context.catalog.model(model).pipeline
    if pipeline is None:
        raise WarmingUp(f"model '{model}' is being loaded", retry_after_s=2)
    if not isinstance(pipeline, Generate) or served.spec is None:
        raise InvalidInput(
            f"model '{model}' is no language model: its task is '{pipeline.task}'; see GET /v1/models", param="model"
        )
    if pipeline.version != served.spec.version:
        raise ModelNotFound(
            f"version {served.spec.version} of '{model}' cannot be asked with texts now; the newest can"
        )
    return served, pipeline


class _Heard:
    """Parts that were not told yet; a caller that reads slowly finds them joined. ``at``: when the last of them came,
    in seconds; 0: none did."""

    def __init__(self) -> None:
        self.at = 0.0
        self._parts: deque[Told] = deque()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, told: Told, at: float) -> None:
        self.at = at
        if len(self._parts) >= _APART and len(self._parts[-1].ids) < _JOINED:
            last = self._parts.pop()
            told = Told(last.ids + told.ids, last.logprobs + told.logprobs, told.finish)
        self._parts.append(told)

    def take(self) -> Told:
        return self._parts.popleft()


class Run:
    """Admitted when made; whoever makes one ends it with ``close``. Raises what ``ModelQueue.submit`` does.

    ``prompt``: its tokens. ``ticket``: its place in the gate.
    """

    def __init__(
        self,
        context: Context,
        served: ServedVersion,
        prompt: Sequence[int],
        options: GenerationOptions,
        headers: Mapping[bytes, bytes],
        request_id: str,
    ) -> None:
        spec = served.spec
        assert spec is not None
        self.prompt = len(prompt)
        self._spec: ModelSpec = spec
        self._clock = context.gate.clock
        self._meter = context.metrics.by_model.language(spec.name, served.file.version)
        self._queue = context.gate.queue(spec.name, served.file.version)
        queue_s, run_s, self._first_s = _deadlines(context, spec, dict(headers))
        self.ticket: Ticket = self._queue.submit(
            request_id,
            (
                from_array("input_ids", np.array(prompt, np.int32)),
                Tensor("options", "BYTES", (1,), encode_bytes([_encode(options)])),
            ),
            _OUTPUTS,
            priority=priority(dict(headers), DEFAULT_PRIORITY),
            queue_s=queue_s,
            run_s=run_s,
            stream=True,
            tokens=len(prompt) + options.max_tokens,
        )
        self._heard = _Heard()
        self._news = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    async def begin(self, within_s: float = float("inf")) -> bool:
        """Wait for the first part, at most ``within_s`` seconds: False if it is not there then.

        Whether it failed ``part`` tells. Its own deadline is kept: then it ends with InferenceTimeout.
        """
        until = self._clock() + within_s
        while not self._news.is_set():
            now = self._clock()
            if now >= until:
                return False
            left = self._left_for_first(now)
            if left <= 0:
                self._end(InferenceTimeout(f"no token within {self._first_s:g} s of model '{self._spec.name}'"))
                left = 1.0  # the news of it comes at once
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, until - now)):
                    await self._news.wait()
        return True

    async def part(self) -> Told:
        """What has come since the last one; the last one has a ``finish``. Raises the request's error."""
        if not self._heard.at:
            await self.begin()
        await self._news.wait()
        if not self._heard:
            await self._reading  # raises why
            raise ModelError(f"model '{self._spec.name}' ended its answer without saying why")
        told = self._heard.take()
        if self._heard:
            await asyncio.sleep(0)  # a caller that reads slowly finds a lot, which must not hold up the others
        elif not self._reading.done():
            self._news.clear()
        return told

    async def _read(self) -> None:
        """Take the parts as they come, whether or not they are waited for: as tokens they are small."""
        heard = self._heard
        try:
            async for part in self.ticket:
                told, now = _told(part), self._clock()
                if not (told.ids or told.finish):
                    continue
                if not heard.at:
                    self._meter.began(self.prompt, len(told.ids), now - self.ticket.created)
                else:
                    self._meter.went_on(len(told.ids), now - heard.at)
                heard.add(told, now)
                self._news.set()
                if told.finish:
                    self._done()  # the engine's own word of it comes right behind
                    return
        finally:
            self._news.set()

    def enough(self) -> None:
        """The rest of the answer is not wanted; what there is is a whole one, and the run is ended."""
        if not self.ticket.finished:
            self._done()
            self._queue.cancel(self.ticket)

    async def close(self) -> None:
        """Whoever waited has its answer, or has gone. A run that goes on is ended."""
        if not self.ticket.finished:
            self._queue.cancel(self.ticket)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def patience(self) -> asyncio.Timeout:
        """Around what is done with the parts: a caller that reads too slowly, or not at all, has so long."""
        left = self.ticket.run_deadline - self._clock() if self.ticket.started else 0.0
        return asyncio.timeout(max(0.0, left) + _LATE_S)

    def timing(self, stream: bool = False) -> Headers:
        """The headers that tell of the run; of a stream those that are known before it ends."""
        told = timing([self.ticket], self._spec, self._clock())
        return [header for header in told if header[0] != b"server-timing"] if stream else told

    def _left_for_first(self, now: float) -> float:
        """Seconds until the first token may be late at the earliest."""
        started = self.ticket.started if self.ticket.state == "running" else now
        return started + self._first_s - now

    def _done(self) -> None:
        self.ticket.run_ns = round((self._clock() - self.ticket.started) * 1e9)
        self._queue.end(self.ticket, ())

    def _end(self, error: ApplianceError) -> None:
        self._queue.end(self.ticket, error)
        self._queue.cancel(self.ticket)


async def spoken(run: Run) -> AsyncGenerator[Told, None]:
    """All parts of a run, which is ended with them or with the reader's patience."""
    try:
        while True:
            told = await run.part()
            yield told
            if told.finish:
                return
    finally:
        await run.close()


def _deadlines(context: Context, spec: ModelSpec, headers: dict[bytes, bytes]) -> tuple[float, float, float]:
    """(queue, run, first token) in seconds: server < model's own < ``X-Timeout-Ms``, which can only shorten."""
    settings, own = context.settings, spec.config.timeouts
    queue_s, _ = deadlines(context, spec, headers, None)
    wish = float(headers[b"x-timeout-ms"]) if b"x-timeout-ms" in headers else None
    run_s = shortened((own.run_ms or settings.generation_timeout_ms) / 1000, wish)
    return queue_s, run_s, shortened((own.first_token_ms or settings.first_token_timeout_ms) / 1000, wish)


def _told(part: Outputs) -> Told:
    ids, logprobs, ends = part
    finish = decode_bytes(ends.data, 1, ends.name)[0].decode() if ends.nbytes else None
    return Told(to_array(ids).tolist(), to_array(logprobs).tolist(), cast(Literal["stop", "length"] | None, finish))
