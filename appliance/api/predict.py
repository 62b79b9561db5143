"""``POST /predict/{model}``: a file or JSON → the model's pipeline → labels, boxes, text or an image."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from appliance.api import forms
from appliance.api.body import Receive, Scope, Send
from appliance.api.context import Context
from appliance.api.disconnect import Disconnect
from appliance.api.generation import Run, speaker, spoken
from appliance.api.oip import deadlines, priority, wake
from appliance.api.oip_codec import DEFAULT_PRIORITY
from appliance.api.respond import Headers, send_body, timing
from appliance.errors import InvalidInput, ModelNotFound, NotAcceptable, WarmingUp
from appliance.gate.ticket import Ticket
from appliance.models.spec import GenerationOptions, ModelSpec
from appliance.models.tensors import Array, Tensor, from_array, to_array
from appliance.pipelines.base import Answer, Item, Pipeline, Told

T = TypeVar("T")

_INLINE = 64 * 1024


class GateCaller:
    """``Caller`` for one request: every run is a ticket of its own, under the request's id and deadlines."""

    def __init__(self, context: Context, own: str, headers: dict[bytes, bytes], request_id: str) -> None:
        self._context = context
        self._own = own
        self._headers = headers
        self._id = request_id
        self._priority = priority(headers, DEFAULT_PRIORITY)
        self.tickets: list[Ticket] = []
        self.spec: ModelSpec | None = None  # of the first model that ran

    async def infer(self, inputs: Mapping[str, Array], *, model: str | None = None) -> dict[str, Array]:
        context, name = self._context, model or self._own
        await wake(context, name, self._headers)
        served = context.catalog.version(name)
        if served.spec is None:
            raise ModelNotFound(f"model '{name}' has nothing to run", param="model")
        tensors = tuple(_tensor(served.spec, n, a) for n, a in inputs.items())
        queue = context.gate.queue(name, served.file.version)
        queue_s, run_s = deadlines(context, served.spec, self._headers, None)
        names = tuple(t.name for t in served.spec.outputs)
        ticket = queue.submit(self._id, tensors, names, priority=self._priority, queue_s=queue_s, run_s=run_s)
        self.tickets.append(ticket)
        self.spec = self.spec or served.spec
        outputs = await queue.result(ticket)
        return {t.name: to_array(t) for t in outputs}

    async def speak(self, prompt: Sequence[int], options: GenerationOptions) -> AsyncGenerator[Told, None]:
        await wake(self._context, self._own, self._headers)
        served, _ = speaker(self._context, self._own)
        run = Run(self._context, served, prompt, options, self._headers, self._id)
        self.tickets.append(run.ticket)
        self.spec = self.spec or served.spec
        async with aclosing(spoken(run)) as parts:
            async for told in parts:
                yield told

    async def offload(self, work: Callable[..., T], *args: Any) -> T:
        result: T = await self._context.offload(work, *args)
        return result


class Predict:
    """The task route, a plain ASGI endpoint."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __call__(
        self,
        model: str,
        scope: Scope,
        headers: dict[bytes, bytes],
        request_id: str,
        receive: Receive,
        send: Send,
        extra: Headers,
    ) -> None:
        """Answer one request. Raises ApplianceError for the caller to answer."""
        context, settings = self._context, self._context.settings
        async with context.body(headers, receive) as body:
            await wake(context, model, headers)
            served = context.catalog.version(model)
            pipeline = context.catalog.model(model).pipeline
            if pipeline is None:
                raise WarmingUp(f"model '{model}' is being loaded", retry_after_s=2)
            accept = _accepted(headers.get(b"accept", b"").decode("latin-1"), pipeline)
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            content_type = headers.get(b"content-type", b"").decode("latin-1")
            if len(body) <= _INLINE:
                items = forms.items(body, content_type, query, settings.max_items)
            else:  # a form's parser and base64 take their time, and others are to be answered meanwhile
                items = await context.offload(forms.items, body, content_type, query, settings.max_items)
            if accept and len(items) > 1:
                raise InvalidInput(f"{len(items)} items cannot be answered with one {accept}", param="Accept")
            caller = GateCaller(context, model, headers, request_id)
            with Disconnect(receive):
                answers = await _all(pipeline, items, caller, accept)
        answer: Headers = [(b"x-request-id", request_id.encode()), *extra]
        answer += timing(caller.tickets, caller.spec, context.gate.clock())
        picture = answers[0].picture
        if accept and picture is not None:
            answer.append((b"content-type", picture.media_type.encode()))
            await send_body(send, [picture.data], answer)
            return
        answer.append((b"content-type", b"application/json"))
        about = {"model": model, "version": served.file.version}
        results = [a.result for a in answers]
        result = {**about, **results[0]} if len(results) == 1 else {**about, "results": results}
        await send_body(send, [msgspec.json.encode(result)], answer)


def _tensor(spec: ModelSpec, name: str, array: Array) -> Tensor:
    """BF16 is carried in uint16 arrays; only the spec can tell the two apart."""
    tensor, known = from_array(name, array), spec.input(name)
    if known is not None and known.datatype == "BF16":
        return Tensor(name, "BF16", tensor.shape, tensor.data)
    return tensor


async def _all(pipeline: Pipeline, items: list[Item], caller: GateCaller, accept: str | None) -> list[Answer]:
    """All items side by side; the first fault ends the others."""
    if len(items) == 1:
        return [await pipeline.run(items[0], caller, accept)]
    tasks = [asyncio.ensure_future(pipeline.run(item, caller, accept)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _accepted(accept: str, pipeline: Pipeline) -> str | None:
    """The media type to answer with: None for JSON. Raises NotAcceptable.

    Weights are not looked at: the first type named that can be made wins.
    """
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",") if part.strip()]
    for kind in wanted:
        if kind in ("*/*", "application/json", "application/*"):
            return None
        if kind in pipeline.pictures:
            return kind
        if kind == "image/*" and pipeline.pictures:
            return pipeline.pictures[0]
    if wanted:
        made = ", ".join(("application/json", *pipeline.pictures))
        raise NotAcceptable(f"'{accept[:64]}' cannot be made here; this model answers with: {made}", param="Accept")
    return None
