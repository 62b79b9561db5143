"""32 callers of a real language model in memory that holds four of the largest of them: what each waits, and whether
anything goes over. Then the same while the engine is killed twice. Then how soon a caller that leaves is gone.

``python -m tests.bench.crowd --model FOLDER`` with a folder in the format of ONNX Runtime GenAI. Prompts have 10 to
2,000 tokens, each as many times as long as the one before. Every answer is compared with what the same request is
told alone.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
from tokenizers import Tokenizer

from tests.support.crowd import WHOLE, Caller, Ledger
from tests.support.server import Server

CALLERS = 32
SHORTEST, LONGEST = 10, 2000
GROUPS = (50, 200, 800, LONGEST)
SUBJECTS = ("river", "castle", "engine", "garden", "market", "planet", "teacher", "winter", "bridge", "letter")
MIB = 1 << 20


def prompts(folder: Path, count: int) -> list[list[int]]:
    """Token ids, rising in number; no two begin alike."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sizes = [round(SHORTEST * (LONGEST / SHORTEST) ** (n / (count - 1))) for n in range(count)]
    texts = [
        f"Story {n}. " + " ".join(f"The {SUBJECTS[(n + k) % 10]} number {k} was old." for k in range(size))
        for n, size in enumerate(sizes)
    ]
    return [tokenizer.encode(text).ids[:size] for size, text in zip(sizes, texts, strict=True)]


def server_of(temp: Path, folder: Path, **settings: Any) -> Server:
    """With room for more answers at once than the memory holds."""
    server = Server(temp, memory_reserve_bytes=0, queue_timeout_ms=600_000, run_timeout_ms=600_000, **settings)
    shutil.copytree(folder, server.models / "m")
    (server.models / "m" / "model.toml").write_text("[backend_options]\nstreams = 32\n")
    return server


def bounds(folder: Path, tokens: int) -> tuple[float, int, int]:
    """The share of the system's memory that holds weights and four of the largest requests; what the first and one of
    the second take, in bytes."""
    with tempfile.TemporaryDirectory() as temp, server_of(Path(temp), folder) as server:
        told = server.wait_for(lambda: (m := server.status()["memory"]["cpu"])["known"] and m, 60, "a reading")
        caller = Caller(server, "m", [1] * LONGEST, tokens, ignore_eos=True)
        size = server.wait_for(lambda: server.status()["memory"]["cpu"]["in_flight"], 30, "a booked request")
        caller.join()
        return (told["weights"] + 4.02 * size) / told["total"], told["weights"], size


def engine_of(server: Server) -> int:
    """The process that has the model; 0 while none has. There may be others, for other kinds of models."""
    status = server.status()
    homes = {copy["engine"] for model in status["models"] for each in model["versions"] for copy in each["copies"]}
    return next((engine["pid"] for engine in status["engines"] if engine["id"] in homes and engine["pid"]), 0)


