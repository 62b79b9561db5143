"""Frames: cut anywhere, of any size, and nothing else than frames."""

import asyncio
import socket
import struct
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine import channel
from appliance.engine.channel import (
    MAX_HEADER,
    MAX_PAYLOAD,
    ChannelError,
    FrameParser,
    FrameProtocol,
    FrameReader,
    decode_for_engine,
    decode_for_host,
    frame,
    send,
)
from appliance.engine.messages import Cancel, Done, Ping, Pong

Frames = list[tuple[bytes, bytes]]
ROOM = 256 * 1024


def raw(header: bytes, payload: bytes) -> bytes:
    return struct.pack("<IQ", len(header), len(payload)) + header + payload


def cut(data: bytes, sizes: list[int]) -> Frames:
    """Feed ``data`` in pieces of at most these sizes (the last one repeats)."""
    parser, found, at, n = FrameParser(), [], 0, 0
    while at < len(data):
        target = parser.target()
        assert target.nbytes > 0, "there must be room for what comes"
        size = min(sizes[min(n, len(sizes) - 1)], target.nbytes, len(data) - at)
        target[:size] = data[at : at + size]
        found += [(bytes(h), bytes(p)) for h, p in parser.feed(size)]
        at += size
        n += 1
    return found


@pytest.mark.parametrize("split", range(1, 60))
def test_two_frames_cut_at_every_byte(split: int) -> None:
    frames = [(b"header one", b"payload"), (b"h2", b"p" * 20)]
    data = b"".join(raw(*f) for f in frames)
    assert len(data) == 63
    assert cut(data, [split, 1000]) == frames
    assert cut(data, [split]) == frames


def test_many_frames_in_one_read() -> None:
    frames = [(b"h%d" % n, bytes(n)) for n in range(200)]
    assert cut(b"".join(raw(*f) for f in frames), [10**6]) == frames


@pytest.mark.parametrize(
    "size", [0, 1, ROOM // 2 - 16, ROOM // 2 - 15, ROOM // 2, ROOM - 1, ROOM, ROOM + 1, 3 * ROOM]
)
def test_payloads_around_the_room_s_size(size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    frames = [(b"head", payload[:size]), (b"next", b"x")]
    data = b"".join(raw(*f) for f in frames)
    for sizes in ([10**7], [7, 5, 10**7], [ROOM - 1, 10**7]):
        assert cut(data, sizes) == frames


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.sampled_from([0, 1, 10, 5000, 100_000, 140_000, 300_000])), max_size=6
    ),
    st.lists(st.integers(1, 200_000), min_size=1, max_size=10),
)
def test_any_frames_in_any_pieces(shapes: list[tuple[int, int]], sizes: list[int]) -> None:
    frames = [(bytes([n % 251]) * header, bytes([n % 7]) * payload) for n, (header, payload) in enumerate(shapes)]
    sizes = [*sizes, max(sizes[-1], 1000)]
    assert cut(b"".join(raw(*f) for f in frames), sizes) == frames


def test_a_frame_s_bytes_are_not_overwritten_by_the_next() -> None:
    parser = FrameParser()
    first = raw(b"a", b"first")
    parser.target()[: len(first)] = first
    ((_, payload),) = parser.feed(len(first))
    second = raw(b"b", b"SECOND")
    parser.target()[: len(second)] = second
    parser.feed(len(second))
    assert bytes(payload) == b"first"


@pytest.mark.parametrize(("header", "payload"), [(MAX_HEADER + 1, 0), (1, MAX_PAYLOAD + 1), (2**32 - 1, 2**64 - 1)])
def test_lengths_over_the_limits_are_no_frame(header: int, payload: int) -> None:
    parser = FrameParser()
    parser.target()[:12] = struct.pack("<IQ", header, payload)
    with pytest.raises(ChannelError, match="a frame of"):
        parser.feed(12)


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=12, max_size=200))
def test_garbage_is_an_error_or_an_incomplete_frame(data: bytes) -> None:
    header, payload = struct.unpack_from("<IQ", data)
    try:
        found = cut(data, [10**6])
    except ChannelError:
        return
    if found:
        assert header + payload + 12 <= len(data)
    else:
        assert header <= MAX_HEADER and payload <= MAX_PAYLOAD and header + payload + 12 > len(data)


# --- writing -------------------------------------------------------------------------------------------------


def test_small_frames_are_one_piece_and_large_payloads_are_not_copied() -> None:
    small = frame(Ping(1), [b"abc", bytearray(b"de")])
    assert len(small) == 1
    large = memoryview(bytearray(20_000))
    pieces = frame(Ping(1), [large, b"x"])
    assert pieces[1] is large
    joined = b"".join(pieces)
    ((header, payload),) = cut(joined, [10**6])
    assert decode_for_engine(header) == Ping(1)
    assert len(payload) == 20_001


