"""The process that tries NVIDIA's libraries out: one that hangs, one that dies, and one that dies of a version."""

import sys
import tempfile
import time
from pathlib import Path

import pytest

from appliance.doctor import native
from appliance.doctor.facts import Native
from appliance.system import paths
from tests.support.server import ROOT

CONNECT = (
    f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); "
    "from appliance.system.processes import connect_to_parent; it = connect_to_parent(); "
)


def ask(monkeypatch: pytest.MonkeyPatch, program: str, limit_s: float = 30) -> Native:
    monkeypatch.setattr(paths, "program_command", lambda: [sys.executable, "-c", CONNECT + program])
    with tempfile.TemporaryFile() as said:
        return native.ask(Path("state"), 0, False, limit_s, said)


def test_one_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    with pytest.raises(native.NativeFault, match="could not be tried out within 2 s"):
        ask(monkeypatch, "import time; time.sleep(600)", 2)
    assert time.monotonic() - started < 60  # for ever otherwise


def test_one_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(native.NativeFault, match="ended with code 77"):
        ask(monkeypatch, "os._exit(77)")


def test_what_was_told_before_it_died_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b'{"driver": {"version": 13000, "init": 0}, "cuda": 13}\n'
    found = ask(monkeypatch, f"it.sendall({line!r}); os.abort()")
    assert (found.driver.version, found.cuda, found.versions) == (13000, 13, {})
    line += b'{"versions": {"cuDNN": "9.28.1"}}\n'
    assert ask(monkeypatch, f"it.sendall({line!r})").versions == {"cuDNN": "9.28.1"}
