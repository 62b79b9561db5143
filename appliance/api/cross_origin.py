"""The headers of every answer, and those for pages of another origin that may call."""

from typing import Any

from appliance.api.body import Send
from appliance.api.respond import Headers

# What a page of an allowed origin may read of an answer beside the body.
_EXPOSED = (
    b"inference-header-content-length, retry-after, server-timing, x-device, x-queue-position, x-request-id, "
    b"x-truncated"
)


def allowed(origin: str) -> Headers:
    """For an answer to a page of an allowed origin."""
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"Origin"),
    ]


def with_headers(send: Send, request_id: str, extra: Headers) -> Send:
    """Adds the headers that every answer has."""

    async def sender(message: Any) -> None:
        if message["type"] == "http.response.start":
            more = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff"), *extra]
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return sender


async def send_preflight(send: Send, origin: str) -> None:
    """Answer a browser's question whether a page of an allowed origin may call."""
    headers = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", b"GET, POST"),
        (
            b"access-control-allow-headers",
            b"authorization, content-type, idempotency-key, x-api-key, x-priority, "
            b"x-request-id, x-timeout-ms, inference-header-content-length",
        ),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
