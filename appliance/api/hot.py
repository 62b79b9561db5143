"""The short way of an inference: the request is read, admitted and answered without a task.

ASGI's way (a task, messages, a body copied piece by piece, a watch for the caller's leaving) costs several times
what a small model's run does. The short way takes the plain case alone, with the same functions; whatever is not
plain, and everything that is refused before the gate has it, goes ASGI's way, which alone knows how to refuse.
"""

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
_OK = b"HTTP/1.1 200 OK\r\n"
_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus} | {200: _OK}


class Target(NamedTuple):
    """What an inference route names."""

    path: str
    model: str
    version: str | None


class Connection(Protocol):
    """What an exchange needs of the connection that it is on."""

    transport: Any
    server_state: Any

    def on_short_complete(self) -> None: ...


class ShortWay:
    """Decides what is plain, and begins it. ``request_id`` makes the id of a request from its headers."""

    def __init__(
        self, context: Context, guard: Guard, infer: Infer, request_id: Callable[[dict[bytes, bytes]], str]
    ) -> None:
        self.context = context
        self.infer = infer
        self._guard = guard
        self._request_id = request_id
        self._targets: dict[bytes, Target | None] = {}

    def welcome(self, url: bytes, headers: dict[bytes, bytes]) -> "Visit | None":
        """Look at a request's head: None if it has to go ASGI's way, else its body may come and has its bytes."""
        target = self._target(url)
        length = headers.get(b"content-length", b"")
        if target is None or not length.isdigit() or not _NOT_PLAIN.isdisjoint(headers):
            return None
        context, size = self.context, int(length)
        if size > context.settings.max_body_bytes or context.gate.closing or context.rates.limits(target.model):
            return None
        if packs(headers.get(b"accept-encoding")):
            return None
        try:
            self._guard.check(target.path, "POST", headers)
            context.bodies.take(size)
        except ApplianceError:
            return None
        return Visit(target, headers, size)

    def leave(self, visit: "Visit") -> None:
        """The visit goes ASGI's way, or its caller has gone: its bytes count no more."""
        self.context.bodies.give(visit.size)

    def begin(self, visit: "Visit", connection: Connection, keep_alive: bool) -> "Exchange | None":
        """Give the request to the gate. None, and nothing has happened, if it has to go ASGI's way."""
        target, headers = visit.target, visit.headers
        try:
            request_id = self._request_id(headers)
            admitted = self.infer.admit(target.model, target.version, headers, request_id, visit.body())
        except Exception:  # noqa: BLE001 - ASGI's way meets it too, and tells of it
            return None
        return Exchange(self, admitted, target.path, connection, keep_alive, visit.size)

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

    ``size``: the bytes that are counted for it.
    """

    __slots__ = ("_at", "_body", "headers", "size", "target")

    def __init__(self, target: Target, headers: dict[bytes, bytes], size: int) -> None:
        self.target = target
        self.headers = headers
        self.size = size
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
        admitted.ticket.hand_to(self._ended)

    @property
    def message_event(self) -> "Exchange":
        return self

    def set(self) -> None:
        """Uvicorn's news; the one that matters is that the caller has left."""
        if self.disconnected and not self.response_complete:
            self._admitted.queue.cancel(self._admitted.ticket)

    def _ended(self, outcome: Outputs | ApplianceError) -> None:
        """The gate's answer; called once, by the loop."""
        context, request_id = self._way.context, self._admitted.ticket.id
        self.response_complete = True
        context.bodies.give(self._held)
        if self.disconnected or self._connection.transport.is_closing():
            return
        status, pieces, headers = 200, [], []  # type: tuple[int, list[Buffer], Headers]
        try:
            if isinstance(outcome, ApplianceError):
                raise outcome
            pieces, headers = self._way.infer.answer(self._admitted, outcome)
        except ApplianceError as error:
            status, headers, pieces = self._refused(error)
        except Exception:
            log.exception("internal error", request_id=request_id, path=self._path)
            status, headers, pieces = self._refused(internal(request_id))
        self._write(status, headers, pieces)

    def _refused(self, error: ApplianceError) -> tuple[int, Headers, list[Buffer]]:
        if not isinstance(error, Cancelled):
            self._way.context.metrics.refused.labels(error.code).inc()
        headers, body = rendered(error, self._path, self._admitted.ticket.id)
        return error.status, headers, [body]

    def _write(self, status: int, headers: Headers, pieces: list[Buffer]) -> None:
        connection = self._connection
        head = [_LINES[status]]
        for name, value in connection.server_state.default_headers:
            head += (name, b": ", value, b"\r\n")
        for name, value in headers:
            head += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            head.append(b"connection: close\r\n")
        size = sum([len(p) if isinstance(p, bytes) else memoryview(p).nbytes for p in pieces])
        head.append(b"content-length: %d\r\n\r\n" % size)
        connection.transport.write(b"".join([*head, *pieces]))
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
