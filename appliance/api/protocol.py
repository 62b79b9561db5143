"""uvicorn's HTTP/1.1 protocol with the bounds it lacks: size and time of a request's head, number of connections.

What goes wrong before there is a request is answered in the appliance's own form too.
"""

import asyncio
import math
from http import HTTPStatus
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from appliance.api.errors import body_of
from appliance.errors import ApplianceError, HeadTooLarge, InvalidInput, Overloaded, TryLater

MAX_HEAD = 64 * 1024
HEAD_S = 10.0


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A head of over 64 KiB gets 431, one that takes longer than 10 s gets 400, a connection over
    ``max_connections`` gets 503; all three are closed."""

    max_connections: ClassVar[int] = 2048
    _in_head = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._refuse(Overloaded(f"{self.max_connections} connections are open, no more are taken"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_over()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self._in_head:
            return
        # The usual head comes in one piece and never gets here.
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD:
            self._refuse(HeadTooLarge(f"the request's head is over {MAX_HEAD} bytes", param="headers"))
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._late)

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_is_over()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidInput("this is not a valid HTTP/1.1 request"))

    def _late(self) -> None:
        self._head_timer = None
        self._refuse(InvalidInput(f"the request's head did not arrive within {HEAD_S:g} s", param="headers"))

    def _head_is_over(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, error: ApplianceError) -> None:
        self._head_is_over()
        body = body_of(error, "", "")
        retry = f"retry-after: {math.ceil(error.retry_after_s)}\r\n" if isinstance(error, TryLater) else ""
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def bounded(max_connections: int) -> type[BoundedProtocol]:
    """The protocol class with this limit: uvicorn makes its instances itself."""
    return type("BoundedProtocol", (BoundedProtocol,), {"max_connections": max_connections})
