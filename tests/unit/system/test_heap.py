"""Memory goes back to the system."""

import sys

import psutil
import pytest

from appliance.system import heap


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is kept elsewhere")
def test_what_was_freed_is_given_back() -> None:
    process = psutil.Process()
    blocks = [bytes(100_000) for _ in range(2000)]  # each below what is taken from the system on its own
    blocks = [bytearray(b"x") * 100_000 for _ in blocks]
    last = bytearray(b"x") * 100_000  # above them all, so that the heap cannot just end lower
    full = process.memory_info().rss
    del blocks
    heap.give_back()
    assert process.memory_info().rss < full - 150_000_000
    assert len(last) == 100_000


def test_without_such_a_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap.sys, "platform", "win32")
    heap.give_back()
    monkeypatch.setattr(heap.sys, "platform", "linux")
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: object())
    heap.give_back()