class Resident:
    """The most that the engine process held while it was watched, in bytes."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.before = self.most = 0

    def __enter__(self) -> "Resident":
        self.before = self._process.memory_info().rss
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.02):
            self.most = max(self.most, self._process.memory_info().rss)


def alone(server: Server, asked: list[list[int]], tokens: int) -> list[Caller]:
    callers = []
    for prompt in asked:
        callers.append(Caller(server, "m", prompt, tokens, ignore_eos=True))
        callers[-1].join()
    return callers


def rows(asked: list[list[int]], crowd: list[Caller], single: list[Caller]) -> Iterator[str]:
    yield "| tokens of the prompt | callers | alone: first token, s | in the crowd: first token, s | total, s |"
    yield "|---|---|---|---|---|"
    low = SHORTEST
    for high in GROUPS:
        chosen = [n for n, prompt in enumerate(asked) if low <= len(prompt) <= high]
        one = statistics.median(single[n].last.first for n in chosen)
        first = [crowd[n].last.first for n in chosen]
        total = [crowd[n].last.total for n in chosen]
        yield (
            f"| {low} to {high} | {len(chosen)} | {one:.2f} | {statistics.median(first):.1f}, most {max(first):.1f} "
            f"| {statistics.median(total):.1f}, most {max(total):.1f} |"
        )
        low = high + 1


def quiet(server: Server) -> str:
    server.wait_for(lambda: not server.status()["queue"]["running"], 10)
    told = server.status()["memory"]["cpu"]
    return f"booked at the end: {told['in_flight']} bytes, out of memory: {told['out_of_memory']} times"


def peaceful(server: Server, asked: list[list[int]], tokens: int, single: list[Caller]) -> Iterator[str]:
    began = time.perf_counter()
    with Ledger(server, "cpu") as ledger, Resident(engine_of(server)) as resident:
        crowd = [Caller(server, "m", prompt, tokens, ignore_eos=True) for prompt in asked]
        for caller in crowd:
            caller.join()
    took = time.perf_counter() - began
    ends = Counter(caller.last.end for caller in crowd)
    same = sum(caller.last.text == one.last.text for caller, one in zip(crowd, single, strict=True))
    yield f"{len(crowd)} callers at once, {took:.0f} s: {dict(ends)}; {same} answers as alone"
    yield from rows(asked, crowd, single)
    yield (
        f"at most {ledger.running} answers at once, {ledger.most / MIB:.0f} MiB booked, over the ceiling in "
        f"{ledger.over} of {ledger.looks} looks; the engine grew by "
        f"{(resident.most - resident.before) / MIB:.0f} MiB at most; {quiet(server)}"
    )


def killed(server: Server, asked: list[list[int]], tokens: int, single: list[Caller]) -> Iterator[str]:
    began = time.perf_counter()
    with Ledger(server, "cpu") as ledger:
        crowd = [Caller(server, "m", prompt, tokens, most=3, ignore_eos=True) for prompt in asked]
        for answers in (len(crowd) // 4, len(crowd) * 5 // 8):
            while sum(not caller.is_alive() for caller in crowd) < answers or not server.status()["queue"]["running"]:
                time.sleep(0.02)
            pid = engine_of(server)
            os.kill(pid, signal.SIGKILL)
            server.wait_for(lambda pid=pid: engine_of(server) not in (0, pid), 60, "another engine")
        for caller in crowd:
            caller.join()
    tries = [one for caller in crowd for one in caller.tries]
    ends = Counter(f"{one.end} {one.code}".strip() for one in tries)
    same = sum(caller.last.text == one.last.text for caller, one in zip(crowd, single, strict=True))
    whole = sum(caller.last.end == WHOLE for caller in crowd)
    yield (
        f"the engine killed twice, {time.perf_counter() - began:.0f} s: {dict(ends)}; {whole} of {len(crowd)} have "
        f"their answer, {same} as alone; over the ceiling in {ledger.over} of {ledger.looks} looks; {quiet(server)}"
    )


def left(server: Server, asked: list[list[int]], times: int) -> Iterator[str]:
    """From the close of the connection until nothing is booked any more."""
    for words, prompt, tokens in (
        ("in mid-answer", asked[0], 1000),
        ("while its prompt of 2,000 tokens is read", asked[-1], 8),
    ):
        took = []
        for n in range(times):
            with _asked(server, prompt, tokens):
                _until(lambda: _booked(server))
                time.sleep(0.1 + 0.02 * n)
            took.append(_until(lambda: not _booked(server)))
        told = f"median {statistics.median(took) * 1e3:.0f} ms, most {max(took) * 1e3:.0f} ms"
        yield f"a caller that leaves {words}, {times} times: its memory is free after {told}"


def _asked(server: Server, prompt: list[int], tokens: int) -> socket.socket:
    """A connection on which a stream was asked for."""
    asked = {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    body, url = json.dumps(asked).encode(), httpx.URL(server.url)
    sock = socket.create_connection((url.host, url.port or 80))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock


def _booked(server: Server) -> int:
    size: int = server.status()["memory"]["cpu"]["in_flight"]
    return size


def _until(condition: Callable[[], object]) -> float:
    """Seconds until then."""
    at = time.perf_counter()
    while not condition():
        time.sleep(0.001)
    return time.perf_counter() - at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=40, help="of each answer")
    parser.add_argument("--callers", type=int, default=CALLERS)
    parser.add_argument("--parts", default="peaceful,killed,left")
    asked = parser.parse_args()
    folder = asked.model.resolve()
    share, weights, size = bounds(folder, asked.tokens)
    print(f"weights {weights / MIB:.0f} MiB, the largest request {size / MIB:.0f} MiB", flush=True)
    ids = prompts(folder, asked.callers)
    parts = asked.parts.split(",")
    with tempfile.TemporaryDirectory() as temp, server_of(Path(temp), folder, cpu_memory_fraction=share) as server:
        told = server.status()["memory"]["cpu"]
        print(f"room for {(told['ceiling'] - told['weights']) / size:.2f} of those", flush=True)
        single = alone(server, ids, asked.tokens) if {"peaceful", "killed"} & set(parts) else []
        for name, part in (("peaceful", peaceful), ("killed", killed)):
            if name in parts:
                for line in part(server, ids, asked.tokens, single):
                    print(line, flush=True)
        if "left" in parts:
            for line in left(server, ids, 20):
                print(line, flush=True)


if __name__ == "__main__":
    main()
