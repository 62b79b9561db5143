"""How long a request takes from its ticket to the start of its run in the engine, at half load.

``python -m tests.bench.dispatch [--seconds 10] [--load 0.5]``

The gate, the engine's client and a real engine process, without HTTP. A ticket has the time at which it was made, the
engine notes when it begins with a run, and both read the clock that all processes of the machine share (Linux:
``CLOCK_MONOTONIC``). Requests come one by one at random times, told by a process of their own, at a share of the rate
at which one caller gets its answers one after the other.
"""

import argparse
import asyncio
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from appliance.engine.client import EngineClient, OnChunk, OnResult
from appliance.engine.messages import Load
from appliance.gate.gate import Gate
from appliance.gate.model_queue import ModelQueue
from appliance.gate.ticket import Ticket
from appliance.models.spec import ModelConfig
from appliance.models.tensors import Tensor, from_array
from appliance.settings import Settings
from appliance.system.loops import new_event_loop
from appliance.system.processes import connect_to_parent, start_child
from tests.support.nets import mlp

_NOTE = struct.Struct("<qq")


def engine(notes: str) -> None:
    """An engine that notes (run, nanoseconds) of each start in a file."""
    from appliance.engine import lanes, worker

    fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    reply = lanes.LoadedModel._reply

    def noted(self: Any, job: Any) -> Any:
        os.write(fd, _NOTE.pack(job.message.id, time.monotonic_ns()))
        return reply(self, job)

    lanes.LoadedModel._reply = noted  # type: ignore[method-assign]
    worker.main(connect_to_parent())


def arrivals(rate: float, seconds: float) -> None:
    """A byte to standard output for each request."""
    at, end = time.monotonic(), time.monotonic() + seconds
    while at < end:
        at += random.expovariate(rate)
        time.sleep(max(0.0, at - time.monotonic()))
        os.write(1, b".")


class Noting:
    """A runner that notes which tickets went with which run."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.cancel = client.cancel
        self.runs: dict[int, list[int]] = {}

    def run(
        self,
        handle: int,
        items: Sequence[Sequence[Tensor]],
        outputs: tuple[str, ...],
        on_result: OnResult,
        on_chunk: OnChunk | None = None,
    ) -> int:
        run_id = self._client.run(handle, items, outputs, on_result, on_chunk)
        self.runs[run_id] = [id(item) for item in items]
        return run_id


class Ends:
    """The gate's observer: nothing is counted here."""

    def request_ended(self, ticket: Ticket) -> None: ...

    def batch_ended(self, model: str, version: str, rows: int, run_ns: int) -> None: ...


async def measure(seconds: float, load: float, folder: Path) -> tuple[float, list[float], list[int]]:
    """(requests a second, milliseconds from ticket to start of each, sizes of the runs)."""
    model, notes = mlp(folder / "mlp.onnx"), folder / "notes"
    command = [sys.executable, "-m", "tests.bench.dispatch", "--engine", str(notes)]
    process, sock = await asyncio.to_thread(start_child, command)
    client = EngineClient(lambda reason: None)
    await client.connect(sock)
    await client.hello
    loaded = await client.load(
        Load(1, "mlp", "1", str(model), str(folder), "onnx", "cpu", ModelConfig(), threads=1, max_batch=16)
    )
    gate = Gate(Settings(), Ends(), lambda reason: None)
    queue, runner = gate.queue("mlp", "1"), Noting(client)
    queue.attach(runner, 1, loaded.spec)
    row = from_array("x", np.ones((1, 784), dtype=np.float32))
    tickets: dict[int, float] = {}
    kept: list[tuple[Tensor, ...]] = []  # so that an id names one thing only

    def submit() -> Ticket:
        inputs = (row,)
        kept.append(inputs)
        ticket = queue.submit("r", inputs, ("y",), queue_s=30, run_s=60)
        tickets[id(inputs)] = ticket.created
        return ticket

    async def alone(queue: ModelQueue, seconds: float) -> float:
        count, started = 0, time.monotonic()
        while time.monotonic() < started + seconds:
            await queue.result(submit())
            count += 1
        return count / seconds

    await alone(queue, 1)
    rate = load * await alone(queue, 2)
    skip = len(kept)
    told = [sys.executable, "-m", "tests.bench.dispatch", "--arrivals", str(rate), "--seconds", str(seconds)]
    source = subprocess.Popen(told, stdout=subprocess.PIPE)
    assert source.stdout is not None
    fd, over = source.stdout.fileno(), asyncio.Event()

    def come() -> None:
        data = os.read(fd, 4096)
        for _ in data:
            submit()
        if not data:
            asyncio.get_running_loop().remove_reader(fd)
            over.set()

    asyncio.get_running_loop().add_reader(fd, come)
    await over.wait()
    await gate.drained()
    wanted = {id(inputs) for inputs in kept[skip:]}
    found, sizes = [], []
    for run_id, ns in _NOTE.iter_unpack(notes.read_bytes()):
        items = [item for item in runner.runs.get(run_id, ()) if item in wanted]
        found += [ns / 1e6 - tickets[item] * 1e3 for item in items]
        sizes += [len(items)] if items else []
    client.close()
    await asyncio.to_thread(process.wait)
    return len(found) / seconds, found, sizes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--load", type=float, default=0.5, help="share of what one caller gets")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--arrivals", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        engine(arguments.engine)
        return
    if arguments.arrivals:
        arrivals(arguments.arrivals, arguments.seconds)
        return
    with tempfile.TemporaryDirectory() as name, asyncio.Runner(loop_factory=new_event_loop) as runner:
        rate, found, sizes = runner.run(measure(arguments.seconds, arguments.load, Path(name)))
    cuts = statistics.quantiles(found, n=1000)
    table = Table(title="From ticket to engine start, mlp")
    for column in ("load", "requests/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "requests a run"):
        table.add_column(column, justify="right")
    values = [f"{cuts[n]:.3f}" for n in (499, 899, 989, 998)]
    table.add_row(f"{arguments.load:.0%}", f"{rate:,.0f}", *values, f"{statistics.mean(sizes):.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
