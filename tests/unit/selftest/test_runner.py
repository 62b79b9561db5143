"""A check that throws, hangs or comes too late is a finding, never the end of the self-test."""

import threading
from pathlib import Path

from appliance.selftest.context import Context, Lacking
from appliance.selftest.report import Finding, Line, ok, warning
from appliance.selftest.runner import Check, run
from appliance.settings import Settings


def context(folder: Path) -> Context:
    return Context(Settings.model_construct(), folder)


def broken(_context: Context) -> Finding:
    raise KeyError("no such thing")


def lacking(found: Context) -> Finding:
    return ok(str(found.server))


def test_every_check_gives_a_line(tmp_path: Path) -> None:
    told: list[Line] = []
    over = threading.Event()

    def hangs(_context: Context) -> Finding:
        over.wait(60)
        return ok("too late")

    checks = [
        Check("good", 5, lambda _c: ok("fine")),
        Check("broken", 5, broken),
        Check("hangs", 0.2, hangs),
        Check("lacking", 5, lacking),
        Check("last", 5, lambda _c: warning("hm", "do this")),
    ]
    lines = run(checks, context(tmp_path), 60, told.append)
    over.set()
    assert list(lines) == told
    assert [(line.check, line.verdict) for line in lines] == [
        ("good", "ok"),
        ("broken", "failed"),
        ("hangs", "failed"),
        ("lacking", "failed"),
        ("last", "warning"),
    ]
    assert lines[1].found == "KeyError: 'no such thing'"
    assert lines[2].found == "it did not end within 0 s"
    assert lines[3].found == "there is no server to ask: it did not start"
    assert (lines[4].found, lines[4].cure) == ("hm", "do this")


def test_the_whole_has_an_end(tmp_path: Path) -> None:
    """The clock is made up: each check takes 40 s of the 100."""
    now = [0.0]
    seen: list[str] = []

    def slow(_context: Context) -> Finding:
        seen.append("x")
        now[0] += 40
        return ok("fine")

    checks = [Check(f"check {n}", 30, slow) for n in range(5)]
    lines = run(checks, context(tmp_path), 100, lambda _line: None, clock=lambda: now[0])
    assert len(seen) == 3
    assert [line.verdict for line in lines] == ["ok", "ok", "ok", "failed", "failed"]
    assert lines[4].found == "not looked at: the time was over"
    assert [line.seconds for line in lines] == [40, 40, 40, 0, 0]


def test_lacking_says_only_what_lacks() -> None:
    assert str(Lacking("words")) == "words"
