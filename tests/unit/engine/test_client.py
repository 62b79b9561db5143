"""The host's side of an engine, over a real socket, with an engine that does what a script says."""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pytest

from appliance.engine.channel import FrameParser, decode_for_engine, frame
from appliance.engine.client import EngineClient, EngineDied, RunResult
from appliance.engine.messages import (
    Cancel,
    Check,
    Checked,
    Chunk,
    Done,
    End,
    Failed,
    Hello,
    ItemFailure,
    ItemOutputs,
    Load,
    Loaded,
    Ping,
    Pong,
    Result,
    Run,
    Stop,
    TensorMeta,
    Unfit,
    Unload,
    describe,
)
from appliance.errors import InvalidInput, ModelError, ModelLoadError
from appliance.models.spec import ModelConfig, ModelSpec
from appliance.models.tensors import from_array

SPEC = ModelSpec("m", "1", "fake", "fake", (), ())
LOAD = Load(4, "m", "1", "p", "r", "fake", "cpu", ModelConfig(), 0, 8)


class ScriptedEngine:
    """The other end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        self._parser = FrameParser()
        self._ready: list[tuple[Any, bytes]] = []

    async def receive(self) -> tuple[Any, bytes]:
        """The next message and its payload."""
        while not self._ready:
            count = await asyncio.wait_for(
                asyncio.get_running_loop().sock_recv_into(self.sock, self._parser.target()), 20
            )
            assert count, "the host has closed"
            self._ready = [(decode_for_engine(h), bytes(p)) for h, p in self._parser.feed(count)]
        return self._ready.pop(0)

    async def send(self, message: Any, payload: Sequence[bytes] = ()) -> None:
        await self.send_raw(b"".join(frame(message, payload)))

    async def send_raw(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    def die(self) -> None:
        self.sock.close()


class Talk:
    """A client, its engine, and everything the client told, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self._news = asyncio.Event()
        ours, theirs = socket.socketpair()
        self._ours = ours
        self.engine = ScriptedEngine(theirs)
        self.client = EngineClient(lambda reason: self.tell(("closed", reason)))

    def tell(self, what: Any) -> None:
        self.told.append(what)
        self._news.set()

    async def connect(self) -> None:
        await self.client.connect(self._ours)

    async def until(self, count: int) -> list[Any]:
        """Wait until so much was told."""
        async with asyncio.timeout(20):
            while len(self.told) < count:
                self._news.clear()
                await self._news.wait()
        return self.told

    def run(self, *values: float, name: str = "run", stream: bool = False) -> int:
        items = [(from_array("x", np.array([v], np.float32)),) for v in values]
        on_chunk = (lambda part: self.tell((name, "chunk", part))) if stream else None
        return self.client.run(4, items, ("y",), lambda outcome: self.tell((name, outcome)), on_chunk)


