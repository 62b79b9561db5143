"""From answers to numbers and remarks, worked out by hand; the client against a small server of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from appliance.bench.advise import present, words_of
from appliance.bench.faults import BenchError
from appliance.bench.load import Answer, Load, Window, error_of, queued
from appliance.bench.measure import plateau, remarks, round_of
from appliance.bench.options import Options, goal_of
from appliance.bench.payload import Payload
from appliance.bench.recommend import Goal, Setting, Tried
from appliance.bench.stages import Stage
from appliance.bench.target import Counters, memory_of
from appliance.models.folder import ModelFolder
from appliance.models.spec import Batching, ModelConfig
from tests.unit.bench import test_stages

NOWHERE = Path("nowhere")
BODIES = (b"one", b"two!")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def test_numbers_of_a_window() -> None:
    answers = [Answer(0.0, n / 1000, n / 10, "") for n in range(1, 101)]
    answers += [Answer(0.0, 9.0, 0.0, "queue_full", "full"), Answer(0.0, 9.0, 0.0, "no_answer")]
    found = round_of(Window(4.0, answers, 0.25), 2.5, 1000)
    assert (found.answers, found.per_second, found.errors) == (100, 25.0, {"queue_full": 1, "no_answer": 1})
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == pytest.approx((50.0, 95.0, 99.0))
    assert (found.queue_p50_ms, found.queue_p99_ms) == pytest.approx((5.0, 9.9))
    assert (found.batch, found.memory_bytes, found.client_cpu) == (2.5, 1000, 0.25)
    with pytest.raises(BenchError, match="queue_full: full"):
        round_of(Window(1.0, [Answer(0.0, 1.0, 0.0, "queue_full", "full")], 0.0), None, None)


def test_headers_and_errors() -> None:
    assert queued("queue;dur=0.125, infer;dur=2.000, total;dur=3.000") == 0.125
    assert queued("infer;dur=2, queue;dur=7") == 7.0
    assert queued("") == queued("queue;dur=x") == 0.0
    assert error_of(200, b"anything") == ("", "")
    assert error_of(429, b'{"error": "full", "code": "queue_full"}') == ("queue_full", "full")
    assert error_of(503, b'{"error": {"code": "paused", "message": "it is"}}') == ("paused", "it is")
    assert error_of(502, b"<html>") == ("502", "status 502")


def test_batches_and_memory() -> None:
    assert Counters(30, 10).batch_since(Counters(6, 4)) == 4.0
    assert Counters(6, 4).batch_since(Counters(6, 4)) is None
    status = {
        "device": {"running": "cuda:0, cpu"},
        "devices": [{"id": "cpu", "used_by_us": 1}, {"id": "cuda:0", "used_by_us": 5}],
        "engine": {"memory_bytes": 3},
        "memory": {"cuda:0": {"weights": 4, "in_flight": 2}},
    }
    assert memory_of(status) == 5
    status["devices"] = [{"id": "cuda:0", "used_by_us": None}]
    assert memory_of(status) == 6
    status["device"] = {"running": "cpu"}
    assert memory_of(status) == 3
    assert memory_of({"device": {"running": None}, "engine": {"memory_bytes": None}}) is None


def stage(clients: int, *throughputs: float, answers: int = 500, cpu: float = 0.1) -> Stage:
    rounds = (test_stages.round_of(per_second=value, answers=answers, client_cpu=cpu) for value in throughputs)
    return Stage(clients, tuple(rounds))


def test_remarks() -> None:
    stages = [stage(1, 90, 100, 110), stage(2, 190, 200, 205), stage(4, 195, 203, 210)]
    assert plateau(stages) == 1
    noise, full = remarks(stages)
    assert "up to 20 %" in noise and "From 2 clients on" in full
    assert plateau(stages[:2]) == 1  # still rising: nothing to say
    assert len(remarks(stages[:2])) == 1
    (unknown,) = remarks([stage(1, 100), stage(2, 50)])
    assert "unknown" in unknown
    _, busy, few = remarks([stage(1, 9, 10, cpu=0.97), stage(2, 20, 30, answers=7), stage(4, 40, 50, answers=7)])
    assert "97 %" in busy
    assert "with 2 and 4 clients" in few
    assert "with 1 client:" in remarks([stage(1, 9, 10, answers=7)])[1]


def test_a_setting_to_start_from() -> None:
    config = ModelConfig(instances=3, batching=Batching(max_delay_ms=2.0))
    start, bounds = present({"max_batch": 16, "device": "cuda:0"}, ModelFolder("m", NOWHERE, config), 4)
    assert start == Setting(16, 3, 2.0)
    assert (bounds.clients, bounds.max_instances, bounds.merges) == (4, 8, True)
    _, never = present({"max_batch": 0, "device": "cpu"}, ModelFolder("m", NOWHERE), 4)
    assert not never.merges
    one = ModelFolder("m", NOWHERE, ModelConfig(batching=Batching(max=1)))
    start, untried = present({"max_batch": 0, "device": None}, one, 4)
    assert start.batch == 1 and untried.merges


def test_advice_in_words() -> None:
    first = Tried(Setting(1, 1), None, (90.0, 100.0, 110.0), None, "as it is", taken=True)
    better = Tried(Setting(4, 1), "batch", (190.0, 200.0, 210.0), None, "better", taken=True)
    worse = Tried(Setting(4, 2), "instances", (1.0, 2.0, 3.0), None, "worse")
    assert words_of(Goal(), [first, better, worse]) == (
        "For throughput: batch 4, instances 1, delay 0 ms, in place of batch 1, instances 1, delay 0 ms. "
        "Measured 200/s, before 100/s."
    )
    assert "leave it as it is" in words_of(Goal(), [first, worse])
    far = Tried(Setting(1, 1), None, (-2.0, -1.5, -1.0), None, "as it is", taken=True)
    assert "keeps the bound: here it is p99 30 ms" in words_of(Goal(20.0), [far])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"write": True}, "--write needs a --goal"),
        ({"goal": "throughput"}, "add --own"),
        ({"goal": "fast", "own": True}, "latency:20ms"),
        ({"goal": "throughput", "own": True, "rounds": 2}, "--rounds 3"),
        ({"picture": test_stages.__file__, "tensors": True}, "take one"),
    ],
)
def test_wrong_command_lines(options: dict[str, object], words: str) -> None:
    with pytest.raises(BenchError, match=words) as caught:
        goal_of(Options(model="m", **options))  # type: ignore[arg-type]
    assert caught.value.exit_code == 2


# --- the client --------------------------------------------------------------------------------------------------


async def windowed(serve: Serve, clients: int) -> Window:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        load = Load(
            f"http://127.0.0.1:{port}", {"Authorization": "Bearer k"}, Payload("/p", {"X-A": "b"}, BODIES, "")
        )
        return await load.window(clients, 0.2, lambda share: None)


async def asked(reader: asyncio.StreamReader) -> bytes | None:
    """One request's body; None at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    assert head.startswith(b"POST /p HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer k\r\n" in head and b"\r\nX-A: b\r\n" in head
    return await reader.readexactly(int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0]))


