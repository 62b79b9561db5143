"""Sixty-four clients, and an engine that is killed, stopped and reloaded under them.

``CHAOS_SECONDS=60 CHAOS_KILL_EVERY=5 pytest tests/process/test_chaos.py`` for a long run; it prints a table.
"""

import asyncio
import itertools
import json
import os
import shutil
import signal
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest

from tests.process.helpers import fake
from tests.support import nets
from tests.support.raw_client import Answer, RawClient
from tests.support.server import PHOTOS, ROOT, Server

SECONDS = float(os.environ.get("CHAOS_SECONDS", "20"))
KILL_EVERY_S = float(os.environ.get("CHAOS_KILL_EVERY", "5"))
ANSWER_S = 75.0  # queue deadline, run deadline and some more
CLIENTS = {"scale": 36, "slow": 8, "zoom": 8, "toggled": 8, "classify": 4}
PHOTO = (PHOTOS / "chelsea.png").read_bytes()
DICE = np.random.default_rng()
pytestmark = [pytest.mark.timeout(SECONDS * 3 + 240)]


class Kill(NamedTuple):
    at: float
    how: signal.Signals


class Record:
    """All that happened. ``answers``: (time, status); ``codes``: what the errors were; ``faults``: what was wrong."""

    def __init__(self) -> None:
        self.sent = 0
        self.hung_up = 0
        self.answers: list[tuple[float, int]] = []
        self.latencies: list[float] = []
        self.codes: Counter[str] = Counter()
        self.faults: list[str] = []
        self.kills: list[Kill] = []
        self.engines: list[psutil.Process] = []
        self.swaps = 0
        self.toggles = 0

    def first_answers(self) -> list[tuple[Kill, float]]:
        """For each kill the time to the first right answer after it: the end of the longest silence that began
        about then (what was on its way to the client at the kill still comes)."""
        good = sorted(moment for moment, status in self.answers if status == 200)
        found = []
        for kill in self.kills:
            pairs = [(b - a, b) for a, b in itertools.pairwise(good) if a <= kill.at + 2 and b >= kill.at]
            if pairs:
                found.append((kill, max(pairs)[1] - kill.at))
        return found


class Asker:
    """Makes requests to one model and knows the right answers."""

    numbers = itertools.count(1)

    def __init__(self, model: str, label: Any) -> None:
        self.model = model
        self.label = label

    def request(self) -> tuple[str, bytes, dict[str, str], Callable[[Answer], bool]]:
        """(path, body, headers, whether an answer with status 200 is the right one)."""
        if self.model == "classify":
            return "/predict/classify", PHOTO, {"Content_Type": "image/png"}, self._is_the_label
        number, rows = next(self.numbers), int(DICE.choice((1, 1, 1, 2, 3)))
        data = [float(number + row * 0.25) for row in range(rows) for _ in range(4)]
        x = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": data}
        factor = 3.0 if self.model == "zoom" else 2.0
        wanted = [factor * value for value in data]

        def right(answer: Answer) -> bool:
            (output,) = json.loads(answer.body)["outputs"]
            return bool(output["data"] == wanted and output["shape"] == [rows, 4])

        return f"/v2/models/{self.model}/infer", json.dumps({"inputs": [x]}).encode(), {}, right

    def _is_the_label(self, answer: Answer) -> bool:
        return bool(_best(answer.body) == self.label)


def _best(body: bytes) -> Any:
    return json.loads(body)["labels"][0]["label"]


def _designed(model: str, answer: Answer) -> str | None:
    """The code of an error that may happen here; None for one that may not."""
    body = json.loads(answer.body)
    code = str(body["code"] if isinstance(body["error"], str) else body["error"]["code"])
    if answer.status == 503 and code in ("engine_restarting", "warming_up", "queue_timeout"):
        return code if int(answer.headers.get("retry-after", "0")) > 0 else None
    if answer.status == 500 and code == "model_error" and "the engine ended while it ran" in answer.body.decode():
        return code
    if answer.status == 404 and code == "model_not_found" and model == "toggled":
        return code
    return None


