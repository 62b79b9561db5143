"""What the routes about texts (embeddings, reranking) have in common."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from appliance.api.body import Scope, Send
from appliance.api.context import Context
from appliance.api.oip import wake
from appliance.api.openai.requests import fault_of
from appliance.api.predict import GateCaller
from appliance.api.respond import Headers, send_body, timing
from appliance.errors import InvalidInput, WarmingUp
from appliance.pipelines.base import Pipeline
from appliance.pipelines.language.tokenizer import Encoded

S = TypeVar("S", bound=msgspec.Struct)
P = TypeVar("P", bound=Pipeline)

_INLINE = 64 * 1024


async def decode(context: Context, body: bytes | bytearray, form: type[S]) -> S:
    """The body's JSON as ``form``. InvalidInput naming the field, UnsupportedParameter for an unknown one."""
    try:
        if len(body) <= _INLINE:
            return msgspec.json.decode(body, type=form)
        found: S = await context.offload(lambda: msgspec.json.decode(body, type=form))
        return found
    except msgspec.ValidationError as error:
        raise fault_of(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not valid JSON: {error}", param="body") from None


async def awake(context: Context, model: str, scope: Scope, headers: dict[bytes, bytes]) -> None:
    """Count a request for its model's rates, and load the model if it is asleep: a body names the model, so the door
    could not. Raises RateLimited, ModelNotFound and what waking raises."""
    scope.setdefault("state", {})["model"] = model
    if context.rates.limits(model):
        await context.rates.take(model, scope, headers)
    await wake(context, model, headers)


async def pipeline_of(
    context: Context, model: str, kind: type[P], what: str, scope: Scope, headers: dict[bytes, bytes]
) -> P:
    """The model's pipeline, the model awake and the request counted for rates.

    Raises InvalidInput for a model of another task; RateLimited, ModelNotFound, WarmingUp, and what waking raises.
    """
    await awake(context, model, scope, headers)
    context.catalog.version(model)
    pipeline = context.catalog.model(model).pipeline
    if pipeline is None:
        raise WarmingUp(f"model '{model}' is being loaded", retry_after_s=2)
    if not isinstance(pipeline, kind):
        told = f"model '{model}' does not make {what}: its task is '{pipeline.task}'"
        raise InvalidInput(told, param="model")
    return pipeline


async def send_told(
    context: Context,
    caller: GateCaller,
    texts: Sequence[Encoded],
    written: bytes,
    request_id: str,
    send: Send,
    extra: Headers,
) -> None:
    """Send an answer's JSON, with the headers of its runs and of the texts that were cut."""
    answer: Headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode()), *extra]
    answer += timing(caller.tickets, caller.spec, context.gate.clock()) + _told_truncated(texts)
    await send_body(send, [written], answer)


def _told_truncated(texts: Sequence[Encoded]) -> Headers:
    """``X-Truncated``: how many texts were cut; nothing where none was."""
    cut = sum(text.whole > len(text.ids) for text in texts)
    return [(b"x-truncated", b"%d" % cut)] if cut else []
