"""One program per port and user, and how the others find it: a lock and a small file in the state folder.

Both are named after the port that was asked for, so with port 0 (a free one) a script still knows the name:
``instance-11711.json``, ``instance-0.json``.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from appliance.system import private

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A program that runs, or says so. `url` is where it answers; `started` is in seconds since 1970; `key` opens
    everything, until that program ends: this file is for programs of the same user."""

    host: str
    port: int
    url: str
    pid: int
    started: float
    version: str
    key: str = ""


class AlreadyRunning(RuntimeError):
    """Another program of this user holds the port; `running` is what it says of itself, if it has yet."""

    def __init__(self, port: int, running: Running | None) -> None:
        where = f" at {running.url} (pid {running.pid})" if running else ""
        super().__init__(f"the appliance is running already{where}")
        self.port = port
        self.running = running


class Instance:
    """The right to be the one for `port`; held until `release`, or until this process ends however it ends."""

    def __init__(self, state_folder: Path, port: int) -> None:
        """Take it. AlreadyRunning if somebody has it; OSError if the folder cannot be written."""
        state_folder.mkdir(parents=True, exist_ok=True)
        self._file = _port_file(state_folder, port)
        self._lock: int | None = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        if not _try_lock(self._lock):
            os.close(self._lock)
            self._lock = None
            raise AlreadyRunning(port, _read(self._file))

    def announce(self, *, host: str, port: int, url: str, version: str, key: str = "") -> Running:
        """Write the port file: whole or not at all, readable for this user only."""
        started = round(time.time(), 3)
        running = Running(host=host, port=port, url=url, pid=os.getpid(), started=started, version=version, key=key)
        private.write(self._file, msgspec.json.format(msgspec.json.encode(running)) + b"\n")
        return running

    def release(self) -> None:
        """Remove the port file and let the next one in. The lock's file stays: removing it would let two in."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):  # somebody reads it; what it says is checked against the process anyway
            self._file.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


@contextlib.contextmanager
def only_one(file: Path) -> Iterator[bool]:
    """Whether no other process is within the same ``with``; ends with the process, however that ends.

    The file stays. OSError if its folder cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield _try_lock(descriptor)
    finally:
        os.close(descriptor)


def find_running(state_folder: Path, port: int | None = None) -> Running | None:
    """The program that runs with this state folder (and was asked for this port), the newest if several do.

    Its process lives; whether it answers is for the caller to see.
    """
    if port is None:
        return max(find_all(state_folder), key=lambda running: running.started, default=None)
    running = _read(_port_file(state_folder, port))
    return running if running is not None and _lives(running) else None


def find_all(state_folder: Path) -> list[Running]:
    """All programs that run with this state folder, on whatever ports."""
    found = map(_read, sorted(state_folder.glob("instance-*.json")))
    return [running for running in found if running is not None and _lives(running)]


def _port_file(state_folder: Path, port: int) -> Path:
    return state_folder / f"instance-{port}.json"


def _read(file: Path) -> Running | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Running)
    except (OSError, msgspec.DecodeError):
        return None


def _lives(running: Running) -> bool:
    """Whether the process is there, and was before it wrote the file: numbers of processes are used again."""
    try:
        return psutil.Process(running.pid).create_time() <= running.started + 1.0
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


if sys.platform == "win32":

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
