"""The one map of errors to HTTP. Three shapes: the protocol's (``/v2``), OpenAI's (``/v1``), and the own one."""

import math

import msgspec

from appliance.api.body import Receive, Send, drain
from appliance.errors import ApplianceError, InternalError, TryLater

Headers = list[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")


def body_of(error: ApplianceError, path: str, request_id: str) -> bytes:
    """The error's JSON in the shape of the surface that ``path`` belongs to."""
    if path.startswith("/v2"):
        return msgspec.json.encode({"error": error.message, "code": error.code})
    if path.startswith("/v1"):
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        inner = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
        return msgspec.json.encode({"error": inner})
    wait = round(error.retry_after_s * 1000) if isinstance(error, TryLater) else None
    return msgspec.json.encode(
        {
            "error": {
                "code": error.code,
                "message": error.message,
                "param": error.param,
                "request_id": request_id,
                "retry_after_ms": wait,
            }
        }
    )


def headers_of(error: ApplianceError, request_id: str) -> Headers:
    """With ``Retry-After`` where it makes sense."""
    headers: Headers = [_JSON, (b"x-request-id", request_id.encode("latin-1"))]
    if isinstance(error, TryLater):
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    return headers


def rendered(error: ApplianceError, path: str, request_id: str) -> tuple[Headers, bytes]:
    """Headers (without the body's length) and body of an answer that is an error."""
    return headers_of(error, request_id), body_of(error, path, request_id)


def internal(request_id: str) -> InternalError:
    """What a caller is told of a fault of the appliance itself."""
    return InternalError(f"internal error; the log has it under request id {request_id}")


async def send_error(
    send: Send, error: ApplianceError, path: str, request_id: str, extra: Headers | None = None
) -> None:
    """Answer with an error."""
    body = await _start(send, error, path, request_id, extra)
    await send({"type": "http.response.body", "body": body})


async def send_unread(
    receive: Receive, send: Send, error: ApplianceError, path: str, request_id: str, extra: Headers | None = None
) -> None:
    """Answer before the body was read to its end, and let the connection go once the client could see it."""
    body = await _start(send, error, path, request_id, [CLOSE, *(extra or ())])
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await drain(receive)
    await send({"type": "http.response.body", "body": b""})


async def _start(send: Send, error: ApplianceError, path: str, request_id: str, extra: Headers | None) -> bytes:
    own, body = rendered(error, path, request_id)
    headers = [*own, (b"content-length", b"%d" % len(body)), *(extra or ())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    return body