def sockets() -> tuple[socket.socket, socket.socket]:
    a, b = socket.socketpair()
    for end in (a, b):
        end.settimeout(20)
    return a, b


def exchange(pieces_of_frames: list[list[Any]]) -> Frames:
    """Send through a real socket from another thread, read until the end."""
    a, b = sockets()

    def write() -> None:
        for pieces in pieces_of_frames:
            send(a, pieces)
        a.close()

    writer = threading.Thread(target=write)
    writer.start()
    reader, found = FrameReader(b), []
    while (got := reader.read()) is not None:
        found.append((got[0], bytes(got[1])))
    writer.join()
    b.close()
    return found


def test_a_socket_brings_frames_whole_and_in_order() -> None:
    big = bytes(range(256)) * 8192  # 2 MiB: many partial writes
    found = exchange([frame(Ping(1)), frame(Ping(2), [big, memoryview(b"tail")]), frame(Ping(3), [b""])])
    assert [decode_for_engine(h) for h, _ in found] == [Ping(1), Ping(2), Ping(3)]
    assert [p for _, p in found] == [b"", big + b"tail", b""]


def test_more_pieces_than_one_system_call_takes() -> None:
    parts = [bytes([n % 256]) * 17 for n in range(3000)]
    ((_, payload),) = exchange([frame(Ping(1), parts)])
    assert payload == b"".join(parts)


def test_without_sendmsg_the_pieces_go_one_by_one() -> None:
    class Plain:
        def __init__(self) -> None:
            self.sent = b""

        def sendall(self, data: Any) -> None:
            self.sent += bytes(data)

    plain = Plain()
    send(plain, [b"one", memoryview(b"two")])  # type: ignore[arg-type]
    assert plain.sent == b"onetwo"


def test_a_peer_that_closes_within_a_frame_ends_the_stream() -> None:
    a, b = sockets()
    a.sendall(raw(b"header", b"payload")[:-1])
    a.close()
    assert FrameReader(b).read() is None
    b.close()


# --- the host's end ------------------------------------------------------------------------------------------


def talk(data: bytes, write: Any = None) -> tuple[list[Any], list[str], bytes]:
    """What a ``FrameProtocol`` makes of bytes from the engine: messages, reasons of its end, what it sent."""

    async def main() -> tuple[list[Any], list[str], bytes]:
        ours, theirs = socket.socketpair()
        theirs.settimeout(20)
        messages: list[Any] = []
        closed: list[str] = []
        ended = asyncio.Event()

        def on_close(reason: str) -> None:
            closed.append(reason)
            ended.set()

        protocol = FrameProtocol(lambda m, p: messages.append((m, bytes(p))), on_close)
        ours.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=ours)
        sent = b""
        if write is not None:
            expected = write(protocol)
            theirs.setblocking(False)
            while len(sent) < expected:
                sent += await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
        theirs.setblocking(True)
        await asyncio.to_thread(theirs.sendall, data)
        theirs.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(ended.wait(), 20)
        theirs.close()
        return messages, closed, sent

    return asyncio.run(main())


def test_the_host_gets_messages_and_one_end() -> None:
    data = b"".join(b"".join(frame(m, p)) for m, p in ((Done(1), [b"xy"]), (Pong(2, 3, 4), [bytes(300_000)])))
    messages, closed, _ = talk(data)
    assert messages == [(Done(1), b"xy"), (Pong(2, 3, 4), bytes(300_000))]
    assert closed == ["the connection was closed"]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<IQ", MAX_HEADER + 1, 0),
        raw(b"\xff\xff", b""),
        raw(b"", b""),
        b"".join(frame(Cancel(1))),  # a message of the other direction
    ],
    ids=["length", "not msgpack", "no header", "wrong direction"],
)
def test_what_cannot_be_read_ends_the_connection_with_a_reason(data: bytes) -> None:
    messages, closed, _ = talk(data + b"".join(frame(Done(1))))
    assert messages == []
    assert len(closed) == 1
    assert closed[0].startswith("unreadable frame from the engine: ")


def test_the_host_writes_small_and_large_frames() -> None:
    large = bytes(range(256)) * 1000

    def write(protocol: FrameProtocol) -> int:
        protocol.write(Ping(1))
        protocol.write(Ping(2), [large, large])
        return len(b"".join(frame(Ping(1)))) + len(b"".join(frame(Ping(2), [large, large])))

    _, _, sent = talk(b"", write)
    found = cut(sent, [10**6])
    assert [decode_for_engine(h) for h, _ in found] == [Ping(1), Ping(2)]
    assert found[1][1] == large + large


def test_each_direction_has_its_own_messages() -> None:
    assert decode_for_host(channel._encode(Done(5))) == Done(5)
    assert decode_for_engine(channel._encode(Cancel(5))) == Cancel(5)
