"""Requests of different length share a run where the model has ``pads``, and cost what they are filled up to."""

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from appliance.engine.messages import CostPoint, DeviceMemory
from appliance.gate.batch import batch_key
from appliance.gate.ticket import Ticket
from appliance.models.spec import ModelSpec, Pad, TensorSpec
from appliance.models.tensors import Tensor, from_array
from tests.support import virtual_time
from tests.support.fake_runner import model_spec, numbers
from tests.unit.gate.gate_helpers import Bench, timed

MIB = 1 << 20
PADS = {"length": Pad((4, 8, 16), {"x": 1}, {"y": 1})}


def spec_of(pads: dict[str, Pad] = PADS, max_batch: int = 4) -> ModelSpec:
    return msgspec.structs.replace(model_spec(max_batch=max_batch, width=-1), pads=pads)


def x(length: int, rows: int = 1, mark: float = 0) -> tuple[Tensor, ...]:
    return (from_array("x", np.full((rows, length), mark, np.float32)),)


def ask(bench: Bench, length: int, rows: int = 1, mark: float = 0, **more: Any) -> Ticket:
    return bench.queue.submit("r", x(length, rows, mark), ("y",), queue_s=30, run_s=60, **more)


def test_keys() -> None:
    spec = spec_of()
    key = {n: batch_key(spec, x(n), ("y",)) for n in (0, 1, 4, 5, 8, 9, 16, 17)}
    assert key[1] == key[4] and key[5] == key[8] and key[9] == key[16]
    assert len({k for _, k in key.values()}) == 4
    assert key[0] == key[17] == (1, None), "too long or empty: alone, as it is"
    assert batch_key(spec, x(3, 3), ("y",)) == (3, key[1][1])
    assert batch_key(spec, x(3), ("z",))[1] != key[1][1]
    assert batch_key(spec_of({}), x(3), ("y",)) != batch_key(spec_of({}), x(4), ("y",))
    assert batch_key(spec_of(max_batch=0), x(3), ("y",)) == (1, None)


@timed
async def test_different_lengths_share_a_run_and_each_is_counted_filled_up() -> None:
    bench = Bench(spec_of())
    ask(bench, 4)
    waits = [ask(bench, n) for n in (5, 8, 3, 7, 17)]
    bench.runner.finish()
    assert [[i[0].shape for i in run.items] for run in bench.runner.started] == [
        [(1, 4)],
        [(1, 5), (1, 8), (1, 7)],
    ], "what is sent is not filled up: the engine does that"
    assert [t.shapes for t in waits] == [((1, 8),), ((1, 8),), ((1, 4),), ((1, 8),), ((1, 17),)]
    assert [t.nbytes for t in waits] == [32, 32, 16, 32, 68]
    stream = ask(bench, 5, stream=True)
    assert stream.key is None and stream.shapes == ((1, 5),), "a stream is never filled up"


@timed
async def test_the_cost_is_the_bucket_s() -> None:
    points = (CostPoint(((8,),), 1, 100 * MIB), CostPoint(((8,),), 2, 160 * MIB), CostPoint(((16,),), 1, 300 * MIB))
    bench = Bench(spec_of(), attach=False)
    bench.gate.memory_read({"cpu": DeviceMemory(1 << 30, 1 << 30, 0)})
    bench.gate.memory.loaded(("m", "1"), bench.spec, 0, points)
    bench.queue.attach(bench.runner, 7, bench.spec)
    ledger = bench.gate.memory.ledger("cpu")
    for lengths, size in (((5,), 100), ((6, 7), 160), ((9,), 300)):
        bench.gate.pause()
        for n in lengths:
            ask(bench, n)
        bench.gate.resume()
        assert ledger.in_flight == size * MIB
        bench.runner.finish()


@pytest.mark.parametrize("seed", range(20))
def test_under_random_load_each_answer_is_its_own(seed: int) -> None:
    async def test() -> None:
        roll = random.Random(seed)  # noqa: S311
        bench = Bench(spec_of())
        sent: list[tuple[Ticket, int, int]] = []
        while len(sent) < 100 or bench.runner.open:
            if len(sent) < 100 and (roll.random() < 0.6 or not bench.runner.open):
                length, rows = roll.randint(1, 18), roll.randint(1, 2)
                sent.append((ask(bench, length, rows, len(sent) + 1), length, rows))
            else:
                bench.runner.finish()
        for mark, (ticket, length, rows) in enumerate(sent, 1):
            assert numbers(await bench.queue.result(ticket)) == [mark] * (rows * length)
        assert len(bench.runner.started) < len(sent)
        for run in bench.runner.started:
            lengths = {next((b for b in (4, 8, 16) if b >= i[0].shape[1]), 0) for i in run.items}
            assert len(lengths) == 1 and (lengths != {0} or len(run.items) == 1)

    virtual_time.run(test())


def test_texts_beside_what_is_filled_up() -> None:
    async def test() -> None:
        inputs = (TensorSpec("x", "FP32", (-1, -1)), TensorSpec("t", "BYTES", (-1, 1)))
        bench = Bench(msgspec.structs.replace(spec_of(), inputs=inputs))
        texts = from_array("t", np.array([[b"abc"]], dtype=object))
        ticket = bench.queue.submit("r", (*x(3), texts), ("y",), queue_s=1, run_s=1)
        assert ticket.shapes == ((1, 4), (1, 1)) and ticket.nbytes == 16 + 7

    virtual_time.run(test())
