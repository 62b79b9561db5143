"""uvicorn's HTTP/1.1 protocol with the bounds it lacks: size and time of a request's head, number of connections.

What goes wrong before there is a request is answered in the appliance's own form too.
"""

import asyncio
import math
from http import HTTPStatus
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from appliance.api.errors import body_of
from appliance.api.hot import ShortWay, Visit
from appliance.errors import ApplianceError, HeadTooLarge, InvalidInput, Overloaded, TryLater

MAX_HEAD = 64 * 1024
HEAD_S = 10.0
_VISIT_S = 1.0  # a body that takes longer is read in ASGI's way, which has a deadline for it


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A head of over 64 KiB gets 431, one that takes longer than 10 s gets 400, a connection over
    ``max_connections`` gets 503; all three are closed."""

    max_connections: ClassVar[int] = 2048
    _in_head = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _visit: Visit | None = None  # a request that goes the short way, while its body comes
    _visit_timer: asyncio.TimerHandle | None = None
    _idle_timer: asyncio.TimerHandle | None = None
    _last_read = 0.0
    _between = True  # the parser expects the first byte of a request
    _whole: bytes | None = None  # what is being read, if it begins with a request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._short: ShortWay | None = getattr(self.config.app, "short", None)
        if len(self.connections) > self.max_connections:
            self._refuse(Overloaded(f"{self.max_connections} connections are open, no more are taken"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_over()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._visit is not None and self._short is not None:
            self._short.leave(self._visit)
        self._visit_is_over()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._visit is not None:
            self._take_asgi_way()  # whose answer then tells why
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if not isinstance(data, bytes):
            data = bytes(data)  # Windows' loop hands out bytearrays, which are no keys of what is known
        self._last_read = self.loop.time()
        if self._between and self._takes_short():
            exchange = self._short.again(data, self)  # type: ignore[union-attr]  # _takes_short has looked
            if exchange is not None:
                self._unset_keepalive_if_required()
                self.cycle = exchange  # type: ignore[assignment]  # it has what is used of a cycle
                return
            self._whole = data  # unless a second request follows in it
        super().data_received(data)
        self._whole = None  # between two requests a connection holds nothing
        if self._visit is not None and self._visit_timer is None:
            self._visit_timer = self.loop.call_later(_VISIT_S, self._take_asgi_way)
        if not self._in_head:
            return
        # The usual head comes in one piece and never gets here.
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD:
            self._refuse(HeadTooLarge(f"the request's head is over {MAX_HEAD} bytes", param="headers"))
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._late)

    def on_message_begin(self) -> None:
        self._between = False
        self._in_head, self._head_bytes = True, 0
        # The scope is made when it is known that there is a need for one.
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        self._head_is_over()
        short = self._short
        if (
            short is not None
            and self._takes_short()
            and not self.expect_100_continue
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and not self.parser.should_upgrade()
        ):
            self._visit = short.welcome(self.url, dict(self.headers))
        if self._visit is None:
            self._begin_asgi()

    def on_body(self, body: bytes) -> None:
        if self._visit is None:
            super().on_body(body)
        else:
            self._visit.add(body)

    def _takes_short(self) -> bool:
        """The connection is free for a request on the short way."""
        before = self.cycle
        return self._short is not None and (before is None or before.response_complete) and not self.flow.write_paused

    def on_message_complete(self) -> None:
        visit, short = self._visit, self._short
        self._between = True
        if visit is None or short is None:
            super().on_message_complete()
            return
        keep_alive, whole = self.parser.should_keep_alive(), self._whole
        exchange = short.begin(visit, self, keep_alive)
        if exchange is not None and whole is not None:
            short.remember(whole, visit, keep_alive)
        if exchange is None:
            self._take_asgi_way()
            super().on_message_complete()
            return
        self._visit_is_over()
        self.cycle = exchange  # type: ignore[assignment]  # it has what is used of a cycle

    def on_short_complete(self) -> None:
        """``on_response_complete`` with one timer for many requests."""
        if self.pipeline or self.transport.is_closing():
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._idle)

    def _idle(self) -> None:
        self._idle_timer = None
        left = self._last_read + self.timeout_keep_alive - self.loop.time()
        if self.cycle is None or not self.cycle.response_complete or left > 0.01:
            self._idle_timer = self.loop.call_later(max(left, 1.0), self._idle)
        else:
            self.timeout_keep_alive_handler()

    def _visit_is_over(self) -> None:
        self._visit = None
        if self._visit_timer is not None:
            self._visit_timer.cancel()
            self._visit_timer = None

    def _take_asgi_way(self) -> None:
        """Leave the short way, with what there is of the body."""
        visit, short = self._visit, self._short
        self._visit_is_over()
        if visit is None or short is None:
            return
        short.leave(visit)
        if self.transport.is_closing():
            return
        self._begin_asgi()
        if body := bytes(visit.body()):
            super().on_body(body)

    def _begin_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.headers.extend(headers)
        self.url, self.expect_100_continue = url, expects
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