def test_clients_keep_their_connection_and_send_all_bodies() -> None:
    connections, bodies = 0, set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while (body := await asked(reader)) is not None:
            bodies.add(body)
            await asyncio.sleep(0.002)
            answer = b"HTTP/1.1 200 OK\r\nServer-Timing: queue;dur=1.5, infer;dur=2\r\nContent-Length: 2\r\n\r\n{}"
            writer.write(answer[:40])
            writer.write(answer[40:])
        writer.close()

    window = asyncio.run(windowed(serve, 3))
    assert connections == 3
    assert bodies == set(BODIES)
    assert len(window.answers) >= 3
    assert all(answer.code == "" and answer.queued_ms == 1.5 and answer.seconds >= 0.002 for answer in window.answers)


def test_a_server_that_closes_and_refuses_is_counted() -> None:
    """Answers that are errors, a connection that is closed after each, and one that breaks off."""
    turn = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        if await asked(reader) is not None:
            turn += 1
            text = b'{"error": "full", "code": "queue_full"}'
            head = b"HTTP/1.1 429 Too Many\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text)
            writer.write(head + text if turn % 2 else b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{")
        writer.close()

    window = asyncio.run(windowed(serve, 1))
    assert {answer.code for answer in window.answers} == {"queue_full", "no_answer"}


def test_nobody_there() -> None:
    async def once() -> Answer:
        return await Load("http://127.0.0.1:9", {}, Payload("/p", {}, BODIES, "")).once()

    assert asyncio.run(once()).code == "no_answer"
