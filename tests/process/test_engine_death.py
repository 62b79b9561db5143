"""A crash, a hang or a kill of the engine process costs nobody more than time."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import psutil

from tests.process.helpers import Callers, Watcher, answer, code, ending, fake, gone, infer, restarted
from tests.support import nets
from tests.support.server import ROOT, Server


def test_killed_while_idle(folder: Path) -> None:
    nets.scale(folder / "models/scale/1/model.onnx")
    with Server(folder) as server, Watcher(server.url) as watcher:
        before = server.status()["engine"]
        assert before["restarts"] == 0 and before["deaths"] == []
        killed = time.monotonic()
        os.kill(before["pid"], signal.SIGKILL)
        # The death may not have been noticed yet, or the model be on its way back: the request waits for it.
        assert answer(infer(server.client, "scale", 3)) == [6, 6, 6, 6]
        print(f"from the kill to the first answer: {time.monotonic() - killed:.2f} s")
        engine = restarted(server, 1)["engine"]
        assert engine["pid"] not in (None, before["pid"])
        assert [death["exit_code"] for death in engine["deaths"]] == [-signal.SIGKILL]
        assert f"signal {signal.SIGKILL:d}" in engine["deaths"][0]["reason"]
        assert abs(engine["deaths"][0]["at"] - time.time()) < 60
    assert set(watcher.states) <= {"ready", "restarting"}


def test_killed_under_load(folder: Path) -> None:
    """Eight callers, three kills: each request gets one answer, and it is its own."""
    nets.scale(folder / "models/scale/1/model.onnx")
    with (
        Server(folder) as server,
        Watcher(server.url),
        Callers(server.url, "scale") as callers,
    ):
        for kill in range(1, 4):
            have = len(callers.outcomes)
            server.wait_for(callers.since(have, 200), 60, "200 answers")
            os.kill(server.engine_pid, signal.SIGKILL)
            restarted(server, kill)
        have = len(callers.outcomes)
        server.wait_for(callers.since(have, 200), 60, "answers after the last kill")
    wrong = [one for one in callers.outcomes if one[1] != 200 or one[2] != [2.0 * one[0]] * 4]
    assert not wrong
    assert len({value for value, _, _ in callers.outcomes}) == len(callers.outcomes)


def test_a_poison_input_harms_only_itself(folder: Path) -> None:
    """It is answered 500 after it has ended the engine twice; those that ran with it are run again, alone."""
    fake(folder / "models", "fragile", run_ms=100, crash_on=666)
    nets.scale(folder / "models/scale/1/model.onnx")
    with Server(folder) as server, Watcher(server.url), Callers(server.url, "scale", 2) as others:
        found: dict[float, object] = {}

        def ask(value: float) -> None:
            found[value] = infer(server.client, "fragile", value)

        values = [1, 2, 3, 666, 5, 6, 7, 8]
        threads = [threading.Thread(target=ask, args=(value,)) for value in values]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        poisoned = found.pop(666)
        assert poisoned.status_code == 500 and code(poisoned) == "model_error"  # type: ignore[attr-defined]
        assert {value: answer(got) for value, got in found.items()} == {v: [2.0 * v] * 4 for v in found}  # type: ignore[arg-type]
        engine = restarted(server, 2)["engine"]
        assert engine["restarts"] == 2
        assert [death["exit_code"] for death in engine["deaths"]] == [-signal.SIGABRT] * 2
    assert not [one for one in others.outcomes if one[1] != 200 or one[2] != [2.0 * one[0]] * 4]


def test_a_model_that_ends_the_engine_while_loading_is_set_aside(folder: Path) -> None:
    fake(folder / "models", "deadly", load_crash=True)
    nets.scale(folder / "models/scale/1/model.onnx")
    nets.scale(folder / "models/zoom/1/model.onnx", 3.0)
    with Server(folder) as server, Watcher(server.url):
        assert server.status()["engine"]["restarts"] == 3
        entry = server.index()["deadly", "1"]
        assert entry["state"] == "UNAVAILABLE"
        assert "ended the engine 3 times" in entry["reason"]
        got = infer(server.client, "deadly", 1)
        assert got.status_code == 404 and "set aside" in got.text
        assert answer(infer(server.client, "scale", 1)) == [2.0] * 4
        assert answer(infer(server.client, "zoom", 1)) == [3.0] * 4


def test_hangs(folder: Path) -> None:
    """A run that never ends, and (in a second appliance, at the same time) an engine that stands still."""
    fake(folder / "a/models", "sleeper", hang_on=13)
    nets.scale(folder / "b/models/scale/1/model.onnx")
    with Server(folder / "a", run_timeout_ms=1000) as hung, Server(folder / "b") as still:
        stopped_pid, stopped_at = still.engine_pid, time.monotonic()
        os.kill(stopped_pid, signal.SIGSTOP)
        with Watcher(hung.url), Watcher(still.url):
            asked = time.monotonic()
            got = infer(hung.client, "sleeper", 13)
            took = time.monotonic() - asked
            assert got.status_code == 504 and code(got) == "inference_timeout"
            assert 0.9 < took < 10
            # The run cannot be stopped: the engine is ended after a grace, and this request waits for the next.
            assert answer(infer(hung.client, "sleeper", 2)) == [4.0] * 4
            engine = restarted(hung, 1)["engine"]
            assert "sleeper" in engine["deaths"][0]["reason"] and "did not end" in engine["deaths"][0]["reason"]

            assert answer(infer(still.client, "scale", 2)) == [4.0] * 4
            print(f"from standing still to the first answer: {time.monotonic() - stopped_at:.1f} s")
            engine = restarted(still, 1)["engine"]
            assert "no heartbeat" in engine["deaths"][0]["reason"]
            for server in (hung, still):
                told = server.client.get("/metrics").text
                assert re.search(r'appliance_engine_restarts_total{engine="\w+",reason="hang"} 1.0', told)
            assert gone(stopped_pid, 5)


def test_the_engine_ends_with_its_host(folder: Path) -> None:
    """Killed outright, in the middle of a run that never ends."""
    fake(folder / "models", "sleeper", hang_on=13)
    with Server(folder) as server:
        engine = server.engine_pid
        lost = threading.Thread(target=lambda: _ignore_errors(server))
        lost.start()
        server.wait_for(lambda: server.status()["queue"]["running"], 10, "the run")
        assert server.process is not None
        server.process.kill()
        assert gone(engine, 5)
        lost.join(30)


def _ignore_errors(server: Server) -> None:
    try:
        infer(server.client, "sleeper", 13)
    except Exception:
        return


def test_the_engine_ends_with_a_host_that_is_killed_at_start(folder: Path) -> None:
    """Also one that has not said hello yet."""
    server = Server(folder)
    with ending(server):
        server.start(ready=False)
        assert server.process is not None
        host = psutil.Process(server.process.pid)
        children = server.wait_for(lambda: host.children(recursive=True), 10, "the engine's process")
        server.process.kill()
        assert all(gone(child.pid, 10) for child in children)


def test_the_engine_is_not_started_by_hand() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "appliance", "engine"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode not in (0, None)
    assert "started by the host process only" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_poison_input_harms_no_request_of_another_model(folder: Path) -> None:
    """What was in the engine with it is run again alone: nobody is in two of its deaths."""
    fake(folder / "models", "aaa", "instances = 2", run_ms=500, batch=False)
    fake(folder / "models", "zzz", crash_on=666, batch=False)
    with Server(folder) as server:
        found: dict[tuple[str, float], httpx.Response] = {}

        def ask(model: str, value: float) -> None:
            found[model, value] = infer(server.client, model, value)

        threads = [threading.Thread(target=ask, args=("aaa", value)) for value in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        server.wait_for(lambda: server.status()["queue"]["running"] == 2, 10, "the runs")
        threads.append(threading.Thread(target=ask, args=("zzz", 666)))
        threads[-1].start()
        for thread in threads:
            thread.join(60)
        assert found.pop(("zzz", 666)).status_code == 500
        assert [answer(found["aaa", value]) for value in (1, 2, 3, 4)] == [[2.0 * v] * 4 for v in (1, 2, 3, 4)]
        assert restarted(server, 2)["engine"]["restarts"] == 2
