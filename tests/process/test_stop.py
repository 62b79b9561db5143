"""``appliance stop``: it returns when the program and its engine are gone, and loses no answer."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import psutil

from tests.process.helpers import Callers, answer, ending, fake, gone, infer
from tests.process.test_cli import call
from tests.support import nets
from tests.support.server import Server


def test_nothing_runs(folder: Path) -> None:
    with ending(Server(folder)) as server:
        for flags in ((), ("--kill",), ("--all", "--kill")):
            done = call(server.env, "stop", *flags)
            assert done.returncode == 0 and "not running" in done.stdout


def test_under_load_no_answer_is_lost(folder: Path) -> None:
    """What waits for the slow model is answered; the callers' requests are answered, refused, or never taken."""
    fake(folder / "models", "slow", run_ms=700, batch=False)
    nets.scale(folder / "models/scale/1/model.onnx")
    with Server(folder) as server, Callers(server.url, "scale", 4, retry=False) as callers:
        ran: dict[int, httpx.Response] = {}

        def ask(value: int) -> None:
            ran[value] = infer(server.client, "slow", value)

        threads = [threading.Thread(target=ask, args=(value,)) for value in range(4)]
        for thread in threads:
            thread.start()
        server.wait_for(lambda: server.status()["queue"]["waiting"] >= 3, 10, "the requests that wait")
        assert server.process is not None
        processes = [server.process.pid, server.engine_pid]
        done = call(server.env, "stop", "--timeout", "20")
        assert done.returncode == 0, done.stdout
        assert done.stdout.splitlines()[-1] == "stopped"
        assert all(gone(pid, 0.5) for pid in processes)
        assert server.process.wait(5) == 0
        for thread in threads:
            thread.join(10)
        server.wait_for(callers.ended, 10, "the callers")
    assert [answer(ran[value]) for value in range(4)] == [[2.0 * value] * 4 for value in range(4)]
    for value, status, got in callers.outcomes:
        if status == 200:
            assert got == [2.0 * value] * 4
        elif status == 503:
            assert '"paused"' in got
        else:
            # A request that was sent on a connection which the server was just closing was never taken.
            assert status in ("ConnectError", "ReadError", "RemoteProtocolError", "WriteError"), (status, got)
    assert "Traceback" not in server.log.read_text()


def test_one_that_hangs(folder: Path) -> None:
    """Without --kill it is told of; with it, the program and its engine are ended."""
    with Server(folder) as server:
        assert server.process is not None
        program, engine = server.process.pid, server.engine_pid
        os.kill(program, signal.SIGSTOP)
        try:
            began = time.monotonic()
            done = call(server.env, "stop", "--timeout", "0.5")
            assert done.returncode == 1 and str(program) in done.stdout and "--kill" in done.stdout
            assert time.monotonic() - began < 20
            assert psutil.pid_exists(engine)
            done = call(server.env, "stop", "--timeout", "0.5", "--kill")
            assert done.returncode == 0, done.stdout
        finally:
            if server.process.poll() is None:
                os.kill(program, signal.SIGCONT)
        assert gone(program, 1) and gone(engine, 1)


def test_another_key(folder: Path) -> None:
    with Server(folder, api_key="a-key-of-mine") as server:
        other = {**server.env, "APPLIANCE_API_KEY": "another-key"}
        told = json.loads(server.port_file.read_text())  # programs of the same user find a key there
        server.port_file.write_text(json.dumps({**told, "key": ""}))
        done = call(other, "stop", "--timeout", "1")
        assert done.returncode == 1 and "refuses" in done.stdout
        assert server.client.get("/health").status_code == 200
        assert call(other, "stop", "--timeout", "1", "--kill").returncode == 0


def test_all_ports_and_wrong_settings(folder: Path) -> None:
    with Server(folder) as server:
        env = {**server.env, "APPLIANCE_PORT": "1"}
        done = call(env, "stop")
        assert done.returncode == 0 and "not running" in done.stdout
        assert server.client.get("/health").status_code == 200
        # The state folder of the defaults is another one: nothing of it runs in a home that is empty.
        wrong = {**env, "APPLIANCE_PORT": "many", "HOME": str(folder), "XDG_STATE_HOME": str(folder / "none")}
        done = call(wrong, "stop")
        assert done.returncode == 0 and "going by the defaults" in done.stderr
        done = call(env, "stop", "--all", "--timeout", "20")
        assert done.returncode == 0 and "stopped" in done.stdout
        assert server.process is not None
        assert server.process.wait(5) == 0
