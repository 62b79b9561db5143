"""Children that end with the host, their socket, and the signals."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from appliance.system import processes

ROOT = Path(__file__).resolve().parents[3]
posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")

ECHO = """
from appliance.system import processes
connection = processes.connect_to_parent()
import os, sys
print("to standard output"); sys.stdout.flush()
names = [name for name in os.environ if name.startswith("_APPLIANCE")]
connection.sendall(repr((names, connection.getblocking(), connection.get_inheritable())).encode() + b"\\n")
while True:
    data = connection.recv(1 << 20)
    if not data:
        break
    connection.sendall(data)
"""

SLEEP = (
    "from appliance.system import processes; c = processes.connect_to_parent(); c.sendall(b'up'); import time\n"
    + ("time.sleep(60)")
)


@pytest.fixture
def env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def ended() -> Iterator[list[subprocess.Popen[bytes]]]:
    children: list[subprocess.Popen[bytes]] = []
    yield children
    for child in children:
        child.kill()
        child.wait()


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether the process ends in time; a zombie counts as ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("loopback", [pytest.param(False, marks=posix), True])
def test_bytes_go_both_ways_and_the_child_sees_nothing_else(
    env: dict[str, str], ended: list[subprocess.Popen[bytes]], tmp_path: Path, loopback: bool
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        child, connection = processes.start_child([sys.executable, "-c", ECHO], env, stderr, loopback=loopback)
    ended.append(child)
    with connection, connection.makefile("rb") as reading:
        assert reading.readline() == b"([], True, False)\n"
        payload = os.urandom(3 << 20)
        writer = threading.Thread(target=connection.sendall, args=(payload,))
        writer.start()
        assert reading.read(len(payload)) == payload
        writer.join()
        assert not connection.get_inheritable()
        connection.shutdown(socket.SHUT_WR)
        assert child.wait(10) == 0
        assert reading.read() == b""
    assert log.read_bytes().strip() == b"to standard output"


@pytest.mark.parametrize("loopback", [pytest.param(False, marks=posix), True])
def test_the_death_of_the_child_is_end_of_file(
    env: dict[str, str], ended: list[subprocess.Popen[bytes]], loopback: bool
) -> None:
    child, connection = processes.start_child([sys.executable, "-c", SLEEP], env, loopback=loopback)
    ended.append(child)
    with connection:
        assert connection.recv(2) == b"up"
        child.kill()
        connection.settimeout(5)
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:
            assert loopback
    assert child.wait(5) != 0


@posix
def test_a_child_outlives_the_thread_that_started_it(
    env: dict[str, str], ended: list[subprocess.Popen[bytes]]
) -> None:
    made: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
    thread = threading.Thread(target=lambda: made.append(processes.start_child([sys.executable, "-c", SLEEP], env)))
    thread.start()
    thread.join()
    child, connection = made[0]
    ended.append(child)
    with connection:
        assert connection.recv(2) == b"up"
        time.sleep(0.3)
        assert child.poll() is None


@pytest.mark.parametrize("loopback", [pytest.param(False, marks=posix), True])
def test_the_child_ends_with_a_host_that_is_killed(env: dict[str, str], loopback: bool) -> None:
    host = (
        "import sys, time\nfrom appliance.system import processes\n"
        f"child, connection = processes.start_child([sys.executable, '-c', {SLEEP!r}], loopback={loopback})\n"
        "assert connection.recv(2) == b'up'\nprint(child.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", host], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert psutil.pid_exists(pid)
        process.kill()
    assert gone(pid)


def test_a_child_that_ends_at_once_is_told(env: dict[str, str]) -> None:
    with pytest.raises(processes.ChildDidNotConnect, match="code 3"):
        processes.start_child([sys.executable, "-c", "raise SystemExit(3)"], env, loopback=True)


def test_a_child_that_says_nothing_is_ended(env: dict[str, str]) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = time.monotonic()
    with pytest.raises(processes.ChildDidNotConnect, match="in time"):
        processes.start_child(command, env, loopback=True, connect_timeout=0.5)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("loopback", [pytest.param(False, marks=posix), True])
def test_a_program_that_is_not_there_is_an_oserror(loopback: bool, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"."):
        processes.start_child([str(tmp_path / "nothing")], loopback=loopback)


def test_nobody_else_gets_in(env: dict[str, str], ended: list[subprocess.Popen[bytes]]) -> None:
    intruder = (
        "import os, socket\n"
        "port = int(os.environ['_APPLIANCE_CHILD_SOCKET'].partition(':')[2])\n"
        "for words in (b'x' * 64, b'short'):\n"
        "    other = socket.create_connection(('127.0.0.1', port)); other.sendall(words); other.shutdown(1)\n"
        "    assert other.recv(1) == b''\n"
    )
    child, connection = processes.start_child([sys.executable, "-c", intruder + SLEEP], env, loopback=True)
    ended.append(child)
    with connection:
        assert connection.recv(2) == b"up"


def test_the_child_s_side_refuses_to_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_APPLIANCE_CHILD_SOCKET", raising=False)
    with pytest.raises(RuntimeError, match="host process only"):
        processes.connect_to_parent()


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_calls_back_and_can_be_undone(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    calls: list[int] = []
    undo = processes.on_stop(lambda: calls.append(1))
    try:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    finally:
        undo()
    assert calls == [1, 1]
    assert signal.getsignal(number) is before


@posix
def test_nohup_stays_in_force() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        undo = processes.on_stop(lambda: None)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        undo()
    finally:
        signal.signal(signal.SIGHUP, before)