def talked(test: Callable[[Talk], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def inside() -> None:
        async def main() -> None:
            talk = Talk()
            await talk.connect()
            try:
                await test(talk)
            finally:
                talk.client.close()
                talk.engine.die()
                await asyncio.sleep(0)

        asyncio.run(main())

    inside.__wrapped__ = None  # type: ignore[attr-defined]  # pytest must not see the parameter
    del inside.__wrapped__  # type: ignore[attr-defined]
    return inside


def outputs(*values: float) -> tuple[tuple[TensorMeta, ...], bytes]:
    data = np.array(values, np.float32).tobytes()
    return (TensorMeta("y", "FP32", (len(values),), len(data)),), data


@talked
async def test_hello(talk: Talk) -> None:
    await talk.engine.send(Hello(1, {"a": "1"}, ("CPU",)))
    assert await talk.client.hello == Hello(1, {"a": "1"}, ("CPU",))


@talked
async def test_a_run_and_its_answer(talk: Talk) -> None:
    run_id = talk.run(1.0, 2.0, 3.0)
    message, payload = await talk.engine.receive()
    meta = TensorMeta("x", "FP32", (1,), 4)
    assert message == Run(run_id, 4, ((meta,), (meta,), (meta,)), ("y",), False)
    assert np.frombuffer(payload, np.float32).tolist() == [1, 2, 3]
    one, three = outputs(10), outputs(30, 31)
    answer = Result(run_id, (ItemOutputs(one[0]), ItemFailure("invalid_input", "no"), ItemOutputs(three[0])), 5, 9)
    await talk.engine.send(answer, [one[1], three[1]])
    ((_, result),) = await talk.until(1)
    assert isinstance(result, RunResult)
    assert (result.run_ns, result.total_ns) == (5, 9)
    first, second, third = result.items
    assert np.frombuffer(first[0].data, np.float32).tolist() == [10]
    assert isinstance(second, InvalidInput) and second.message == "no"
    assert np.frombuffer(third[0].data, np.float32).tolist() == [30, 31]


@talked
async def test_a_run_that_fails_as_a_whole(talk: Talk) -> None:
    run_id = talk.run(1.0)
    await talk.engine.send(Failed("run", run_id, "model_error", "broken"))
    ((_, error),) = await talk.until(1)
    assert type(error) is ModelError and error.message == "broken"


@talked
async def test_answers_may_come_in_any_order_and_only_once(talk: Talk) -> None:
    first, second = talk.run(1.0, name="a"), talk.run(2.0, name="b")
    assert first != second
    for run_id in (second, first, first, 999):
        meta, data = outputs(run_id)
        await talk.engine.send(Result(run_id, (ItemOutputs(meta),), 1, 1), [data])
    await talk.engine.send(Failed("run", 999, "model_error", "stranger"))
    await talk.engine.send(Pong(1, 77, 0))
    while talk.client.memory_bytes != 77:
        await asyncio.sleep(0.001)
    assert [name for name, _ in talk.told] == ["b", "a"]


@talked
async def test_a_stream(talk: Talk) -> None:
    run_id = talk.run(1.0, stream=True)
    assert (await talk.engine.receive())[0].stream
    for value in (1.0, 2.0):
        meta, data = outputs(value)
        await talk.engine.send(Chunk(run_id, meta), [data])
    await talk.engine.send(End(run_id, 42))
    await talk.engine.send(Chunk(run_id, meta), [data])  # after its end: nobody's
    told = await talk.until(3)
    assert [t[1] for t in told[:2]] == ["chunk", "chunk"]
    assert [float(np.frombuffer(t[2][0].data, np.float32)[0]) for t in told[:2]] == [1, 2]
    assert told[2] == ("run", RunResult([()], 42, 42))


@talked
async def test_cancel_is_sent_for_runs_in_flight_only(talk: Talk) -> None:
    run_id = talk.run(1.0)
    talk.client.cancel(999)
    talk.client.cancel(run_id)
    talk.client.ping()
    assert [type((await talk.engine.receive())[0]) for _ in range(3)] == [Run, Cancel, Ping]
    await talk.engine.send(Failed("run", run_id, "cancelled", "as asked"))
    await talk.until(1)
    talk.client.cancel(run_id)
    talk.client.stop()
    assert (await talk.engine.receive())[0] == Stop()


@talked
async def test_load_and_unload(talk: Talk) -> None:
    load = asyncio.ensure_future(talk.client.load(LOAD))
    assert (await talk.engine.receive())[0] == LOAD
    assert talk.client.loading
    await talk.engine.send(Loaded(4, SPEC, 1.0, 2.0, 3))
    assert (await load).spec == SPEC
    assert not talk.client.loading
    unload = asyncio.ensure_future(talk.client.unload(4))
    assert (await talk.engine.receive())[0] == Unload(4)
    assert not unload.done()
    await talk.engine.send(Done(4))
    await unload


@talked
async def test_a_load_that_fails(talk: Talk) -> None:
    load = asyncio.ensure_future(talk.client.load(LOAD))
    await talk.engine.receive()
    await talk.engine.send(Failed("load", 4, "model_error", "no such operator"))
    with pytest.raises(ModelError, match="no such operator"):
        await load
    assert not talk.client.loading


@talked
async def test_a_load_that_was_given_up_is_still_one_while_the_engine_is_at_it(talk: Talk) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await talk.client.load(LOAD)
    assert talk.client.loading
    await talk.engine.send(Failed("load", 4, "model_error", "too late"))
    while talk.client.loading:
        await asyncio.sleep(0.001)


@talked
async def test_any_message_is_a_sign_of_life(talk: Talk) -> None:
    talk.client.last_pong = before = talk.client.last_pong - 5
    await talk.engine.send(Done(123))
    while talk.client.last_pong == before:
        await asyncio.sleep(0.001)


@talked
async def test_death_is_told_first_and_then_each_run_once(talk: Talk) -> None:
    talk.run(1.0, name="a")
    talk.run(2.0, name="b", stream=True)
    load = asyncio.ensure_future(talk.client.load(LOAD))
    unload = asyncio.ensure_future(talk.client.unload(3))
    await talk.engine.receive()
    talk.engine.die()
    told = await talk.until(3)
    assert told[0][0] == "closed"
    assert [name for name, _ in told[1:]] == ["a", "b"]
    assert all(isinstance(outcome, EngineDied) for _, outcome in told[1:])
    with pytest.raises(EngineDied):
        await load
    await unload
    with pytest.raises(EngineDied):
        await talk.client.hello
    await asyncio.sleep(0.01)
    assert len(talk.told) == 3


@talked
async def test_an_engine_that_says_it_is_unfit_is_not_heard_any_more(talk: Talk) -> None:
    talk.client._on_unfit = lambda reason: talk.tell(("unfit", reason))
    run = talk.run(1.0)
    await talk.engine.receive()
    metas, data = outputs(2.0)
    await talk.engine.send(Unfit("the canary differs"))
    await talk.engine.send(Result(run, (ItemOutputs(metas),), 1, 2), [data])
    assert await talk.until(1) == [("unfit", "the canary differs")]
    talk.engine.die()
    told = await talk.until(3)
    assert told[1][0] == "closed"
    assert isinstance(told[2][1], EngineDied)


@talked
async def test_a_check_is_answered_or_the_engine_is_gone(talk: Talk) -> None:
    async def asked() -> tuple[asyncio.Task[int], int]:
        check = asyncio.create_task(talk.client.check())
        message, _ = await talk.engine.receive()
        assert isinstance(message, Check)
        return check, message.n

    first, number = await asked()
    second, _ = await asked()
    await talk.engine.send(Checked(number, 5))
    assert await first == 5
    talk.engine.die()
    with pytest.raises(EngineDied):
        await second
    with pytest.raises(EngineDied):
        await talk.client.check()


@talked
async def test_after_death_everything_says_so_and_nothing_hangs(talk: Talk) -> None:
    talk.engine.die()
    await talk.until(1)
    run_id = talk.run(1.0)
    assert len(talk.told) == 1, "never told before the id is known"
    assert isinstance((await talk.until(2))[1][1], EngineDied)
    talk.client.cancel(run_id)
    talk.client.ping()
    talk.client.stop()
    await talk.client.unload(4)
    with pytest.raises(EngineDied):
        await talk.client.load(LOAD)


@talked
async def test_a_death_between_a_load_s_answer_and_its_reader_is_a_death(talk: Talk) -> None:
    load = asyncio.ensure_future(talk.client.load(LOAD))
    await talk.engine.receive()
    talk.client._message(Loaded(4, SPEC, 1.0, 2.0, 3), memoryview(b""))
    talk.client._closed("killed")
    with pytest.raises(EngineDied, match="killed"):
        await load


def bad_answers(run_id: int) -> dict[str, bytes]:
    meta, data = outputs(1.0, 2.0)
    short = b"".join(frame(Result(run_id, (ItemOutputs(meta),), 1, 1), [data[:-1]]))
    two = b"".join(frame(Result(run_id, (ItemFailure("model_error", "a"), ItemFailure("model_error", "b")), 1, 1)))
    return {"short payload": short, "too many items": two, "garbage": struct.pack("<IQ", 2**32 - 1, 0)}


@pytest.mark.parametrize("what", ["short payload", "too many items", "garbage"])
def test_an_answer_that_cannot_be_trusted_is_a_death_of_which_the_run_hears(what: str) -> None:
    async def main() -> None:
        talk = Talk()
        await talk.connect()
        run_id = talk.run(1.0)
        await talk.engine.send_raw(bad_answers(run_id)[what])
        told = await talk.until(2)
        assert told[0][0] == "closed" and told[0][1].startswith("unreadable frame from the engine")
        assert told[1][0] == "run" and isinstance(told[1][1], EngineDied)
        talk.engine.die()

    asyncio.run(main())


@talked
async def test_what_no_frame_can_carry_is_not_sent_and_not_told_later(talk: Talk) -> None:
    (tensor,) = (from_array("x", np.zeros((0, 1), np.float32)),)
    huge = type(tensor)("x", "FP32", (0, 2**70), b"")
    with pytest.raises(OverflowError):
        talk.client.run(4, [(huge,)], ("y",), talk.tell)
    talk.client.ping()
    assert isinstance((await talk.engine.receive())[0], Ping)
    talk.engine.die()
    assert [t[0] for t in await talk.until(1)] == ["closed"]
    await asyncio.sleep(0.01)
    assert len(talk.told) == 1


@talked
async def test_large_tensors_both_ways(talk: Talk) -> None:
    array = np.arange(300_000, dtype=np.float32)
    tensor = from_array("x", array)
    run_id = talk.client.run(4, [(tensor,)], ("y",), lambda outcome: talk.tell(outcome))
    message, payload = await talk.engine.receive()
    assert message.items == (describe([tensor]),)
    assert payload == array.tobytes()
    await talk.engine.send(Result(run_id, (ItemOutputs(describe([tensor])),), 1, 1), [payload])
    (result,) = await talk.until(1)
    assert np.array_equal(np.frombuffer(result.items[0][0].data, np.float32), array)


def test_the_error_s_type_survives_as_far_as_its_code_tells() -> None:
    assert ModelLoadError.code == ModelError.code, "a load's error comes back as a ModelError"
