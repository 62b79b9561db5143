"""The appliance beside plain ONNX Runtime in a loop and FastAPI with its thread pool, in one run.

``python -m tests.bench [--seconds 3] [--rounds 5] [--clients 1,16]``

The same threads for all three. The three are measured in turn, several times, and medians are printed, since
machines are shared: compare the rows of one run, never those of two.
"""

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

from tests.bench.load import Measured, measure, tool
from tests.support.nets import mlp
from tests.support.server import ROOT, Server

EMBEDDED = ROOT / "assets" / "models"


class Case(NamedTuple):
    """One model, with an input of ones."""

    name: str
    file: Path
    input: str
    shape: list[int]
    threads: int


def plain(case: Case, seconds: float) -> Measured:
    """ONNX Runtime alone, in a loop, in this process."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = case.threads
    session = ort.InferenceSession(case.file, options, providers=["CPUExecutionProvider"])
    x = np.ones(case.shape, dtype=np.float32)
    session.run(None, {case.input: x})
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        session.run(None, {case.input: x})
        times.append(time.perf_counter() - started)
    cuts = statistics.quantiles(times, n=100)
    return Measured(len(times) / sum(times), cuts[49] * 1e3, cuts[98] * 1e3, 0)


def binary_request(case: Case) -> tuple[bytes, dict[str, str]]:
    """The protocol's binary form of one request."""
    x = np.ones(case.shape, dtype=np.float32).tobytes()
    entry = {
        "name": case.input,
        "shape": case.shape,
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(x)},
    }
    header = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    return header + x, {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(header)),
    }


@contextmanager
def appliance(case: Case, folder: Path) -> Iterator[str]:
    """The appliance with this one model; the URL of its infer route."""
    place = folder / f"appliance-{case.name}"
    model = place / "models" / case.name
    (model / "1").mkdir(parents=True)
    shutil.copy(case.file, model / "1" / "model.onnx")
    (model / "model.toml").write_text(f"threads = {case.threads}\n")
    with Server(place) as server:
        yield f"{server.url}/v2/models/{case.name}/infer"


@contextmanager
def twin(case: Case) -> Iterator[str]:
    """The FastAPI twin; the URL of its route."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shape = ",".join(str(d) for d in case.shape)
    command = [sys.executable, "-m", "tests.bench.twin", str(case.file), str(port), str(case.threads), case.input]
    process = subprocess.Popen([*command, shape], cwd=ROOT)
    try:
        for _ in range(200):
            try:
                httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/infer"
    finally:
        process.terminate()
        process.wait()


def run(case: Case, clients: list[int], seconds: float, rounds: int, folder: Path, console: Console) -> None:
    """Measure one model in rounds, everything in turn, and print the medians."""
    body, headers = binary_request(case)
    raw = np.ones(case.shape, dtype=np.float32).tobytes()
    found: dict[tuple[str, int], list[Measured]] = {}
    with appliance(case, folder) as ours, twin(case) as theirs:
        for count in clients:  # warm both
            measure(ours, body, headers, count, 1)
            measure(theirs, raw, {}, count, 1)
        for number in range(rounds):
            with console.status(f"{case.name}: round {number + 1} of {rounds}"):
                found.setdefault(("ONNX Runtime in a loop", 1), []).append(plain(case, seconds))
                for count in clients:
                    ours_now = measure(ours, body, headers, count, seconds)
                    found.setdefault(("appliance", count), []).append(ours_now)
                    theirs_now = measure(theirs, raw, {}, count, seconds)
                    found.setdefault(("FastAPI + thread pool", count), []).append(theirs_now)
    loop = [m.per_second for m in found[("ONNX Runtime in a loop", 1)]]
    table = Table(title=f"{case.name} ({case.threads} thread{'s' if case.threads > 1 else ''} a run)")
    for column in ("server", "clients", "requests/s", "of the loop", "p50 ms", "p99 ms", "failed"):
        table.add_column(column, justify="left" if column == "server" else "right")
    for (name, count), results in sorted(found.items(), key=lambda entry: (entry[0][1], entry[0][0] != "appliance")):
        rate = statistics.median(m.per_second for m in results)
        share = statistics.median(m.per_second / base for m, base in zip(results, loop, strict=True))
        table.add_row(
            name,
            str(count),
            f"{rate:,.0f}",
            f"{share:.0%}",
            f"{statistics.median(m.p50_ms for m in results):.2f}",
            f"{statistics.median(m.p99_ms for m in results):.2f}",
            str(sum(m.bad for m in results)),
        )
    console.print(table)
    noise = max(loop) / min(loop) - 1
    console.print(
        f"Medians of {rounds} rounds; the loop differs by {noise:.0%} between rounds; measured with {tool()}.\n"
    )


def main() -> None:
    """Both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--clients", default="1,16", help="numbers of clients, e.g. 1,16,64")
    arguments = parser.parse_args()
    clients = [int(c) for c in arguments.clients.split(",")]
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = Case("mlp", mlp(folder / "mlp.onnx"), "x", [1, 784], 1)
        image = Case("classify", EMBEDDED / "classify" / "1" / "model.onnx", "image", [1, 3, 224, 224], 1)
        for case in (small, image):
            run(case, clients, arguments.seconds, arguments.rounds, folder, console)


if __name__ == "__main__":
    main()
