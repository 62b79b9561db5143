"""The appliance beside plain ONNX Runtime in a loop, FastAPI with its thread pool and, if one runs, Triton.

``python -m tests.bench [--seconds 3] [--rounds 5] [--clients 1,16,64] [--models mlp,classify]
[--triton http://127.0.0.1:8000]``

The same threads for all. They are measured in turn, several times, and medians are printed, since machines are
shared: compare the rows of one run, never those of two. ``--triton`` is a server that has the same ``mlp``; it gets
the very bytes that the appliance gets. ``vad`` is measured where ``APPLIANCE_TEST_MODELS`` has it.
"""

import argparse
import json
import os
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

from appliance.models.tensors import datatype_of
from tests.bench.load import Measured, measure, tool
from tests.support.nets import mlp
from tests.support.server import ROOT, Server

EMBEDDED = ROOT / "assets" / "models"


class Case(NamedTuple):
    """One model and its inputs."""

    name: str
    file: Path
    inputs: dict[str, np.ndarray]
    threads: int


def cases(folder: Path) -> list[Case]:
    """The models, those that are here. ``folder``: where made ones are put."""

    def ones(*shape: int) -> np.ndarray:
        return np.ones(shape, dtype=np.float32)

    found = [
        Case("mlp", mlp(folder / "mlp.onnx"), {"x": ones(1, 784)}, 1),
        Case("classify", EMBEDDED / "classify" / "1" / "model.onnx", {"image": ones(1, 3, 224, 224)}, 1),
    ]
    vad = Path(os.environ.get("APPLIANCE_TEST_MODELS", "")) / "vad" / "silero_vad.onnx"
    if vad.is_file():
        inputs = {"input": ones(1, 512), "state": ones(2, 1, 128), "sr": np.array(16000, dtype=np.int64)}
        found.insert(1, Case("vad", vad, inputs, 1))
    return found


def plain(case: Case, seconds: float) -> Measured:
    """ONNX Runtime alone, in a loop, in this process."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = case.threads
    session = ort.InferenceSession(case.file, options, providers=["CPUExecutionProvider"])
    session.run(None, case.inputs)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        session.run(None, case.inputs)
        times.append(time.perf_counter() - started)
    cuts = statistics.quantiles(times, n=100)
    return Measured(len(times) / sum(times), cuts[49] * 1e3, cuts[98] * 1e3, 0)


def binary_request(case: Case) -> tuple[bytes, dict[str, str]]:
    """The protocol's binary form of one request."""
    entries = [
        {
            "name": name,
            "shape": list(x.shape),
            "datatype": datatype_of(x.dtype),
            "parameters": {"binary_data_size": x.nbytes},
        }
        for name, x in case.inputs.items()
    ]
    header = json.dumps({"inputs": entries, "parameters": {"binary_data_output": True}}).encode()
    return header + b"".join(x.tobytes() for x in case.inputs.values()), {
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
    inputs = {name: [str(x.dtype), list(x.shape)] for name, x in case.inputs.items()}
    command = [sys.executable, "-m", "tests.bench.twin", str(case.file), str(port), str(case.threads)]
    process = subprocess.Popen([*command, json.dumps(inputs)], cwd=ROOT)
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


def run(
    case: Case, clients: list[int], seconds: float, rounds: int, folder: Path, console: Console, triton: str | None
) -> None:
    """Measure one model in rounds, everything in turn, and print the medians."""
    body, headers = binary_request(case)
    raw = b"".join(x.tobytes() for x in case.inputs.values())
    found: dict[tuple[str, int], list[Measured]] = {}
    with appliance(case, folder) as ours, twin(case) as theirs:
        servers = [("appliance", ours, body, headers), ("FastAPI + thread pool", theirs, raw, {})]
        if triton:
            servers.append(("Triton", f"{triton.rstrip('/')}/v2/models/{case.name}/infer", body, headers))
        for count in clients:  # warm all
            for _, url, data, extra in servers:
                measure(url, data, extra, count, 1)
        for number in range(rounds):
            with console.status(f"{case.name}: round {number + 1} of {rounds}"):
                found.setdefault(("ONNX Runtime in a loop", 1), []).append(plain(case, seconds))
                for count in clients:
                    for name, url, data, extra in servers[:: 1 if number % 2 else -1]:
                        found.setdefault((name, count), []).append(measure(url, data, extra, count, seconds))
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
            f"{share:.1%}",
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
    """All models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--clients", default="1,16,64", help="numbers of clients, e.g. 1,16,64")
    parser.add_argument("--models", default="mlp,vad,classify", help="which of them")
    parser.add_argument("--triton", metavar="URL", help="a running Triton that has the same mlp")
    arguments = parser.parse_args()
    clients = [int(c) for c in arguments.clients.split(",")]
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases(folder):
            if case.name in arguments.models.split(","):
                triton = arguments.triton if case.name == "mlp" else None
                run(case, clients, arguments.seconds, arguments.rounds, folder, console, triton)


if __name__ == "__main__":
    main()