async def _client(url: str, asker: Asker, record: Record, over: asyncio.Event, hang_up: float) -> None:
    client = RawClient(url)
    while not over.is_set():
        path, body, headers, right = asker.request()
        request_id = f"chaos-{next(Asker.numbers)}"
        record.sent += 1
        started = time.monotonic()
        try:
            await client.send(path, body, X_Request_ID=request_id, **headers)
            if DICE.random() < hang_up:
                await asyncio.sleep(DICE.random() * 0.1)
                client.drop()
                record.hung_up += 1
                continue
            answer = await asyncio.wait_for(client.receive(), ANSWER_S)
        except (OSError, EOFError, TimeoutError, AssertionError) as error:
            record.faults.append(f"{asker.model}: {error!r} after {time.monotonic() - started:.1f} s")
            client.drop()
            continue
        now = time.monotonic()
        record.answers.append((now, answer.status))
        if answer.headers.get("x-request-id") != request_id:
            record.faults.append(f"{asker.model}: the answer of another request: {answer}")
        if answer.status == 200:
            record.latencies.append(now - started)
            if not right(answer):
                record.faults.append(f"{asker.model}: a wrong answer: {body[:200]!r} -> {answer.body[:200]!r}")
        elif (code := _designed(asker.model, answer)) is None:
            record.faults.append(f"{asker.model}: {answer.status} {answer.body[:300]!r}")
        else:
            record.codes[f"{asker.model} {answer.status} {code}"] += 1
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.04 * DICE.random())
    client.drop()


async def _load(server: Server, label: Any, record: Record, chaos: Awaitable[None], hang_up: float) -> None:
    """All clients, for as long as ``chaos`` lasts."""
    over = asyncio.Event()
    askers = [Asker(model, label) for model, count in CLIENTS.items() for _ in range(count)]
    clients = [asyncio.create_task(_client(server.url, asker, record, over, hang_up)) for asker in askers]
    try:
        await chaos
    finally:
        over.set()
        await asyncio.gather(*clients)


async def _status(server: Server) -> dict[str, Any]:
    return await asyncio.to_thread(server.status)


async def _kill(server: Server, record: Record) -> None:
    """End the engine every five seconds; the middle one is stopped instead, which takes ten seconds to notice."""
    end = time.monotonic() + SECONDS
    while True:
        await asyncio.sleep(KILL_EVERY_S)
        if time.monotonic() > end - KILL_EVERY_S / 2:
            return
        engine = (await _status(server))["engine"]
        if engine["pid"] is None:
            continue
        stopped = any(kill.how == signal.SIGSTOP for kill in record.kills)
        late = time.monotonic() > end - SECONDS / 2 - 1
        how = signal.SIGSTOP if late and not stopped else signal.SIGKILL
        record.engines.append(psutil.Process(engine["pid"]))
        record.kills.append(Kill(time.monotonic(), how))
        os.kill(engine["pid"], how)
        if how == signal.SIGSTOP:
            before = engine["restarts"]
            while (await _status(server))["engine"]["restarts"] == before:
                await asyncio.sleep(0.2)


async def _swap(server: Server, record: Record, over: asyncio.Event) -> None:
    """Replace a served model's file by an equal one."""
    file = server.models / "zoom/1/model.onnx"
    while not over.is_set():
        await asyncio.sleep(2 + DICE.random())
        shutil.copy(file, file.with_suffix(".tmp"))
        file.with_suffix(".tmp").replace(file)
        record.swaps += 1


async def _toggle(server: Server, record: Record, over: asyncio.Event) -> None:
    """Unload a model and load it again."""
    client = RawClient(server.url)
    while not over.is_set():
        await asyncio.sleep(1 + DICE.random())
        for what in ("unload", "load"):
            answer = await client.post(f"/v2/repository/models/toggled/{what}", b"")
            if answer.status != 200:
                record.faults.append(f"{what}: {answer}")
        record.toggles += 1
    client.drop()


async def _chaos(server: Server, record: Record) -> None:
    over = asyncio.Event()
    others = [asyncio.create_task(work(server, record, over)) for work in (_swap, _toggle)]
    try:
        await _kill(server, record)
    finally:
        over.set()
        await asyncio.gather(*others)
    # What the last death interrupted is still to be answered under load.
    while await asyncio.to_thread(lambda: server.client.get("/ready").status_code) != 200:
        await asyncio.sleep(0.1)
    await asyncio.sleep(1)


