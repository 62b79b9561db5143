"""Requests with binary tensors, many at a time, each with its own answer; and a look at the ledger meanwhile."""

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import httpx
import numpy as np

NAMES = {"float32": "FP32", "int64": "INT64", "uint8": "UINT8"}
TYPES = {name: dtype for dtype, name in NAMES.items()}
LENGTH = "Inference-Header-Content-Length"
WAIT_S = 180.0


class Answer(NamedTuple):
    """``status``: HTTP's, 0 where the connection broke. ``code``: of an error. ``infer_ms``: of the run itself."""

    status: int
    outputs: dict[str, np.ndarray]
    code: str
    seconds: float
    infer_ms: float
    device: str


class Job(NamedTuple):
    """A request, and whether an answer to it is right."""

    model: str
    inputs: Mapping[str, np.ndarray]
    right: Callable[[dict[str, np.ndarray]], bool] = lambda outputs: True


class Client:
    """One connection. Use as a context manager."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._http.get("/api/status").json()
        return found

    def infer(self, model: str, inputs: Mapping[str, np.ndarray]) -> Answer:
        """Never raises for what the server, or its end, does."""
        content, headers = _body(inputs)
        started = time.perf_counter()
        try:
            got = self._http.post(f"/v2/models/{model}/infer", content=content, headers=headers)
        except httpx.HTTPError as error:
            return Answer(0, {}, type(error).__name__, time.perf_counter() - started, 0.0, "")
        took = time.perf_counter() - started
        if got.status_code != 200:
            return Answer(got.status_code, {}, _code(got), took, 0.0, "")
        run = re.search(r"infer;dur=([\d.]+)", got.headers.get("server-timing", ""))
        return Answer(200, _outputs(got), "", took, float(run[1]) if run else 0.0, got.headers.get("x-device", ""))


def many(url: str, jobs: Sequence[Job], clients: int) -> list[tuple[Job, Answer]]:
    """All jobs, by ``clients`` connections that each take the next one."""
    todo, lock, done = iter(jobs), threading.Lock(), []

    def work() -> None:
        with Client(url) as client:
            while True:
                with lock:
                    job = next(todo, None)
                if job is None:
                    return
                answer = client.infer(job.model, job.inputs)
                with lock:
                    done.append((job, answer))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


class Callers:
    """Threads that ask without a pause until the end of the block; every outcome is kept in ``outcomes``.

    ``makes``: one thread for each; given the number of the request, it makes it.
    """

    def __init__(self, url: str, makes: Sequence[Callable[[int], Job]]) -> None:
        self._over = threading.Event()
        self._numbers = itertools.count(1)
        self.outcomes: list[tuple[Job, Answer]] = []
        self._threads = [threading.Thread(target=self._call, args=(url, make), daemon=True) for make in makes]

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(WAIT_S + 10)

    def _call(self, url: str, make: Callable[[int], Job]) -> None:
        with Client(url) as client:
            while not self._over.is_set():
                job = make(next(self._numbers))
                self.outcomes.append((job, client.infer(job.model, job.inputs)))


class Watch:
    """Looks at one pool's ledger all the time: the most bytes in flight, the least room, the most that waited."""

    def __init__(self, url: str, pool: str) -> None:
        self._url, self._pool = url, pool
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.in_flight, self.waiting, self.capacity, self.narrowing = 0, 0, 0, 1.0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(WAIT_S)

    def _look(self) -> None:
        with Client(self._url) as client:
            while not self._over.wait(0.03):
                try:
                    told = client.status()
                except httpx.HTTPError:
                    continue
                ledger = told["memory"].get(self._pool)
                if ledger:
                    self.in_flight = max(self.in_flight, ledger["in_flight"])
                    self.narrowing = min(self.narrowing, ledger["narrowing"])
                    room = ledger["capacity"] - ledger["weights"]
                    self.capacity = min(self.capacity or room, room)
                self.waiting = max(self.waiting, told["queue"]["waiting"])


def only(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """The one output there is, whatever an export has named it."""
    (found,) = outputs.values()
    return found


def tally(outcomes: Sequence[tuple[Job, Answer]]) -> tuple[int, str]:
    """(how many were answered rightly, what became of the others: ``2 × 507 insufficient_memory``)."""
    right, others = 0, {}
    for job, answer in outcomes:
        if answer.status == 200 and job.right(answer.outputs):
            right += 1
            continue
        what = "wrong answer" if answer.status == 200 else f"{answer.status} {answer.code}"
        others[what] = others.get(what, 0) + 1
    return right, ", ".join(f"{count} × {what}" for what, count in sorted(others.items()))


def _body(inputs: Mapping[str, np.ndarray]) -> tuple[bytes, dict[str, str]]:
    told, parts = [], []
    for name, array in inputs.items():
        data = np.ascontiguousarray(array).tobytes()
        kind = NAMES[array.dtype.name]
        size = {"binary_data_size": len(data)}
        told.append({"name": name, "datatype": kind, "shape": list(array.shape), "parameters": size})
        parts.append(data)
    head = json.dumps({"inputs": told, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(parts), {LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}


def _outputs(got: httpx.Response) -> dict[str, np.ndarray]:
    at = int(got.headers[LENGTH])
    found = {}
    for output in json.loads(got.content[:at])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        dtype = np.dtype(TYPES[output["datatype"]])
        found[output["name"]] = np.frombuffer(got.content[at : at + size], dtype).reshape(output["shape"])
        at += size
    return found


def _code(got: httpx.Response) -> str:
    try:
        body = got.json()
        return str(body["code"] if isinstance(body["error"], str) else body["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "?"
