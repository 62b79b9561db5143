"""Told to end, the appliance ends within 5 seconds: requests are answered, the engine is gone, the port is free."""

import io
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from PIL import Image

from tests.process.helpers import Callers, answer, code, ending, fake, gone, infer
from tests.support import nets
from tests.support.server import ROOT, Server

_BOUND_S = 5.0


def _end(server: Server, sig: int, engine: int | None) -> None:
    """Send the signal and check all that must be true afterwards."""
    assert server.process is not None
    children = psutil.Process(server.process.pid).children(recursive=True)
    port = httpx.URL(server.url).port
    began = time.monotonic()
    exit_code = server.stop(sig)
    took = time.monotonic() - began
    assert exit_code == 0, server.log.read_text()
    assert took < _BOUND_S, server.log.read_text()
    if engine is not None:
        assert engine in [child.pid for child in children]
    assert all(gone(child.pid, _BOUND_S - took) for child in children)
    assert not server.port_file.exists()
    assert port is not None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    text = server.log.read_text()
    assert "Traceback" not in text, text
    assert "Error" not in text, text


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGHUP])
def test_idle(folder: Path, sig: int) -> None:
    nets.scale(folder / "models/scale/1/model.onnx")
    with Server(folder) as server:
        server.client.get("/health")  # a connection that stays open does not hold it up
        _end(server, sig, server.engine_pid)


def test_under_load(folder: Path) -> None:
    """What runs is finished, what waits or comes later is told to go, an event stream ends, nobody gets nothing."""
    fake(folder / "models", "slow", run_ms=700, batch=False)
    nets.scale(folder / "models/scale/1/model.onnx")
    with Server(folder) as server, Callers(server.url, "scale", 4, retry=False) as callers:
        stream_ended = threading.Event()
        ran: dict[int, httpx.Response] = {}

        def listen() -> None:
            with httpx.stream("GET", f"{server.url}/api/events", timeout=30, trust_env=False) as events:
                for _ in events.iter_bytes():
                    pass
            stream_ended.set()

        def ask(value: int) -> None:
            ran[value] = infer(server.client, "slow", value)

        def slow() -> dict[str, Any]:
            model = next(m for m in server.status()["models"] if m["name"] == "slow")
            version: dict[str, Any] = model["versions"][0]
            return version

        threads = [threading.Thread(target=listen, daemon=True)]
        threads += [threading.Thread(target=ask, args=(value,)) for value in range(4)]
        threads[0].start()
        threads[1].start()
        server.wait_for(lambda: slow()["running"] == 1, 10, "the slow run")
        for thread in threads[2:]:
            thread.start()
        server.wait_for(lambda: slow()["waiting"] == 3, 10, "the requests that wait")
        _end(server, signal.SIGTERM, server.engine_pid)
        for thread in threads:
            thread.join(10)
        assert stream_ended.is_set()
        server.wait_for(callers.ended, 10, "the callers")
    answered = [value for value, got in ran.items() if got.status_code == 200]
    refused = [got for got in ran.values() if got.status_code != 200]
    assert len(answered) == 1 and len(refused) == 3, ran
    assert answer(ran[answered[0]]) == [2.0 * answered[0]] * 4
    assert {(got.status_code, code(got)) for got in refused} == {(503, "paused")}
    assert all(int(got.headers["retry-after"]) > 0 for got in refused)
    _check_callers(callers)


def _check_callers(callers: Callers) -> None:
    """Every answer is right; the last thing a caller hears is 503 ``paused`` or that nobody listens any more."""
    for value, status, got in callers.outcomes:
        if status == 200:
            assert got == [2.0 * value] * 4
        elif status == 503:
            assert '"paused"' in got
        else:
            # A request that was sent on a connection which the server was just closing was never taken.
            assert status in ("ConnectError", "ReadError", "RemoteProtocolError", "WriteError"), (status, got)


