"""SIGKILL under load: how long until the next answer, and how many requests are lost.

``python -m tests.bench.recovery [--kills 5] [--clients 16] [--load-ms 1000] [--every 6]``

One model that takes a second to load (the fake backend); clients that ask without a pause; the engine is killed
again and again. A request is lost when its answer is not a right one. The time to the first answer is the end of
the longest silence that began about at the kill: answers that were on their way still come.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.support.raw_client import RawClient
from tests.support.server import Server


class Ended(NamedTuple):
    """One request: when it was sent and answered (seconds), and how: ``200``, another status, or what was wrong."""

    sent: float
    answered: float
    outcome: str


async def _client(url: str, numbers: "itertools.count[int]", ended: list[Ended], over: asyncio.Event) -> None:
    client = RawClient(url)
    while not over.is_set():
        number = next(numbers)
        x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [number] * 4}
        sent = time.monotonic()
        try:
            answer = await asyncio.wait_for(
                client.post("/v2/models/m/infer", json.dumps({"inputs": [x]}).encode()), 90
            )
        except (OSError, EOFError, TimeoutError) as error:
            ended.append(Ended(sent, time.monotonic(), type(error).__name__))
            client.drop()
            continue
        outcome = str(answer.status)
        if answer.status == 200 and json.loads(answer.body)["outputs"][0]["data"] != [2 * number] * 4:
            outcome = "wrong"
        ended.append(Ended(sent, time.monotonic(), outcome))
    client.drop()


async def measure(server: Server, kills: int, clients: int, every: float) -> tuple[list[float], list[Ended]]:
    """(moments of the kills, every request)."""
    ended: list[Ended] = []
    moments = []
    over, numbers = asyncio.Event(), itertools.count(1)
    tasks = [asyncio.create_task(_client(server.url, numbers, ended, over)) for _ in range(clients)]
    for _ in range(kills):
        await asyncio.sleep(every)
        pid = await asyncio.to_thread(lambda: server.engine_pid)
        moments.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(every)
    over.set()
    await asyncio.gather(*tasks)
    return moments, ended


def silence(kill: float, good: list[float]) -> float:
    """Seconds from the kill to the first answer after it."""
    gaps = [(b - a, b) for a, b in itertools.pairwise(good) if a <= kill + 1 and b >= kill]
    return max(gaps)[1] - kill


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--load-ms", type=int, default=1000, help="how long the model takes to load")
    parser.add_argument("--every", type=float, default=6, help="seconds between kills")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "models/m"
        folder.mkdir(parents=True)
        options = f'inputs = {{ x = ["FP32", -1, 4] }}\nload_ms = {arguments.load_ms}\nrun_ms = 5\n'
        (folder / "model.toml").write_text(f'backend = "fake"\n[backend_options]\n{options}')
        with Server(Path(name)) as server:
            moments, ended = asyncio.run(measure(server, arguments.kills, arguments.clients, arguments.every))
    good = sorted(one.answered for one in ended if one.outcome == "200")
    table = Table(
        title=f"SIGKILL under load: {arguments.clients} clients, a model that loads in {arguments.load_ms} ms"
    )
    for column in ("kill", "in flight then", "of those answered rightly", "first answer after", "lost"):
        table.add_column(column, justify="right")
    for number, kill in enumerate(moments, 1):
        held = [one for one in ended if one.sent <= kill < one.answered]
        right = sum(one.outcome == "200" for one in held)
        table.add_row(str(number), str(len(held)), str(right), f"{silence(kill, good):.2f} s", str(len(held) - right))
    console = Console(width=100)
    console.print(table)
    told = ", ".join(f"{outcome}: {n:,}" for outcome, n in sorted(Counter(one.outcome for one in ended).items()))
    console.print(f"{len(ended):,} requests in all, answered {told}; lost: {len(ended) - len(good)}.")


if __name__ == "__main__":
    main()
