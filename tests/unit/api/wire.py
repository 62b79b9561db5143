"""One connection to the server's protocol without a socket, and an application that echoes both ways."""

import asyncio
import re
import weakref
from types import SimpleNamespace
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from appliance.api.body import BodyBudget
from appliance.api.guard import Guard
from appliance.api.hot import ShortWay
from appliance.api.oip import Admitted
from appliance.api.protocol import BoundedProtocol
from appliance.api.respond import Headers
from appliance.errors import ApplianceError, Forbidden, InvalidInput, ModelError
from appliance.gate.ticket import Outputs, Ticket
from appliance.models.tensors import Buffer, Tensor
from tests.support.fake_runner import ticket as fake_ticket

Answer = tuple[int, bytes]


class Wire(asyncio.Transport):
    """What the protocol writes; ``paused``: it does not want to read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closing = self.paused = False

    def write(self, data: Any) -> None:
        assert not self.closing
        self.written += data

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def answers(self) -> list[Answer]:
        """(status, body) of each answer."""
        found, rest = [], bytes(self.written)
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            if head == b"HTTP/1.1 100 Continue":
                continue
            length = re.search(rb"\r\ncontent-length: (\d+)", head)
            assert length is not None, head
            found.append((int(head.split()[1]), rest[: int(length[1])]))
            rest = rest[int(length[1]) :]
        return found


class Queue:
    """As much of a model's queue as an exchange uses."""

    def __init__(self) -> None:
        self.cancelled: list[Ticket] = []

    def cancel(self, ticket: Ticket) -> None:
        self.cancelled.append(ticket)


class Request:
    """As much of a checked request as is held: its bytes."""

    def __init__(self, tensor: Tensor) -> None:
        self.inputs = (tensor,)


class Echo:
    """Stands for ``Infer``: the outputs are the body, as soon as the loop comes round ``delay`` times."""

    def __init__(self, delay: int = 1) -> None:
        self.queue = Queue()
        self.delay = delay
        self.admitted = 0
        self._requests: list[weakref.ref[Request]] = []
        self.loop = asyncio.get_running_loop()

    def admit(
        self, model: str, version: str | None, headers: dict[bytes, bytes], request_id: str, body: Buffer
    ) -> Admitted:
        if bytes(body[:1]) == b"!":
            raise InvalidInput("not this")
        self.admitted += 1
        tensor = Tensor("x", "UINT8", (len(body),), body)
        ticket = fake_ticket((tensor,), id=request_id, model=model)
        outcome: Outputs | ApplianceError = (Tensor("y", "UINT8", tensor.shape, bytes(body)),)
        if bytes(body[:1]) == b"?":
            outcome = ModelError("broken")
        self._later(self.delay, ticket, outcome)
        request = Request(tensor)
        self._requests.append(weakref.ref(request))
        return Admitted(cast("Any", self.queue), ticket, cast("Any", request), cast("Any", None))

    def alive(self) -> int:
        """Requests, with their inputs, that somebody still holds."""
        return sum(ref() is not None for ref in self._requests)

    def answer(self, admitted: Admitted, outputs: Outputs) -> tuple[list[Buffer], Headers]:
        return [b"%s " % admitted.ticket.model.encode(), outputs[0].data], [(b"x-request-id", b"r")]

    def _later(self, turns: int, ticket: Ticket, outcome: Outputs | ApplianceError) -> None:
        if turns:
            self.loop.call_soon(self._later, turns - 1, ticket, outcome)
        else:
            ticket.resolve(outcome, 1.0)


class Door:
    """Stands for ``Guard``: nobody called evil comes in."""

    def check(self, path: str, method: str, headers: dict[bytes, bytes]) -> str | None:
        if headers.get(b"host") == b"evil":
            raise Forbidden("not you")
        return None


class Server:
    """An application and its connections. ``short``: whether it has the short way."""

    def __init__(self, *, short: bool = True, delay: int = 1, budget: int = 1 << 20) -> None:
        self.echo = Echo(delay)
        refused = SimpleNamespace(labels=lambda code: SimpleNamespace(inc=lambda: None))
        self.limited: set[str] = set()
        self.context = SimpleNamespace(
            settings=SimpleNamespace(max_body_bytes=1 << 20),
            gate=SimpleNamespace(draining=False),
            rates=SimpleNamespace(limits=self.limited.__contains__),
            bodies=BodyBudget(budget),
            metrics=SimpleNamespace(refused=refused),
        )
        self.asgi = 0
        way = ShortWay(cast("Any", self.context), cast("Guard", Door()), cast("Any", self.echo), lambda headers: "r")
        self.short = way if short else None
        config = uvicorn.Config(self, lifespan="off", ws="none", log_config=None, proxy_headers=False)
        config.load()
        self.config, self.state = config, ServerState()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asgi += 1
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        parts = scope["path"].split("/")
        status, answer = 200, body
        if dict(scope["headers"]).get(b"host") == b"evil":
            status, answer = 403, b""
        elif parts[-1] != "infer":
            answer = b"other"
        elif body[:1] in (b"!", b"?"):
            status, answer = 400 if body[:1] == b"!" else 500, b""
        else:
            answer = b"%s %s" % (parts[3].encode(), body)
        length = b"%d" % len(answer)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": answer})

    def connect(self) -> tuple[BoundedProtocol, Wire]:
        protocol = BoundedProtocol(self.config, self.state, {})
        wire = Wire()
        protocol.connection_made(wire)
        return protocol, wire

    @property
    def held(self) -> int:
        return self.context.bodies.held


async def turns(count: int = 20) -> None:
    """Let the loop come round so often."""
    for _ in range(count):
        await asyncio.sleep(0)


def post(body: bytes, *more: str, model: str = "m", host: str = "h", version: str = "1.1") -> bytes:
    """A request's bytes."""
    lines = [f"POST /v2/models/{model}/infer HTTP/{version}", f"Host: {host}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
