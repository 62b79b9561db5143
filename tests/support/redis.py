"""A real Redis for a test: ``redis-server`` on a free port, with nothing kept."""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest


class Redis:
    """Use as a context manager. ``url`` stays the same over ``kill`` and ``start``. Skips the test without one."""

    def __init__(self, folder: Path) -> None:
        self._program = shutil.which("redis-server") or ""
        if not self._program:
            pytest.skip("redis-server is not installed")
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Redis":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        with (self._folder / "redis.log").open("ab") as log:
            command = [self._program, "--port", str(self.port), *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not self.answers():
            assert time.monotonic() < deadline, (self._folder / "redis.log").read_text()
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether it says PONG."""
        try:
            return self._ask(b"PING\r\n") == b"+PONG\r\n"
        except OSError:
            return False

    def keys(self) -> bytes:
        """All keys, as the protocol writes them."""
        return self._ask(b"KEYS *\r\n")

    def kill(self) -> None:
        """As a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def freeze(self) -> None:
        """It takes connections and never answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _ask(self, command: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(command)
            return connection.recv(65536)