def test_new_requests_are_refused_while_it_ends(folder: Path) -> None:
    fake(folder / "models", "slow", run_ms=1500, batch=False)
    with Server(folder) as server:
        assert server.process is not None
        ran: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: ran.append(infer(server.client, "slow", 1)))
        asking.start()
        server.wait_for(lambda: server.status()["queue"]["running"] == 1, 10, "the run")
        server.process.send_signal(signal.SIGTERM)
        status = server.wait_for(lambda: (s := server.status())["state"] == "stopped" and s, 5, "its end to begin")
        assert status["queue"]["running"] == 1
        got = infer(server.client, "slow", 2)
        assert got.status_code == 503 and code(got) == "paused" and int(got.headers["retry-after"]) > 0
        assert server.client.get("/ready").status_code == 503
        assert server.client.get("/health").status_code == 200
        asking.join(20)
        assert answer(ran[0]) == [2.0] * 4
        assert server.process.wait(10) == 0


def test_hung_run_and_engine(folder: Path) -> None:
    """A run that never ends is answered too; an engine that does not listen is ended."""
    fake(folder / "models", "sleeper", hang_on=13)
    with Server(folder) as server:
        ran: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: ran.append(infer(server.client, "sleeper", 13)))
        asking.start()
        server.wait_for(lambda: server.status()["queue"]["running"] == 1, 10, "the run")
        engine = server.engine_pid
        os.kill(engine, signal.SIGSTOP)
        _end(server, signal.SIGTERM, engine)
        asking.join(10)
        assert ran[0].status_code == 503 and code(ran[0]) == "paused"


def test_slow_load(folder: Path) -> None:
    fake(folder / "models", "heavy", load_ms=60_000)
    with ending(Server(folder)) as server:
        server.start(ready=False)
        server.wait_for(lambda: "LOADING" in str(server.index()), 20, "the load")
        waiting: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: waiting.append(server.client.post("/v2/repository/models/heavy/load", json={}))
        )
        asking.start()
        time.sleep(0.2)
        _end(server, signal.SIGTERM, server.engine_pid)
        asking.join(10)
        assert waiting[0].status_code == 503 and code(waiting[0]) == "paused"


@pytest.mark.parametrize("delay", [0.6, 1.2, 1.8])
def test_during_start(folder: Path, delay: float) -> None:
    """Wherever in its start it is, it ends in time and leaves nothing behind."""
    server = Server(folder)
    with server.log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "appliance", "serve"], cwd=ROOT, env=server.env, stdout=out, stderr=out
        )
    server.client.close()
    time.sleep(delay)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    # Before the program's own first line has run, the system's answer to the signal holds.
    assert process.wait(_BOUND_S) in (0, -signal.SIGTERM)
    assert all(gone(child.pid, 2) for child in children)
    assert not server.port_file.exists()
    assert "Traceback" not in server.log.read_text()


def test_closed_terminal(folder: Path) -> None:
    """The terminal it was started from goes away: what it would still print has nowhere to go."""
    server = Server(folder)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "appliance", "serve"],
        cwd=ROOT,
        env=server.env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        server.process = process
        server.wait_for(server.port_file.exists, 30, "the port file")
        children = psutil.Process(process.pid).children(recursive=True)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(_BOUND_S) == 0
        assert all(gone(child.pid, 2) for child in children)
        assert not server.port_file.exists()
    finally:
        process.kill()
        process.wait()
        server.client.close()


def test_pictures_under_way(folder: Path) -> None:
    """Pictures that are being decoded, or wait for it, are answered like all other requests."""
    picture = io.BytesIO()
    Image.new("RGB", (7000, 7000), "teal").save(picture, "png")
    with Server(folder, embedded=True) as server:
        found: list[httpx.Response] = []

        def ask() -> None:
            headers = {"content-type": "image/png"}
            found.append(server.client.post("/predict/classify", content=picture.getvalue(), headers=headers))

        threads = [threading.Thread(target=ask) for _ in range(24)]
        for thread in threads:
            thread.start()
        server.wait_for(lambda: found, 30, "the first answer")
        _end(server, signal.SIGTERM, server.engine_pid)
        for thread in threads:
            thread.join(10)
    assert len(found) == len(threads)
    assert {got.status_code for got in found} <= {200, 503}
    assert {code(got) for got in found if got.status_code == 503} <= {"paused"}
