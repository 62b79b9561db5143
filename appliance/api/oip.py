"""``POST /v2/models/{m}[/versions/{v}]/infer``: the hot route, a plain ASGI endpoint."""

from typing import NamedTuple

from appliance.api import oip_answer, oip_codec
from appliance.api.body import Receive, Send
from appliance.api.context import Context
from appliance.api.disconnect import Disconnect
from appliance.api.oip_plan import InferRequest
from appliance.api.respond import Headers, compressed, send_body, timing
from appliance.errors import InvalidInput
from appliance.gate.limits import shortened
from appliance.gate.model_queue import ModelQueue
from appliance.gate.ticket import Outputs, Ticket
from appliance.models.spec import ModelSpec, Timeouts
from appliance.models.tensors import Buffer

_JSON = (b"content-type", b"application/json")
_BINARY = (b"content-type", b"application/octet-stream")


class Admitted(NamedTuple):
    """A request that the gate has taken, and what its answer is made from."""

    queue: ModelQueue
    ticket: Ticket
    request: InferRequest
    spec: ModelSpec


class Infer:
    """Bytes → tensors → gate → tensors → bytes. ``__call__`` is ASGI's way; the short one (``hot.py``) uses the two
    halves of it, ``admit`` and ``answer``."""

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
        context = self._context
        async with context.body(headers, receive) as body:
            await wake(context, model, headers)
            admitted = self.admit(model, version, headers, request_id, body)
            with Disconnect(receive):
                outputs = await admitted.queue.result(admitted.ticket)
            pieces, answer = self.answer(admitted, outputs)
            answer += extra
            pieces = await compressed(pieces, headers.get(b"accept-encoding"), answer)
            await send_body(send, pieces, answer)

    def admit(
        self,
        model: str,
        version: str | None,
        headers: dict[bytes, bytes],
        request_id: str,
        body: bytes | bytearray | memoryview,
    ) -> Admitted:
        """Check the request and give it to the gate. Raises ApplianceError."""
        context = self._context
        served = context.catalog.version(model, version)
        spec = served.spec
        if spec is None:
            raise InvalidInput(f"model '{model}' is a pipeline; use POST /predict/{model}", param="model")
        length = headers.get(b"inference-header-content-length")
        request = oip_codec.parse(body, length, spec, context.settings.max_elements)
        queue = context.gate.queue(model, served.file.version)
        queue_s, run_s = deadlines(context, spec, headers, request.timeout_ms)
        ticket = queue.submit(
            request_id,
            request.inputs,
            request.names,
            priority=priority(headers, request.priority),
            queue_s=queue_s,
            run_s=run_s,
        )
        return Admitted(queue, ticket, request, spec)

    def answer(self, admitted: Admitted, outputs: Outputs) -> tuple[list[Buffer], Headers]:
        """Body and headers. Raises ApplianceError for what cannot be said in the form asked for."""
        _, ticket, request, spec = admitted
        pieces, json_length = oip_answer.respond(request, spec, outputs)
        headers = [_JSON if json_length is None else _BINARY, (b"x-request-id", ticket.id.encode())]
        headers += timing([ticket], spec, self._context.gate.clock())
        if json_length is not None:
            headers.append((b"inference-header-content-length", b"%d" % json_length))
        return pieces, headers


async def wake(context: Context, model: str, headers: dict[bytes, bytes]) -> None:
    """Load a model that is asleep, within the request's queue deadline. Raises what ``Catalog.wake`` does."""
    found = context.catalog.models.get(model)
    if found is not None and found.asleep:
        own = found.folder.config.timeouts
        await context.catalog.wake(model, deadlines(context, None, headers, None, own)[0])


def deadlines(
    context: Context,
    spec: ModelSpec | None,
    headers: dict[bytes, bytes],
    timeout_ms: float | None,
    timeouts: Timeouts | None = None,
) -> tuple[float, float]:
    """(queue, run) in seconds: server < model's own < the request's wish, which can only shorten. ``timeouts``: the
    model's own, where it has no spec yet.

    ``X-Timeout-Ms`` bounds both; the protocol's ``timeout`` bounds the queue, as in Triton.
    """
    gate_limits = context.gate.limits
    timeouts = spec.config.timeouts if spec else timeouts
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
