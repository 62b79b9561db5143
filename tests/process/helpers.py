"""What the process tests share: fake models, requests with checked answers, callers and watchers in threads."""

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.server import ROOT, Server


def fake(models: Path, name: str, top: str = "", **options: Any) -> Path:
    """A fake model with ``backend_options``; ``top``: more lines of its ``model.toml``. Input x FP32 [-1, 4]."""
    folder = models / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    text = f'backend = "fake"\n{top}\n[backend_options]\ninputs = {{ x = ["FP32", -1, 4] }}\n'
    (folder / "model.toml").write_text(text + "\n".join(lines) + "\n")
    return folder


def infer(
    client: httpx.Client, model: str, value: float, *, rows: int = 1, width: int = 4, **headers: str
) -> httpx.Response:
    """One request whose input holds ``value`` everywhere."""
    x = {"name": "x", "datatype": "FP32", "shape": [rows, width], "data": [value] * (rows * width)}
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return client.post(f"/v2/models/{model}/infer", json={"inputs": [x]}, headers=named)


def answer(response: httpx.Response) -> list[float]:
    """The values of the first output."""
    assert response.status_code == 200, (response.status_code, response.text)
    data: list[float] = response.json()["outputs"][0]["data"]
    return data


def code(response: httpx.Response) -> str:
    """The error's code, in either form of error body."""
    body = response.json()
    return str(body["code"] if isinstance(body["error"], str) else body["error"]["code"])


class Callers:
    """Threads that ask ``model`` without a pause. Each request has a value of its own, and every outcome is kept:
    ``outcomes`` has (value, status or exception name, first value of the answer or the error's body).

    With ``retry`` a caller goes on after an error, else its thread ends there.
    """

    def __init__(self, url: str, model: str, threads: int = 8, retry: bool = True) -> None:
        self._url = url
        self._model = model
        self._retry = retry
        self._values = itertools.count(1)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, daemon=True) for _ in range(threads)]
        self.outcomes: list[tuple[int, int | str, Any]] = []

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request got no answer within a minute"

    def ended(self) -> bool:
        """True when every caller has given up."""
        return not any(thread.is_alive() for thread in self._threads)

    def since(self, count: int, more: int) -> Callable[[], bool]:
        """True when ``more`` outcomes have come after the first ``count``."""
        return lambda: len(self.outcomes) >= count + more

    def _call(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60, trust_env=False) as client:
            while not self._over.is_set():
                value = next(self._values)
                try:
                    got = infer(client, self._model, value)
                except httpx.HTTPError as error:
                    self.outcomes.append((value, type(error).__name__, str(error)))
                    if not self._retry:
                        return
                    time.sleep(0.05)
                    continue
                if got.status_code == 200:
                    self.outcomes.append((value, 200, got.json()["outputs"][0]["data"]))
                    continue
                self.outcomes.append((value, got.status_code, got.text))
                if not self._retry:
                    return
                time.sleep(0.05)


class Watcher:
    """A thread that asks ``/health`` and ``/api/status`` all the time; ``faults`` holds every call that failed,
    ``states`` every state of the engine that was seen, in order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.calls = 0
        self.faults: list[str] = []
        self.states: list[str] = []

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)
        assert self.calls > 0
        assert not self.faults

    def _watch(self) -> None:
        with httpx.Client(base_url=self._url, timeout=10, trust_env=False) as client:
            while not (self.calls and self._over.wait(0.02)):
                for path in ("/health", "/api/status"):
                    self.calls += 1
                    try:
                        got = client.get(path)
                    except httpx.HTTPError as error:
                        self.faults.append(f"{path}: {error!r}")
                        continue
                    if got.status_code != 200:
                        self.faults.append(f"{path}: {got.status_code}")
                    elif path == "/api/status" and got.json()["engine"]["state"] not in self.states[-1:]:
                        self.states.append(got.json()["engine"]["state"])


def gone(pid: int, wait_s: float) -> bool:
    """True if the process ends within ``wait_s`` (one that only waits to be reaped has ended)."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def restarted(server: Server, restarts: int, wait_s: float = 60) -> dict[str, Any]:
    """Wait until the engine has been restarted so often and all models are warm; the status then."""

    def back() -> dict[str, Any] | None:
        status = server.status()
        enough = status["engine"]["restarts"] >= restarts and status["engine"]["state"] == "ready"
        if not enough or server.client.get("/ready").status_code != 200:
            return None
        return server.status()  # the first one may be older than that

    found: dict[str, Any] = server.wait_for(back, wait_s, f"restart {restarts}")
    return found


def launch(server: Server, *command: str, cwd: Path = ROOT) -> None:
    """Start the program in another way than ``Server`` does; until the port answers."""
    with server.log.open("wb") as out:
        server.process = subprocess.Popen([sys.executable, *command], cwd=cwd, env=server.env, stdout=out, stderr=out)
    process = server.process
    server.wait_for(lambda: server.port_file.exists() or process.poll() is not None, 60, "the port file")
    assert process.poll() is None, server.log.read_text()
    server.url = json.loads(server.port_file.read_text())["url"]
    server.client.base_url = httpx.URL(server.url)


@contextmanager
def ending(server: Server) -> Iterator[Server]:
    """Ends what was started, as ``with Server`` does; for one that is started by hand within."""
    try:
        yield server
    finally:
        if server.process is not None:
            server.stop()
        server.client.close()
