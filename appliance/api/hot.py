"""The short way of an inference: the request is read, admitted and answered without a task.

ASGI's way (a task, messages, a body copied piece by piece, a watch for the caller's leaving) costs several times
what a small model's run does. The short way takes the plain case alone, with the same functions; whatever is not
plain, and everything that is refused before the gate has it, goes ASGI's way, which alone knows how to refuse.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import structlog

from appliance.api.context import Context
from appliance.api.errors import internal, rendered
from appliance.api.guard import Guard
from appliance.api.oip import Admitted, Infer
from appliance.api.respond import Headers, packs
from appliance.errors import ApplianceError, Cancelled
from appliance.gate.ticket import Outputs
from appliance.models.tensors import Buffer

log = structlog.get_logger("api")

_NOT_PLAIN = frozenset({b"origin", b"idempotency-key", b"content-encoding", b"transfer-encoding"})
_TARGETS = 1024
_HEADS = 256
_HEAD = 2048  # bytes; longer ones are not remembered
_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_LAST = b"connection: close\r\ncontent-length: %d\r\n\r\n"


class Target(NamedTuple):
    """What an inference route names."""

    path: str
    model: str
    version: str | None


class Head(NamedTuple):
    """A request's head that went the short way before, checked and taken apart. ``size``: of the body, in bytes."""

    target: Target
    headers: dict[bytes, bytes]
    size: int
    keep_alive: bool


class Connection(Protocol):
    """What an exchange needs of the connection that it is on."""

    transport: Any
    server_state: Any
    loop: asyncio.AbstractEventLoop

    def on_short_complete(self) -> None: ...


class ShortWay:
    """Decides what is plain, and begins it. ``request_id`` makes the id of a request from its headers.

    What it remembers of heads holds until ``forget``: for as long as keys, settings and models stay as they are.
    """

    def __init__(
        self, context: Context, guard: Guard, infer: Infer, request_id: Callable[[dict[bytes, bytes]], str]
    ) -> None:
        self.context = context
        self.infer = infer
        self._guard = guard
        self._request_id = request_id
        self._targets: dict[bytes, Target | None] = {}
        self._heads: dict[bytes, Head] = {}
        self._generation = 0
        self._server_headers: Headers | None = None
        self._server_lines = b""

    def welcome(self, url: bytes, headers: dict[bytes, bytes]) -> "Visit | None":
        """Look at a request's head: None if it has to go ASGI's way, else its body may come and has its bytes."""
        target = self._target(url)
        length = headers.get(b"content-length", b"")
        if target is None or not length.isdigit() or not _NOT_PLAIN.isdisjoint(headers):
            return None
        context, size = self.context, int(length)
        if size > context.settings.max_body_bytes or context.gate.draining or context.rates.limits(target.model):
            return None
        if packs(headers.get(b"accept-encoding")):
            return None
        try:
            self._guard.check(target.path, "POST", headers)
            context.bodies.take(size)
        except ApplianceError:
            return None
        return Visit(target, headers, size, self._generation)

    def forget(self) -> None:
        """Who may call, how much, or what there is to call may have changed: every head is looked at anew."""
        self._generation += 1  # also those whose body is still coming
        self._heads.clear()

    def leave(self, visit: "Visit") -> None:
        """The visit goes ASGI's way, or its caller has gone: its bytes count no more."""
        self.context.bodies.give(visit.size)

    def begin(self, visit: "Visit", connection: Connection, keep_alive: bool) -> "Exchange | None":
        """Give the request to the gate. None, and nothing has happened, if it has to go ASGI's way."""
        return self._begin(Head(visit.target, visit.headers, visit.size, keep_alive), visit.body(), connection)

    def remember(self, data: bytes, visit: "Visit", keep_alive: bool) -> None:
        """``data`` began with a request that was given to the gate. A client's next one mostly begins with the
        very same bytes, whose meaning and rights are known then."""
        length = data.find(b"\r\n\r\n") + 4
        if length > _HEAD or len(data) != length + visit.size or b"x-request-id" in visit.headers:
            return
        if visit.generation != self._generation:
            return
        if len(self._heads) >= _HEADS:
            self._heads.clear()
        self._heads[data[:length]] = Head(visit.target, visit.headers, visit.size, keep_alive)

    def again(self, data: bytes, connection: Connection) -> "Exchange | None":
        """Begin a request that is all of ``data``, if its head is known. None, and nothing has happened, if it is
        not, or if the request has to go ASGI's way."""
        length = data.find(b"\r\n\r\n") + 4
        head = self._heads.get(data[:length])
        context = self.context
        if head is None or len(data) != length + head.size or context.gate.draining:
            return None
        if context.rates.limits(head.target.model):  # its folder may say so before ``forget`` is called
            return None
        try:
            context.bodies.take(head.size)
        except ApplianceError:
            return None
        exchange = self._begin(head, memoryview(data)[length:], connection)
        if exchange is None:
            context.bodies.give(head.size)
        return exchange

    def _begin(self, head: Head, body: bytes | bytearray | memoryview, connection: Connection) -> "Exchange | None":
        target, headers = head.target, head.headers
        try:
            request_id = self._request_id(headers)
            admitted = self.infer.admit(target.model, target.version, headers, request_id, body)
        except Exception:  # noqa: BLE001 - ASGI's way meets it too, and tells of it
            return None
        return Exchange(self, admitted, target.path, connection, head.keep_alive, head.size)

    def head(self, status: int, server_headers: Headers) -> bytes:
        """The first lines of an answer. uvicorn makes a new list of ``server_headers`` every second."""
        if server_headers is not self._server_headers:
            self._server_headers = server_headers
            self._server_lines = b"".join([b"%s: %s\r\n" % header for header in server_headers])
        return _LINES[status] + self._server_lines

    def _target(self, url: bytes) -> Target | None:
        try:
            return self._targets[url]
        except KeyError:
            target = _target(url)
            if len(url) <= 256:
                if len(self._targets) >= _TARGETS:
                    self._targets.clear()
                self._targets[url] = target
            return target


