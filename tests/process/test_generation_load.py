"""32 callers of a language model on a device that holds four of the largest of them; the engine is killed twice."""

import os
import signal
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.process.helpers import restarted
from tests.support import speech
from tests.support.crowd import BROKEN, REFUSED, WHOLE, Caller, Ledger
from tests.support.server import Server

TOKEN = 1000  # bytes
LONGEST = 2000  # tokens of a prompt
ANSWER = 40
DEVICE_BYTES = 4 * (LONGEST + ANSWER) * TOKEN
SIZES = [10 + n * (LONGEST - 10) // 31 for n in range(32)]


def prompt(size: int) -> str:
    """Of so many tokens, with the one that begins a text, and no other caller's."""
    return f"{size}:abcdefghijklmnopqrstuvwxyz "[: size - 1].ljust(size - 1, ".")


def said(size: int) -> str:
    """The model says its prompt again and again, and what begins a text is a token too, but no text."""
    return "".join(islice(cycle(["", *prompt(size)]), ANSWER))


def crowd(folder: Path) -> Server:
    server = Server(folder, memory_reserve_bytes=0, memory_fraction=1.0, queue_timeout_ms=60_000)
    path = speech.fake_model(
        server.models / "m",
        token_ms=10,
        token_bytes=TOKEN,
        context=4096,
        streams=32,
        toml="[warmup]\nenabled = false",
    )
    toml = path / "model.toml"
    toml.write_text(
        toml.read_text().replace("[backend_options]", f"[backend_options]\ndevice_bytes = {DEVICE_BYTES}")
    )
    return server


def nothing_is_left(server: Server) -> None:
    server.wait_for(lambda: server.status()["queue"] == {"waiting": 0, "running": 0, "paused": False}, 10)
    told = server.status()["memory"]["fake:0"]
    assert (told["in_flight"], told["reserved"], told["narrowing"]) == (0, 0, 1.0)


def test_all_have_their_answer(folder: Path) -> None:
    with crowd(folder) as server:
        server.wait_for(lambda: server.status()["memory"].get("fake:0", {}).get("known"), 20, "a reading")
        with Ledger(server, "fake:0") as ledger:
            callers = [Caller(server, "m", prompt(size), ANSWER) for size in SIZES]
            for caller in callers:
                caller.join(60)
        assert [caller.last.end for caller in callers] == [WHOLE] * 32
        assert [caller.last.text for caller in callers] == [said(size) for size in SIZES]
        assert (ledger.over, ledger.ran_out) == (0, 0)
        assert ledger.running >= 4 and 0 < ledger.most <= DEVICE_BYTES
        nothing_is_left(server)


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_the_engine_is_killed_twice(folder: Path) -> None:
    with crowd(folder) as server:
        server.wait_for(lambda: server.status()["memory"].get("fake:0", {}).get("known"), 20, "a reading")
        with Ledger(server, "fake:0") as ledger:
            callers = [Caller(server, "m", prompt(size), ANSWER, most=3) for size in SIZES]
            for kill, answers in ((1, 4), (2, 12)):
                server.wait_for(lambda n=answers: sum(not caller.is_alive() for caller in callers) >= n)
                server.wait_for(lambda: server.status()["queue"]["running"] > 1)
                os.kill(server.engine_pid, signal.SIGKILL)
                restarted(server, kill)
            for caller in callers:
                caller.join(90)
        assert [caller.last.end for caller in callers] == [WHOLE] * 32
        assert [caller.last.text for caller in callers] == [said(size) for size in SIZES]
        failed = [(size, one) for size, caller in zip(SIZES, callers, strict=True) for one in caller.tries[:-1]]
        # What had told something ends with an event of it; what had not began anew, and died twice at most.
        assert {(one.end, one.code) for _, one in failed} <= {(BROKEN, "model_error"), (REFUSED, "model_error")}
        # (All of it may have been told, but for its end.)
        assert all(said(size).startswith(one.text) for size, one in failed)
        assert 0 < len(failed) <= 2 * 31
        assert (ledger.over, ledger.ran_out) == (0, 0)
        assert [death["exit_code"] for death in server.status()["engine"]["deaths"]] == [-signal.SIGKILL] * 2
        nothing_is_left(server)
