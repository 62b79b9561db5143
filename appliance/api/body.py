"""Reading a request's body: limits hold while it streams in, also for what a compressed one unpacks to."""

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from appliance.errors import ApplianceError, Cancelled, InputTooLarge, InvalidInput, Overloaded, UnsupportedMedia

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]

_WBITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_INLINE = 32 * 1024
_DRAIN_S = 2.0


class Unread(Exception):
    """The request is refused with ``error`` before its body was read to the end."""

    def __init__(self, error: ApplianceError) -> None:
        super().__init__(error.message)
        self.error = error


async def drain(receive: Receive) -> None:
    """Throw away what still comes of a refused body, for a short time.

    A connection that is closed with unread bytes in it is reset, and the client may never see the answer.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            while (await receive()).get("more_body"):
                pass


class BodyBudget:
    """Bytes of all bodies held at once. A body counts from its first byte until the request ends."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Raises Overloaded when the budget is used up, InputTooLarge for what can never fit."""
        if size > self.limit:
            raise InputTooLarge(f"body of {size} bytes, all bodies together may hold {self.limit}", param="body")
        if self.held + size > self.limit:
            raise Overloaded(f"request bodies of {self.held} bytes are held, the limit is {self.limit}")
        self.held += size

    def give(self, size: int) -> None:
        self.held -= size


class Body:
    """One request's body. Use as ``async with``: the budget gets its bytes back at the end."""

    def __init__(self, headers: dict[bytes, bytes], receive: Receive, budget: BodyBudget, limit: int, wait_s: float):
        self._headers = headers
        self._receive = receive
        self._budget = budget
        self._limit = limit
        self._wait_s = wait_s
        self._held = 0

    async def __aenter__(self) -> bytes | bytearray:
        """The whole body, unpacked.

        Raises InputTooLarge, InvalidInput, UnsupportedMedia, Cancelled; Unread with one of them where
        the rest of the body has not come.
        """
        try:
            try:
                async with asyncio.timeout(self._wait_s):
                    raw = await self._read()
            except TimeoutError:
                late = InvalidInput(f"the body did not arrive within {self._wait_s:g} s", param="body")
                raise Unread(late) from None
            except Cancelled:
                raise
            except ApplianceError as error:
                raise Unread(error) from None
            return await self._unpack(raw)
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._budget.give(self._held)
        self._held = 0

    async def _read(self) -> bytes | bytearray:
        declared = self._headers.get(b"content-length")
        if declared is not None:
            size = int(declared)
            if size > self._limit:
                raise InputTooLarge(f"body of {size} bytes, the limit is {self._limit}", param="body")
            self._take(size)
        parts = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Cancelled("the caller went away while sending the body")
            chunk = message.get("body", b"")
            if not message.get("more_body") and not parts:
                self._grow(len(chunk))
                return chunk  # type: ignore[no-any-return]  # the usual case: all in one piece, no copy
            parts += chunk
            if len(parts) > self._limit:
                raise InputTooLarge(f"body over the limit of {self._limit} bytes", param="body")
            self._grow(len(parts))
            if not message.get("more_body"):
                return parts

    def _take(self, size: int) -> None:
        self._budget.take(size)
        self._held += size

    def _grow(self, size: int) -> None:
        if size > self._held:
            self._take(size - self._held)

    async def _unpack(self, raw: bytes | bytearray) -> bytes | bytearray:
        coding = self._headers.get(b"content-encoding", b"identity").strip().lower()
        if coding in (b"identity", b""):
            return raw
        wbits = _WBITS.get(coding)
        if wbits is None:
            raise UnsupportedMedia(
                f"Content-Encoding '{coding.decode('latin-1')[:32]}' (known: gzip, deflate)", param="Content-Encoding"
            )
        if len(raw) <= _INLINE:
            plain = unpack(raw, wbits, self._limit)
        else:
            plain = await asyncio.to_thread(unpack, raw, wbits, self._limit)
        self._take(len(plain))
        return plain


def unpack(raw: bytes | bytearray, wbits: int, limit: int) -> bytes:
    """Decompress at most ``limit`` bytes. Raises InputTooLarge, InvalidInput."""
    try:
        engine = zlib.decompressobj(wbits)
        try:
            plain = engine.decompress(raw, limit + 1)
        except zlib.error:
            if wbits != 15:
                raise
            engine = zlib.decompressobj(-15)  # "deflate" is sent without its header by some clients
            plain = engine.decompress(raw, limit + 1)
    except zlib.error as error:
        raise InvalidInput(f"the body cannot be decompressed: {error}", param="body") from None
    if len(plain) > limit:
        raise InputTooLarge(f"the body unpacks to more than the limit of {limit} bytes", param="body")
    if not engine.eof:
        raise InvalidInput("the compressed body is cut off", param="body")
    if engine.unused_data:
        raise InvalidInput("the body goes on after its compressed part; send it as one", param="body")
    return plain