class Held(NamedTuple):
    descriptors: int
    threads: int
    memory: int

    @classmethod
    def by(cls, host: psutil.Process) -> "Held":
        return cls(host.num_fds(), host.num_threads(), host.memory_info().rss)


def _idle(server: Server) -> bool:
    queue = server.status()["queue"]
    return bool(queue["waiting"] == queue["running"] == 0)


def _table(record: Record, took: float, restarts: int, before: Held, after: Held) -> str:
    statuses = Counter(status for _, status in record.answers)
    cuts = statistics.quantiles(record.latencies, n=100)
    rows: list[tuple[str, str]] = [
        ("time", f"{took:.0f} s, {sum(CLIENTS.values())} clients"),
        ("requests", f"{record.sent:,}"),
        ("answers", ", ".join(f"{status}: {n:,}" for status, n in sorted(statuses.items()))),
        ("answers other than 200", ", ".join(f"{c}: {n}" for c, n in sorted(record.codes.items())) or "none"),
        ("clients that hung up", f"{record.hung_up:,}"),
        ("requests without an answer, or with a wrong one", str(len(record.faults))),
        ("kills, restarts", f"{len(record.kills)}, {restarts}"),
        ("files replaced, unloads and loads", f"{record.swaps}, {record.toggles}"),
        ("p50, p99, longest", f"{cuts[49] * 1e3:.1f} ms, {cuts[98] * 1e3:.0f} ms, {max(record.latencies):.1f} s"),
        ("host: descriptors", f"{before.descriptors} before, {after.descriptors} after"),
        ("host: threads", f"{before.threads} before, {after.threads} after"),
        ("host: memory", f"{before.memory / 1e6:.0f} MB before, {after.memory / 1e6:.0f} MB after"),
    ]
    rows += [(f"first answer after {kill.how.name}", f"{s:.2f} s") for kill, s in record.first_answers()]
    return "\n" + "\n".join(f"  {name:<48} {value}" for name, value in rows)


def test_every_request_has_one_answer_and_it_is_right(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, factor in (("scale", 2.0), ("zoom", 3.0), ("toggled", 2.0)):
        nets.scale(folder / f"models/{name}/1/model.onnx", factor)
    fake(folder / "models", "slow", "instances = 2", run_ms=40, batch=False)
    shutil.copytree(ROOT / "assets/models/classify", folder / "models/classify")
    record = Record()
    with Server(folder, threads=1) as server:
        assert server.process is not None
        host = psutil.Process(server.process.pid)
        picture = server.client.post("/predict/classify", content=PHOTO, headers={"Content-Type": "image/png"})
        label = _best(picture.content)
        asyncio.run(_load(server, label, calm := Record(), asyncio.sleep(2), 0.03))
        assert not calm.faults and not calm.codes
        server.wait_for(lambda: _idle(server), 30, "an idle gate")
        before = Held.by(host)

        started = time.monotonic()
        asyncio.run(_load(server, label, record, _chaos(server, record), 0.03))
        took = time.monotonic() - started

        server.wait_for(lambda: _idle(server), 30, "an idle gate")
        server.wait_for(lambda: host.num_fds() <= before.descriptors, 20, "descriptors that are closed")
        server.wait_for(lambda: host.num_threads() <= before.threads + 4, 20, "threads that have ended")
        engine, after = server.status()["engine"], Held.by(host)
        with capsys.disabled():
            print(_table(record, took, engine["restarts"], before, after))
        assert not record.faults, f"{len(record.faults)} faults:\n" + "\n".join(record.faults[:20])
        assert len(record.answers) + record.hung_up == record.sent
        assert engine["restarts"] == len(record.kills) >= 2
        assert len(engine["deaths"]) == min(20, len(record.kills))
        assert sum(n for code, n in record.codes.items() if "500" in code) <= len(record.kills)
        assert len(record.first_answers()) == len(record.kills)
        assert after.memory - before.memory < 100e6
        assert [child.pid for child in host.children(recursive=True)] == [engine["pid"]]
        assert not [process.pid for process in record.engines if process.is_running()]
        log = server.log.read_text()
        assert "Traceback" not in log and "internal fault" not in log
