"""Health, state, events and metrics: for scripts, the tray, the dashboard and Prometheus."""

import asyncio
import ipaddress
import os
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
import structlog
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from appliance.api.context import Context
from appliance.api.oip_meta import json
from appliance.errors import Forbidden, NotFound

log = structlog.get_logger("api")

_STATUS_EVERY_S = 1.0
_KEEP_ALIVE_S = 15.0
_DRAIN_MS = 10_000
_LONGEST_DRAIN_MS = 600_000


def router(context: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["Health and state"])

    @routes.get("/health", summary="The process answers; never touches the device")
    async def health() -> Response:
        return json({"status": "ok"})

    @routes.get("/ready", summary="Every model that must be loaded is warm; else 503 with what is missing")
    async def ready() -> Response:
        catalog = context.catalog
        missing = {
            m.name: m.error or "being loaded"
            for m in catalog.models.values()
            if m.wanted and (not m.settled or (m.folder.config.required and not catalog.model_ready(m.name)))
        }
        is_ready = catalog.ready() and not context.gate.draining
        return json({"ready": is_ready, "missing": missing}, 200 if is_ready else 503)

    @routes.get("/api/status", summary="Everything about the appliance's state")
    async def status() -> Response:
        return json(context.status())

    @routes.get("/api/history", summary="The last fifteen minutes: memory, queue, rate, latency, errors")
    async def history(since: float = 0.0) -> Response:
        """A sample every five seconds; ``since`` (Unix seconds) leaves out what the caller has already."""
        return json(context.status.history.columns(since))

    @routes.post("/api/pause", summary="Requests wait in the queue from now on; those that run go on")
    async def pause() -> Response:
        """Also when it is paused already. Waits are bounded as ever: a full queue is 429, a long wait 503."""
        context.gate.pause()
        log.info("paused")
        return json({"paused": True})

    @routes.post("/api/resume", summary="Requests that wait go on")
    async def resume() -> Response:
        """Also when it is not paused."""
        context.gate.resume()
        log.info("resumed")
        return json({"paused": False})

    @routes.post("/api/engine/restart", summary="All engines end and start anew; requests wait, and none is lost")
    async def restart() -> Response:
        """Answers at once. What runs is run again by the next engines, once."""
        context.restart("asked for by POST /api/engine/restart")
        return json({"restarting": True})

    @routes.post("/api/shutdown", summary="New requests are refused, those that are here answered, then it ends")
    async def shutdown(
        request: Request,
        timeout_ms: Annotated[int, Query(ge=0, le=_LONGEST_DRAIN_MS)] = _DRAIN_MS,
    ) -> Response:
        """Answers at once. What is here has ``timeout_ms``; what is left then gets 503 ``paused``. Only from this
        machine. Called again, it only sets the time anew."""
        if not from_here(request):
            raise Forbidden("only programs of this machine may end the appliance")
        gate = context.gate
        context.drain.begin(timeout_ms / 1000)
        found = {"stopping": True, "pid": os.getpid(), "timeout_ms": timeout_ms}
        return json({**found, "waiting": gate.waiting, "running": gate.running})

    @routes.get("/api/requests/{request_id}", summary="Where a request stands: state, place in the queue, wait")
    async def request_state(request_id: str) -> Response:
        ticket = context.gate.requests.get(request_id)
        if ticket is None:
            raise NotFound(f"no request '{request_id[:128]}' is known (the newest 1024 are kept)", param="request_id")
        queue = context.gate.queues.get((ticket.model, ticket.version))
        place = queue.waiting.place(ticket) if queue else 0
        wait = context.gate.rate.wait_s(place)
        now = context.gate.clock()
        return json(
            {
                "id": ticket.id,
                "model": ticket.model,
                "version": ticket.version,
                "state": ticket.state,
                "position": place,
                "estimated_wait_ms": round(wait * 1000) if wait is not None and place else None,
                "age_ms": round((now - ticket.created) * 1000, 3),
                "run_ms": round(ticket.run_ns / 1e6, 3) if ticket.run_ns else None,
                "error": {"code": ticket.error.code, "message": ticket.error.message} if ticket.error else None,
            }
        )

    @routes.get("/api/events", summary="Server-sent events: `status` (when it changed), `model`, `engine`, `power`")
    async def events() -> Response:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(_stream(context), media_type="text/event-stream", headers=headers)

    @routes.get("/metrics", summary="Prometheus' text format")
    async def metrics() -> Response:
        text = await asyncio.to_thread(context.metrics.look())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def from_here(request: Request) -> bool:
    """Whether the caller is on this machine: on loopback, or on the very address that it called."""
    caller, called = request.client, request.scope.get("server")
    if caller is None:
        return False
    try:
        return ipaddress.ip_address(caller.host).is_loopback or (called is not None and caller.host == called[0])
    except ValueError:
        return False


async def _stream(context: Context) -> AsyncIterator[bytes]:
    queue = context.events.subscribe()
    last, quiet, keys = b"", 0.0, context.keys.generation
    try:
        while keys == context.keys.generation:  # the caller's key may be one of those that went: it has to ask anew
            status = msgspec.json.encode(context.status())
            if status != last:
                last, quiet = status, 0.0
                yield b"event: status\ndata: " + status + b"\n\n"
            try:
                event = await asyncio.wait_for(queue.get(), _STATUS_EVERY_S)
            except TimeoutError:
                quiet += _STATUS_EVERY_S
                if quiet >= _KEEP_ALIVE_S:
                    quiet = 0.0
                    yield b": still here\n\n"
                continue
            if event is None or keys != context.keys.generation:
                return
            yield b"event: " + event.kind.encode() + b"\ndata: " + msgspec.json.encode(event.data) + b"\n\n"
    finally:
        context.events.unsubscribe(queue)
