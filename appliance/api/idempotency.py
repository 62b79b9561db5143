"""``Idempotency-Key``: a client that times out and asks again does not double the load.

While the first request with a key is on its way, others with the same key join it and get the same answer; for a
short time afterwards they get it from the store. The same key with another body is refused (409). The work belongs to
all who wait for it: it is cancelled when the last of them has gone.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec

from appliance.api.body import Message, Receive, Send
from appliance.api.disconnect import Disconnect
from appliance.errors import IdempotencyConflict, InvalidInput

MAX_KEY = 255
REPLAYED = (b"idempotent-replayed", b"true")

Headers = list[tuple[bytes, bytes]]
Work = Callable[[Receive, Send], Awaitable[None]]


class Answer(msgspec.Struct, frozen=True):
    """A whole HTTP answer."""

    status: int
    headers: Headers
    body: bytes

    @property
    def size(self) -> int:
        return len(self.body) + sum(len(name) + len(value) for name, value in self.headers)


class _Entry:
    """One key: the task that works for it, who waits, and the answer once it is there."""

    def __init__(self, digest: bytes, task: "asyncio.Task[Answer]") -> None:
        self.digest = digest
        self.task = task
        self.waiters = 0
        self.answer: Answer | None = None
        self.ended = 0.0


class IdempotencyStore:
    """All keys. Bounded in bytes and age; only answers with status 200 are kept, a failure may be tried again.

    ``clock`` in seconds. A key counts per client (``who``), so that two clients' keys never meet.
    """

    def __init__(self, max_bytes: int, keep_s: float, clock: Callable[[], float]) -> None:
        self._max_bytes = max_bytes
        self._keep_s = keep_s
        self._clock = clock
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self.held = 0

    def bounds(self, max_bytes: int, keep_s: float) -> None:
        """Other bounds from now on; what is over them leaves with the next answer."""
        self._max_bytes, self._keep_s = max_bytes, keep_s

    async def answer(
        self, who: str, key: str, route: str, body: bytes | bytearray, receive: Receive, work: Work
    ) -> tuple[Answer, bool]:
        """The answer, and whether it is another request's.

        ``work(receive, send)`` is the request's handler; ``receive`` the connection's, to notice a caller that
        goes. Raises IdempotencyConflict, InvalidInput (a bad key), Cancelled, and whatever the work raises.
        """
        if not key or len(key) > MAX_KEY or not key.isprintable():
            raise InvalidInput(f"Idempotency-Key: 1 to {MAX_KEY} printable characters", param="Idempotency-Key")
        self._expire()
        name, digest = (who, key), hashlib.sha256(route.encode() + b"\0" + body).digest()
        entry = self._entries.get(name)
        joined = entry is not None
        if entry is None:
            entry = _Entry(digest, asyncio.ensure_future(_record(work, bytes(body))))
            self._entries[name] = entry
            first = entry
            entry.task.add_done_callback(lambda task: self._ended(name, first, task))
        elif entry.digest != digest:
            raise IdempotencyConflict(
                f"Idempotency-Key '{key[:64]}' belongs to a request with another body", param="Idempotency-Key"
            )
        if entry.answer is not None:
            return entry.answer, True
        entry.waiters += 1
        try:
            with Disconnect(receive):
                return await asyncio.shield(entry.task), joined
        finally:
            entry.waiters -= 1
            if not entry.waiters and not entry.task.done():
                entry.task.cancel()

    def knows(self, who: str, key: str) -> bool:
        """Whether a request with this key is on its way, or its answer is kept."""
        self._expire()
        return (who, key) in self._entries

    def _ended(self, name: tuple[str, str], entry: _Entry, task: "asyncio.Task[Answer]") -> None:
        kept = not task.cancelled() and task.exception() is None and task.result().status == 200
        if not kept or task.result().size > self._max_bytes:
            self._entries.pop(name, None)
            return
        entry.answer, entry.ended = task.result(), self._clock()
        self.held += entry.answer.size
        self._entries.move_to_end(name)
        while self.held > self._max_bytes:
            self._drop(next(n for n, e in self._entries.items() if e.answer is not None))

    def _expire(self) -> None:
        old = self._clock() - self._keep_s
        for name in [n for n, e in self._entries.items() if e.answer is not None and e.ended <= old]:
            self._drop(name)

    def _drop(self, name: tuple[str, str]) -> None:
        entry = self._entries.pop(name)
        self.held -= entry.answer.size if entry.answer else 0


async def _record(work: Work, body: bytes) -> Answer:
    """Run the handler on a body that is here already, and keep what it sends."""
    given = False
    status, headers, parts = 500, Headers(), bytearray()

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # the work outlives the connection that began it
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], list(message["headers"])
        else:
            parts.extend(message.get("body", b""))

    await work(receive, send)
    return Answer(status, headers, bytes(parts))
