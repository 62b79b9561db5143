"""Other processes of this program: which there are, whether they are gone, and how they are made to go."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

_LOOK_S = 0.05
_TERM_S = 5.0  # for a process that was told to end, on systems where it can be told


def tree(pid: int) -> list[psutil.Process]:
    """The process and those of the same program that it started, itself first; empty if it is gone.

    A browser that it opened is nothing of its own.
    """
    try:
        root = psutil.Process(pid)
        return [root, *(child for child in root.children(recursive=True) if _program(child) == _program(root))]
    except psutil.Error:
        return []


def of_this_folder() -> list[psutil.Process]:
    """The other processes that were started from the frozen program's folder; none where it is not frozen.

    Those that this one comes from are left out.
    """
    if not getattr(sys, "frozen", False):
        return []
    folder = Path(sys.executable).resolve().parent
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid not in own and Path(process.exe()).parent == folder:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # it belongs to somebody else, or has ended meanwhile
    return found


def left(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run. One that only waits for its parent to take note has ended."""
    return [process for process in processes if _runs(process)]


def wait_gone(processes: Iterable[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Wait until all have ended; those that have not ``within_s`` seconds later."""
    until = time.monotonic() + within_s
    still = left(processes)
    while still and time.monotonic() < until:
        time.sleep(_LOOK_S)
        still = left(still)
    return still


def end(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """End them, the hard way if they do not heed the soft one (Windows has none); those that even so are there."""
    still = left(processes)
    if sys.platform != "win32":
        for process in still:
            _quietly(process.terminate)
        still = wait_gone(still, _TERM_S)
    for process in still:
        _quietly(process.kill)
    return wait_gone(still, _TERM_S)


def _program(process: psutil.Process) -> str | None:
    try:
        return process.exe()
    except psutil.Error:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _quietly(what: Callable[[], None]) -> None:
    try:
        what()
    except psutil.Error:
        return
