"""An HTTP/1.1 client that sees everything: each byte that comes belongs to an answer that was asked for."""

import asyncio
from typing import NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """Header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawClient:
    """One connection at a time, opened when it is needed. Raises OSError or EOFError when it breaks, AssertionError
    when the server says something that nobody asked for."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname and address.port
        self._host, self._port = address.hostname, address.port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: bytes, **headers: str) -> Answer:
        """One request and its whole answer."""
        await self.send(path, body, **headers)
        return await self.receive()

    async def send(self, path: str, body: bytes, **headers: str) -> None:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        assert not self._reader._buffer, "bytes came before the request was sent"  # type: ignore[attr-defined]
        lines = [f"POST {path} HTTP/1.1", f"Host: {self._host}:{self._port}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self._writer.drain()

    async def receive(self) -> Answer:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in head[1:] if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = await self._reader.readexactly(int(headers["content-length"]))
        if headers.get("connection", "").lower() == "close":
            self.drop()
        return Answer(int(head[0].split()[1]), headers, body)

    def drop(self) -> None:
        """Hang up at once, whatever is under way."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None
