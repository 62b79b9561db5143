"""``POST /v1/embeddings``: texts → vectors, as OpenAI's clients ask for them. A plain ASGI endpoint."""

import base64
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from appliance.api.body import Receive, Scope, Send
from appliance.api.context import Context
from appliance.api.disconnect import Disconnect
from appliance.api.openai.texts import decode, pipeline_of, send_told
from appliance.api.predict import GateCaller
from appliance.api.respond import Headers
from appliance.errors import InvalidInput
from appliance.pipelines.embed import Embed, Embedded

_INLINE = 1 << 13  # numbers that are written faster than a trip to the thread pool takes


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """The body. ``truncate`` is the appliance's own: whether a text over the model's length may be cut; without it as
    the model's ``[pipeline]`` says. ``user`` changes nothing."""

    model: str
    input: Any
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    user: str | None = None
    truncate: bool | None = None


class Embeddings:
    """The route."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __call__(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        request_id: str,
        receive: Receive,
        send: Send,
        extra: Headers,
    ) -> None:
        """Answer one request. Raises ApplianceError for the caller to answer."""
        context = self._context
        async with context.body(headers, receive) as body:
            request = await decode(context, body, Request)
            texts = texts_of(request.input)
            pipeline = await pipeline_of(context, request.model, Embed, "embeddings", scope, headers)
            caller = GateCaller(context, request.model, headers, request_id)
            with Disconnect(receive):
                found = await pipeline.embed(texts, caller, request.dimensions, request.truncate)
        if found.vectors.size <= _INLINE:
            written = write(request, found)
        else:
            written = await context.offload(write, request, found)
        await send_told(context, caller, found.texts, written, request_id, send, extra)


def texts_of(given: Any) -> list[str | list[int]]:
    """``input`` as a list: a text, texts, one text's ids, or the ids of several. InvalidInput for anything else."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(isinstance(text, str) for text in given):
            return given
        if _ids(given):
            return [given]
        if all(isinstance(ids, list) and _ids(ids) for ids in given):
            return given
    told = "'input' must be a text, a list of texts, a list of token ids, or a list of such lists; none may be empty"
    raise InvalidInput(told, param="input")


def _ids(given: list[Any]) -> bool:
    return bool(given) and all(type(token) is int for token in given)


def write(request: Request, found: Embedded) -> bytes:
    """The answer's JSON. ``base64``: the little-endian float32 numbers, which are the same as those of ``float``."""
    data = []
    for index, (vector, text) in enumerate(zip(found.vectors, found.texts, strict=True)):
        if request.encoding_format == "base64":
            numbers: Any = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        else:
            numbers = vector.astype(np.float32).tolist()
        entry = {"object": "embedding", "index": index, "embedding": numbers}
        if text.whole > len(text.ids):
            entry["truncated_from"] = text.whole
        data.append(entry)
    usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": request.model, "usage": usage})