class Visit:
    """A request on the short way whose body is coming: it is put in its place as it comes.

    ``size``: the bytes that are counted for it; ``generation``: of what was known when its head was looked at.
    """

    __slots__ = ("_at", "_body", "generation", "headers", "size", "target")

    def __init__(self, target: Target, headers: dict[bytes, bytes], size: int, generation: int = 0) -> None:
        self.target = target
        self.headers = headers
        self.size = size
        self.generation = generation
        self._body: bytes | bytearray = b""
        self._at = 0

    def add(self, piece: bytes) -> None:
        """The next bytes; the parser sees to it that they are not too many."""
        if not self._at and len(piece) == self.size:
            self._body = piece
        else:
            if not self._at:
                self._body = bytearray(self.size)
            assert isinstance(self._body, bytearray)
            self._body[self._at : self._at + len(piece)] = piece
        self._at += len(piece)

    def body(self) -> bytes | bytearray:
        """All of it, or what has come."""
        return self._body if self._at == self.size else self._body[: self._at]


class Exchange:
    """One request on the short way. It stands where uvicorn keeps a request's cycle, and has what uvicorn uses of it:
    ``keep_alive`` and ``disconnected``, which uvicorn sets, ``response_complete``, and ``message_event.set()``."""

    __slots__ = (
        "_admitted",
        "_connection",
        "_held",
        "_path",
        "_way",
        "disconnected",
        "keep_alive",
        "response_complete",
    )

    def __init__(
        self, way: ShortWay, admitted: Admitted, path: str, connection: Connection, keep_alive: bool, held: int
    ) -> None:
        self._way = way
        self._admitted = admitted
        self._path = path
        self._connection = connection
        self._held = held
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        admitted.ticket.hand_to(self._ended, connection.loop)

    @property
    def message_event(self) -> "Exchange":
        return self

    def set(self) -> None:
        """Uvicorn's news; the one that matters is that the caller has left."""
        if self.disconnected and not self.response_complete:
            self._admitted.queue.cancel(self._admitted.ticket)

    def _ended(self, outcome: Outputs | ApplianceError) -> None:
        """The gate's answer; called once, by the loop."""
        admitted = self._admitted
        del self._admitted  # the connection keeps the exchange until its next request, but not the body
        self.response_complete = True
        self._way.context.bodies.give(self._held)
        if not self.disconnected and not self._connection.transport.is_closing():
            self._write(*self._answer(admitted, outcome))

    def _answer(self, admitted: Admitted, outcome: Outputs | ApplianceError) -> tuple[int, Headers, list[Buffer]]:
        request_id = admitted.ticket.id
        if isinstance(outcome, ApplianceError):  # not raised: it would hold this frame, and the frame it
            return self._refused(outcome, request_id)
        try:
            pieces, headers = self._way.infer.answer(admitted, outcome)
        except ApplianceError as error:
            return self._refused(error, request_id)
        except Exception:
            log.exception("internal error", request_id=request_id, path=self._path)
            return self._refused(internal(request_id), request_id)
        return 200, headers, pieces

    def _refused(self, error: ApplianceError, request_id: str) -> tuple[int, Headers, list[Buffer]]:
        if not isinstance(error, Cancelled):
            self._way.context.metrics.refused.labels(error.code).inc()
        headers, body = rendered(error, self._path, request_id)
        return error.status, headers, [body]

    def _write(self, status: int, headers: Headers, pieces: list[Buffer]) -> None:
        connection = self._connection
        lines = [b": ".join(header) for header in headers]
        size = sum([len(p) if isinstance(p, bytes) else memoryview(p).nbytes for p in pieces])
        lines.append(b"content-length: %d\r\n\r\n" % size if self.keep_alive else _LAST % size)
        head = self._way.head(status, connection.server_state.default_headers)
        connection.transport.write(b"".join([head, b"\r\n".join(lines), *pieces]))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_short_complete()


def _target(url: bytes) -> Target | None:
    if b"%" in url or b"?" in url or b"#" in url or not url.startswith(b"/v2/models/") or not url.isascii():
        return None
    path = url.decode("ascii")
    parts = path.split("/")
    if parts[-1] != "infer" or len(parts) not in (5, 7) or (len(parts) == 7 and parts[4] != "versions"):
        return None
    return Target(path, parts[3], parts[5] if len(parts) == 7 else None)
