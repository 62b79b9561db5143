"""Frames on a stream socket: 12 bytes (u32 header length, u64 payload length, little-endian), a msgpack header,
then raw tensor bytes.

``FrameReader``/``send`` are the blocking side (engine), ``FrameProtocol`` the asyncio side (host). Both read a
large payload straight into its own buffer, so that it is copied once.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from appliance.engine.messages import ToEngine, ToHost
from appliance.models.tensors import Buffer

_PREFIX = struct.Struct("<IQ")
_ROOM = 256 * 1024
MAX_HEADER = 64 << 20
MAX_PAYLOAD = 8 << 30
_PIECES = 512  # of one system call; Linux and macOS take at most 1024

_encode = msgspec.msgpack.Encoder().encode
decode_for_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_for_host = msgspec.msgpack.Decoder(ToHost).decode


class ChannelError(Exception):
    """The peer sent something that is not a frame."""


def frame(message: ToEngine | ToHost, payload: Iterable[Buffer] = ()) -> list[Buffer]:
    """The pieces of one frame; small ones are joined so that a frame is few writes."""
    parts = list(payload)
    size = sum(memoryview(part).nbytes for part in parts)
    header = _encode(message)
    prefix = _PREFIX.pack(len(header), size)
    if size <= 16 * 1024:
        return [b"".join((prefix, header, *parts))]
    return [prefix + header, *parts]


def _lengths(view: memoryview) -> tuple[int, int]:
    header, payload = _PREFIX.unpack_from(view)
    if header > MAX_HEADER or payload > MAX_PAYLOAD:
        raise ChannelError(f"a frame of {header} + {payload} bytes")
    return header, payload


class FrameParser:
    """Cuts a byte stream into frames. ``target()`` is where the next bytes go, ``feed(n)`` says n came.

    A frame that fits the room is copied out of it; a larger one gets a buffer of its own, into which the rest
    is read directly.
    """

    def __init__(self) -> None:
        self._room = bytearray(_ROOM)
        self._view = memoryview(self._room)
        self._start = 0  # first byte not yet consumed
        self._end = 0  # first free byte
        self._big: bytearray | None = None  # header + payload of a frame too large for the room
        self._big_at = 0
        self._big_header = 0

    def target(self) -> memoryview:
        if self._big is not None:
            return memoryview(self._big)[self._big_at :]
        return self._view[self._end :]

    def feed(self, count: int) -> list[tuple[bytes, memoryview]]:
        """The (header, payload) of every frame that is complete now. Raises ChannelError."""
        if self._big is not None:
            self._big_at += count
            if self._big_at < len(self._big):
                return []
            whole = memoryview(self._big)
            self._big = None
            return [(bytes(whole[: self._big_header]), whole[self._big_header :])]
        self._end += count
        found = []
        while (have := self._end - self._start) >= _PREFIX.size:
            header, payload = _lengths(self._view[self._start :])
            total = _PREFIX.size + header + payload
            if have < total:
                if total > _ROOM // 2:
                    self._grow(header, payload)
                break
            body = self._start + _PREFIX.size
            found.append(
                (
                    bytes(self._view[body : body + header]),
                    memoryview(bytes(self._view[body + header : body + header + payload])),
                )
            )
            self._start += total
        self._compact()
        return found

    def _grow(self, header: int, payload: int) -> None:
        self._big = bytearray(header + payload)
        part = self._view[self._start + _PREFIX.size : self._end]
        self._big[: part.nbytes] = part
        self._big_at, self._big_header = part.nbytes, header
        self._start = self._end

    def _compact(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start > _ROOM // 2:
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)


class FrameReader:
    """Blocking reader of one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parser = FrameParser()
        self._ready: list[tuple[bytes, memoryview]] = []

    @property
    def more(self) -> bool:
        """The next frame is here already."""
        return bool(self._ready)

    def read(self) -> tuple[bytes, memoryview] | None:
        """The next frame; None at the end of the stream. Raises OSError, ChannelError."""
        while not self._ready:
            count = self._sock.recv_into(self._parser.target())
            if count == 0:
                return None
            self._ready = self._parser.feed(count)
        return self._ready.pop(0)


def send(sock: socket.socket, pieces: list[Buffer]) -> None:
    """Write all pieces; blocks while the peer does not read. Raises OSError."""
    if len(pieces) == 1 or not hasattr(sock, "sendmsg"):
        for piece in pieces:
            sock.sendall(piece)
        return
    views = [memoryview(piece).cast("B") for piece in pieces]
    while views:
        sent = sock.sendmsg(views[:_PIECES])
        while views and sent >= views[0].nbytes:
            sent -= views[0].nbytes
            views.pop(0)
        if views and sent:
            views[0] = views[0][sent:]


class FrameProtocol(asyncio.BufferedProtocol):
    """The host's end: calls ``on_message(message, payload)`` for each frame and ``on_close(reason)`` once."""

    def __init__(self, on_message: Callable[[ToHost, memoryview], None], on_close: Callable[[str], None]) -> None:
        self._parser = FrameParser()
        self._on_message = on_message
        self._on_close = on_close
        self._transport: Any = None
        self._fault: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._parser.target()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for header, payload in self._parser.feed(nbytes):
                self._on_message(decode_for_host(header), payload)
        except (ChannelError, msgspec.MsgspecError, ValueError) as error:
            # The stream cannot be trusted from here on: treated as the engine's death.
            self._fault = f"unreadable frame from the engine: {error}"
            self._transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_close(self._fault or "the connection was closed")  # an errno would say no more

    def write(self, message: ToEngine, payload: Iterable[Buffer] = ()) -> None:
        """Queue one frame for sending; never blocks."""
        pieces = frame(message, payload)
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
