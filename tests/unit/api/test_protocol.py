"""A connection's bytes, cut anywhere: the short way answers what ASGI's way does, and holds nothing afterwards."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import virtual_time
from tests.unit.api.wire import Answer, Server, post, turns
from tests.unit.gate.test_gate import timed

BODY = st.sampled_from(
    [b"", b"a", b"b", b"!b", b"?b", b"\r\n\r\n", b"x\r\n\r\ny", post(b"in"), post(b"a") + b"\r\n\r\n"]
)
ITEM = st.one_of(
    BODY.map(post),
    BODY.map(post),
    BODY.map(post),
    st.builds(lambda body, host: post(body, host=host), BODY, st.sampled_from(["h", "evil"])),
    st.builds(lambda body, n: post(body, f"X-N: {n}"), BODY, st.integers(0, 2)),
    BODY.map(lambda body: post(body, model="n")),
    BODY.map(lambda body: b"\r\n" + post(body)),
    BODY.map(lambda body: b"\r\n\r\n" + post(body)),
    BODY.map(lambda body: post(body, "Connection: close")),
    BODY.map(lambda body: post(body, version="1.0")),
    BODY.map(lambda body: post(body, "Origin: o")),
    BODY.map(lambda body: post(body, "Expect: 100-continue")),
    st.just(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"),
    st.just(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nc\r\n0\r\n\r\n"),
)
CUTS = st.lists(st.integers(1, 90), max_size=12)


def pieces(items: list[bytes], whole: list[bool], cuts: list[int]) -> list[bytes]:
    """The stream of ``items``, in reads: at the ends of those that come ``whole``, and after so many bytes each."""
    found, open_piece, left = [], b"", list(cuts)
    for item, alone in zip(items, [*whole, *[True] * len(items)], strict=False):
        if alone and open_piece:
            found.append(open_piece)
            open_piece = b""
        if alone:
            found.append(item)
            continue
        open_piece += item
        while left and len(open_piece) > left[0]:
            size = left.pop(0)
            found.append(open_piece[:size])
            open_piece = open_piece[size:]
    return [*found, open_piece] if open_piece else found


async def answered(server: Server, reads: list[bytes], waits: list[int], kind: type = bytes) -> list[Answer]:
    protocol, wire = server.connect()
    for read, wait in zip(reads, [*waits, *[9] * len(reads)], strict=False):
        for _ in range(50):
            if not wire.paused or wire.closing:
                break
            await turns(1)
        assert not wire.paused or wire.closing
        if not wire.closing:
            protocol.data_received(kind(read))
        await turns(wait)
    await turns(60)
    protocol.connection_lost(None)
    await turns()
    assert server.held == 0
    assert not server.state.connections
    return [(status, body if status == 200 else b"") for status, body in wire.answers()]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(ITEM, min_size=2, max_size=9),
    st.lists(st.booleans(), max_size=9),
    CUTS,
    st.lists(st.integers(0, 12), max_size=12),
    st.integers(0, 3),
    st.sampled_from([bytes, bytearray]),
)
def test_both_ways_answer_the_same(
    items: list[bytes], whole: list[bool], cuts: list[int], waits: list[int], delay: int, kind: type
) -> None:
    async def main() -> None:
        reads = pieces(items, whole, cuts)
        assert b"".join(reads) == b"".join(items)
        plain = await answered(Server(short=False), reads, waits)
        server = Server(delay=delay)
        for _ in range(2):  # the second connection meets what the first one left
            assert await answered(server, reads, waits, kind) == plain

    virtual_time.run(main())


@timed
async def test_a_head_seen_before_is_read_by_nobody_and_still_is_somebody_s() -> None:
    server = Server()
    protocol, wire = server.connect()
    for value in (b"1", b"2"):
        protocol.data_received(post(value))
        await turns()
    assert len(server.short._heads) == 1  # type: ignore[union-attr]
    server.short.forget()  # type: ignore[union-attr]
    protocol.data_received(post(b"3"))
    await turns()
    assert [body for _, body in wire.answers()] == [b"m 1", b"m 2", b"m 3"]
    assert server.asgi == 0


@timed
async def test_a_model_that_has_a_rate_now_is_counted_whoever_was_known_before() -> None:
    """The folder says so at once; that something happened to the model is told when it was loaded again."""
    server = Server()
    protocol, wire = server.connect()
    for _ in range(2):
        protocol.data_received(post(b"1"))
        await turns()
    assert server.asgi == 0
    server.limited.add("m")
    protocol.data_received(post(b"2"))
    await turns()
    assert server.asgi == 1, "rates are counted in ASGI's way"
    assert wire.answers()[-1] == (200, b"m 2")


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Read(bytes):
    """Tells of its end."""

    gone = 0

    def __del__(self) -> None:
        Read.gone += 1


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("body", [b"good", b"?bad"])
@timed
async def test_an_open_connection_holds_nothing_of_what_was_answered(body: bytes) -> None:
    server = Server()
    protocol, wire = server.connect()
    before = Read.gone
    for count in (1, 2, 3):  # read by the parser, then known, then known again
        protocol.data_received(Read(post(body)))
        await turns()
        assert len(wire.answers()) == count
        assert server.echo.alive() == 0, "an answered request"
        assert Read.gone == before + count, "what was read"
    assert server.asgi == 0


@timed
async def test_bytes_of_bodies_are_given_back_on_every_way_out() -> None:
    server = Server(delay=5)
    protocol, _ = server.connect()
    protocol.data_received(post(b"12345678")[:-3])
    assert server.held == 8
    protocol.connection_lost(None)
    assert server.held == 0
    for _ in range(2):
        protocol, wire = server.connect()
        protocol.data_received(post(b"12345678"))
        assert server.held == 8
        wire.closing = True
        protocol.connection_lost(ConnectionResetError())
        await turns()
        assert server.held == 0
    assert len(server.echo.queue.cancelled) == 2


@timed
async def test_when_bodies_hold_too_much_a_known_head_is_no_way_around() -> None:
    server = Server(delay=50, budget=10)
    for _ in range(2):
        protocol, _ = server.connect()
        protocol.data_received(post(b"12345678"))
    assert server.held == 8
    await turns(100)
    assert server.held == 0
