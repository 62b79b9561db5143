"""One program per port and user, and how the others find it: a lock and a small file in the state folder.

Both are named after the port that was asked for, so with port 0 (a free one) a script still knows the name:
``instance-11711.json``, ``instance-0.json``.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

import msgspec
import psutil

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_WRITE_TRIES = 5  # Windows refuses to replace a file that somebody is reading just now


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A program that runs, or says so. `url` is where it answers; `started` is in seconds since 1970."""

    host: str
    port: int
    url: str
    pid: int
    started: float
    version: str


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

    def announce(self, *, host: str, port: int, url: str, version: str) -> Running:
        """Write the port file: whole or not at all, readable for this user only."""
        running = Running(
            host=host, port=port, url=url, pid=os.getpid(), started=round(time.time(), 3), version=version
        )
        draft = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(running)) + b"\n")
        for attempt in range(_WRITE_TRIES):
            try:
                draft.replace(self._file)
                break
            except PermissionError:
                if attempt == _WRITE_TRIES - 1:
                    draft.unlink(missing_ok=True)
                    raise
                time.sleep(0.05)
        return running

    def release(self) -> None:
        """Remove the port file and let the next one in. The lock's file stays: removing it would let two in."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):  # somebody reads it; what it says is checked against the process anyway
            self._file.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


def find_running(state_folder: Path, port: int | None = None) -> Running | None:
    """The program that runs with this state folder (and was asked for this port), the newest if several do.

    Its process lives; whether it answers is for the caller to see.
    """
    files = [_port_file(state_folder, port)] if port is not None else state_folder.glob("instance-*.json")
    alive = [running for running in map(_read, files) if running is not None and _lives(running)]
    return max(alive, key=lambda running: running.started, default=None)


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
