"""``POST /v2/models/{m}[/versions/{v}]/infer``: the hot route, a plain ASGI endpoint."""

from appliance.api import oip_codec
from appliance.api.body import Body, Receive, Send
from appliance.api.context import Context
from appliance.api.disconnect import Disconnect
from appliance.api.respond import Headers, compressed, send_body, timing
from appliance.errors import InvalidInput
from appliance.gate.limits import shortened
from appliance.models.spec import ModelSpec


class Infer:
    """Bytes → tensors → gate → tensors → bytes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __call__(
        self,
        model: str,
        version: str | None,
        headers: dict[bytes, bytes],
        request_id: str,
        receive: Receive,
        send: Send,
        extra: Headers,
    ) -> None:
        """Answer one request. Raises ApplianceError for the caller to answer."""
        context, settings = self._context, self._context.settings
        wait_s = settings.body_timeout_ms / 1000
        async with Body(headers, receive, context.bodies, settings.max_body_bytes, wait_s) as body:
            served = context.catalog.version(model, version)
            if served.spec is None:
                raise InvalidInput(f"model '{model}' is a pipeline; use POST /predict/{model}", param="model")
            spec = served.spec
            request = oip_codec.parse(
                body, headers.get(b"inference-header-content-length"), spec, settings.max_elements
            )
            queue = context.gate.queue(model, served.file.version)
            queue_s, run_s = deadlines(context, spec, headers, request.timeout_ms)
            ticket = queue.submit(
                request_id,
                request.inputs,
                tuple(w.name for w in request.outputs),
                priority=priority(headers, request.priority),
                queue_s=queue_s,
                run_s=run_s,
            )
            with Disconnect(receive):
                outputs = await queue.result(ticket)
            pieces, json_length = oip_codec.respond(request, spec, outputs)
            kind = b"application/json" if json_length is None else b"application/octet-stream"
            answer: Headers = [(b"content-type", kind), (b"x-request-id", request_id.encode()), *extra]
            answer += timing([ticket], spec, context.gate.clock())
            if json_length is not None:
                answer.append((b"inference-header-content-length", b"%d" % json_length))
            pieces = await compressed(pieces, headers.get(b"accept-encoding"), answer)
            await send_body(send, pieces, answer)


def deadlines(
    context: Context, spec: ModelSpec | None, headers: dict[bytes, bytes], timeout_ms: float | None
) -> tuple[float, float]:
    """(queue, run) in seconds: server < model's own < the request's wish, which can only shorten.

    ``X-Timeout-Ms`` bounds both; the protocol's ``timeout`` bounds the queue, as in Triton.
    """
    gate_limits = context.gate.limits
    timeouts = spec.config.timeouts if spec else None
    queue_s = ((timeouts and timeouts.queue_ms) or gate_limits.queue_timeout_ms) / 1000
    run_s = ((timeouts and timeouts.run_ms) or gate_limits.run_timeout_ms) / 1000
    wish = headers.get(b"x-timeout-ms")
    if wish is not None:
        if not wish.isdigit() or len(wish) > 9 or not int(wish):
            raise InvalidInput("X-Timeout-Ms must be a whole number from 1 to 999999999", param="X-Timeout-Ms")
        queue_s, run_s = shortened(queue_s, int(wish)), shortened(run_s, int(wish))
    return shortened(queue_s, timeout_ms), run_s


def priority(headers: dict[bytes, bytes], default: int) -> int:
    """``X-Priority``, else the body's. The lower number first."""
    wish = headers.get(b"x-priority")
    if wish is None:
        return default
    if not wish.isdigit() or len(wish) > 9:
        raise InvalidInput("X-Priority must be a whole number from 0 to 999999999", param="X-Priority")
    return int(wish) or default
