"""Sending answers from plain ASGI endpoints."""

import asyncio
import zlib
from collections.abc import Iterable

from appliance.api.body import Send
from appliance.gate.ticket import Ticket
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Buffer

Headers = list[tuple[bytes, bytes]]

_COMPRESS_FROM = 1024
_INLINE = 128 * 1024
_WBITS = {b"gzip": 31, b"deflate": 15}


async def send_body(send: Send, pieces: Iterable[Buffer], headers: Headers, status: int = 200) -> None:
    """Answer with the pieces as one body (joined: one write is cheaper than several events)."""
    body = b"".join(pieces)
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def packs(accept: bytes | None) -> int | None:
    """zlib's window bits of the one coding asked for; None: send it plain."""
    return _WBITS.get(accept.strip().lower()) if accept else None


async def compressed(pieces: list[Buffer], accept: bytes | None, headers: Headers) -> list[Buffer]:
    """Compress where the client asks for exactly one coding, ``gzip`` or ``deflate``.

    Clients that list several by habit (browsers, httpx) get it plain: over loopback compressing only costs.
    """
    wbits = packs(accept)
    if wbits is None or accept is None:
        return pieces
    size = sum(memoryview(p).nbytes for p in pieces)
    if size < _COMPRESS_FROM:
        return pieces
    headers.append((b"content-encoding", accept.strip().lower()))
    return _pack(pieces, wbits) if size <= _INLINE else await asyncio.to_thread(_pack, pieces, wbits)


def _pack(pieces: list[Buffer], wbits: int) -> list[Buffer]:
    engine = zlib.compressobj(1, zlib.DEFLATED, wbits)
    packed: list[Buffer] = [engine.compress(piece) for piece in pieces]
    return [*packed, engine.flush()]


def device(spec: ModelSpec) -> bytes:
    """``cuda:0``, ``cpu``; with the reason where that is not what was asked for."""
    if spec.degraded is None:
        return spec.device.encode()
    reason = spec.degraded.encode("ascii", "replace").replace(b'"', b"'").replace(b"\r", b" ").replace(b"\n", b" ")
    return spec.device.encode() + b'; reason="' + reason + b'"'


def timing(tickets: list[Ticket], spec: ModelSpec | None, now: float) -> Headers:
    """``Server-Timing`` (milliseconds), ``X-Queue-Position``, ``X-Device`` of the runs behind one answer."""
    if not tickets:
        return [(b"x-device", device(spec))] if spec is not None else []
    first = tickets[0]
    ran_on = tickets[-1].device
    runs_on = []
    if spec is not None:  # another copy of the model may have run it
        here = spec.device == ran_on or not ran_on
        runs_on.append((b"x-device", device(spec) if here else ran_on.encode()))
    queued = sum(t.started - t.created for t in tickets) * 1000
    infer = sum(t.run_ns for t in tickets) / 1e6
    total = (now - first.created) * 1000
    return [
        (b"server-timing", b"queue;dur=%.3f, infer;dur=%.3f, total;dur=%.3f" % (queued, infer, total)),
        (b"x-queue-position", b"%d" % first.position),
        *runs_on,
    ]
