"""The seventeenth request: a device that is full after sixteen, and 500 requests at once.

``python -m tests.bench.seventeenth [--requests 500] [--run-ms 50]``

A fake device of 1 GiB, of which the model holds a quarter; each run takes a sixteenth of what is free. Beside the
appliance a twin as the tutorials build it: FastAPI, a sync route (so FastAPI's pool of 40 threads), and the same
device, which raises out-of-memory as a real one does.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from rich.console import Console
from rich.table import Table

from tests.support.server import ROOT, Server

MIB = 1 << 20
TOTAL = 1024 * MIB
WEIGHTS = 256 * MIB
RUN = (TOTAL - WEIGHTS) // 16


class Outcome(NamedTuple):
    """What became of the requests. ``ran_out``: how often the device had no memory."""

    name: str
    answered: int
    refused: int
    failed: int
    ran_out: int
    seconds: float


def twin(run_ms: float) -> Any:
    """The tutorials' server."""
    from fastapi import FastAPI, Response

    from appliance.backends.fake_device import FakeDevice
    from appliance.errors import InsufficientMemory

    app, device, ran_out, lock = FastAPI(), FakeDevice(TOTAL), [0], threading.Lock()
    device.take(WEIGHTS)

    @app.post("/infer")
    def infer() -> Response:
        try:
            device.take(RUN)
        except InsufficientMemory as error:
            with lock:
                ran_out[0] += 1
            return Response(str(error), status_code=500)
        try:
            time.sleep(run_ms / 1000)
        finally:
            device.give(RUN)
        return Response("ok")

    @app.get("/ran-out")
    def count() -> int:
        return ran_out[0]

    return app


def ask(url: str, body: dict[str, Any], requests: int) -> tuple[Counter[int], float]:
    """(answers by status, seconds) of so many requests at once."""
    limits = httpx.Limits(max_connections=requests, max_keepalive_connections=requests)
    with (
        httpx.Client(timeout=120, trust_env=False, limits=limits) as client,
        ThreadPoolExecutor(requests) as pool,
    ):
        started = time.perf_counter()
        answers = [pool.submit(client.post, url, json=body) for _ in range(requests)]
        found = Counter(answer.result().status_code for answer in answers)
        return found, time.perf_counter() - started


def outcome(name: str, found: Counter[int], ran_out: int, seconds: float) -> Outcome:
    refused = found[429] + found[503]
    return Outcome(name, found[200], refused, found.total() - found[200] - refused, ran_out, seconds)


def appliance(requests: int, run_ms: float, folder: Path) -> Outcome:
    """The same model and device behind the appliance, with its own settings."""
    server = Server(folder, memory_fraction=1.0, memory_reserve_bytes=0)
    path = server.models / "heavy"
    path.mkdir()
    (path / "model.toml").write_text(
        f'backend = "fake"\ninstances = 64\n[batching]\nmax = 1\n[memory]\nrun_bytes = {RUN}\n'
        f"[backend_options]\ndevice_bytes = {TOTAL}\nweight_bytes = {WEIGHTS}\nrun_bytes = {RUN}\nrun_ms = {run_ms}\n"
    )
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
    with server:
        server.wait_for(lambda: server.status()["memory"].get("fake:0", {}).get("known"), 20, "a reading")
        found, seconds = ask(f"{server.url}/v2/models/heavy/infer", body, requests)
        ran_out = server.status()["memory"]["fake:0"]["out_of_memory"]
    return outcome("appliance", found, ran_out, seconds)


@contextmanager
def running_twin(run_ms: float) -> Iterator[str]:
    """The twin in a process of its own; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tests.bench.seventeenth", "--twin", str(port), "--run-ms", str(run_ms)]
    process = subprocess.Popen(command, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                httpx.get(f"{url}/ran-out", trust_env=False)
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def fastapi(requests: int, run_ms: float) -> Outcome:
    """The twin under the same load."""
    with running_twin(run_ms) as url:
        found, seconds = ask(f"{url}/infer", {}, requests)
        ran_out = httpx.get(f"{url}/ran-out", trust_env=False).json()
    return outcome("FastAPI + thread pool", found, ran_out, seconds)


def main() -> None:
    """Both, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500, help="how many at once")
    parser.add_argument("--run-ms", type=float, default=50, help="how long a run takes")
    parser.add_argument("--twin", type=int, help=argparse.SUPPRESS)  # serve the twin on this port
    arguments = parser.parse_args()
    if arguments.twin:
        import uvicorn

        uvicorn.run(twin(arguments.run_ms), port=arguments.twin, log_level="error", access_log=False)
        return
    table = Table(title=f"{arguments.requests} requests at once, each a sixteenth of the free memory")
    for column in ("server", "answered", "refused (429, 503)", "failed (5xx)", "out of memory", "seconds"):
        table.add_column(column, justify="left" if column == "server" else "right")
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            appliance(arguments.requests, arguments.run_ms, Path(folder)),
            fastapi(arguments.requests, arguments.run_ms),
        ]
    for row in rows:
        *cells, seconds = row
        table.add_row(*map(str, cells), f"{seconds:.1f}")
    console = Console(width=100)
    console.print(table)
    console.print("Refused: with Retry-After, at once, since 256 requests wait already (queue_per_model).")


if __name__ == "__main__":
    main()
