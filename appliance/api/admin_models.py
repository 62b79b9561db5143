"""Models by HTTP, for the person who runs the appliance: add one, pin one."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response

from appliance.api.body import Unread, drain
from appliance.api.context import Context
from appliance.api.oip_meta import json
from appliance.errors import ApplianceError, Cancelled, InputTooLarge, InvalidInput, Paused, UnsupportedMedia
from appliance.serving.adding import Added, Adding

_BODY = {
    "required": True,
    "content": {
        kind: {"schema": {"type": "string", "format": "binary"}}
        for kind in ("application/octet-stream", "application/zip")
    },
}


def router(context: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["Models"])
    adding = Adding(context.settings, context.catalog)

    @routes.post(
        "/api/models", summary="Add a model: its file, or a zip of its folder", openapi_extra={"requestBody": _BODY}
    )
    async def add(request: Request, name: Annotated[str, Query()] = "") -> Response:
        """It is loaded on the CPU in a process of its own first. If that fails, nothing is left of it, and the answer
        says why. One at a time."""
        body = _Pieces(request, context.settings.max_model_bytes, context.settings.body_timeout_ms / 1000)
        try:
            size = body.size()
            if context.gate.draining:
                raise Paused("the appliance is shutting down", retry_after_s=5)
            return json(_told(await adding.add(name, size, body.read())))
        except Cancelled:
            raise
        except ApplianceError as error:
            if body.ended:
                raise
            await drain(request.receive)
            raise Unread(error) from None

    @routes.post("/api/models/{model}/pin", summary="Once loaded, the model makes room for no other one")
    async def pin(model: str) -> Response:
        """Also after a restart. Its own unload is still possible."""
        await context.catalog.pin(model, True)
        return json({"name": model, "pinned": True})

    @routes.post("/api/models/{model}/unpin", summary="The model may leave again when others need its room")
    async def unpin(model: str) -> Response:
        """Also when it is not pinned."""
        await context.catalog.pin(model, False)
        return json({"name": model, "pinned": False})

    return routes


def _told(added: Added) -> dict[str, Any]:
    return {
        "name": added.name,
        "served": added.served,
        "reason": added.reason,
        "versions": [
            {"version": v.version, "load_ms": round(v.load_ms, 1), "notes": msgspec.to_builtins(v.notes)}
            for v in added.versions
        ],
    }


class _Pieces:
    """A body that is too large to be held: in pieces, each in time, all together within ``limit`` bytes."""

    def __init__(self, request: Request, limit: int, wait_s: float) -> None:
        self._request = request
        self._limit = limit
        self._wait_s = wait_s
        self.ended = False

    def size(self) -> int | None:
        """What the head says. Raises InputTooLarge, UnsupportedMedia."""
        headers = self._request.headers
        if headers.get("content-encoding", "identity").strip().lower() not in ("identity", ""):
            raise UnsupportedMedia("a model is sent as it is, without Content-Encoding", param="Content-Encoding")
        declared = headers.get("content-length")
        size = int(declared) if declared is not None else None
        self._check(size or 0)
        return size

    async def read(self) -> AsyncIterator[bytes]:
        """Raises InputTooLarge, InvalidInput for one that stops coming, Cancelled."""
        received = 0
        while not self.ended:
            try:
                async with asyncio.timeout(self._wait_s):
                    message = await self._request.receive()
            except TimeoutError:
                raise InvalidInput(f"nothing more of the body came for {self._wait_s:g} s", param="body") from None
            if message["type"] == "http.disconnect":
                raise Cancelled("the caller went away while sending the model")
            piece: bytes = message.get("body", b"")
            received += len(piece)
            self._check(received)
            self.ended = not message.get("more_body")
            yield piece

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise InputTooLarge(f"a model of {size} bytes or more, the limit is {self._limit}", param="body")
