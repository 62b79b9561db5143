"""How the lines look, as text and as JSON."""

import json

from appliance.doctor.report import Line, Report, passed, text, verdict
from appliance.doctor.report import json as as_json

LINES = (
    Line("system", "ok", "Debian"),
    Line("CUDA", "failed", "it is\nnot there", "install it"),
    Line("library", "failed", "a", "install it"),
    Line("paths", "warning", "b"),
)


def test_text() -> None:
    """What to do is told once."""
    assert text(LINES) == (
        "ok       system       Debian\n"
        "failed   CUDA         it is not there\n"
        "                      → install it\n"
        "failed   library      a\n"
        "warning  paths        b"
    )


def test_the_last_line() -> None:
    assert verdict(LINES) == "FAILED: ok 1, warning 1, failed 2"
    assert verdict((LINES[0], LINES[3])) == "passed: ok 1, warning 1, failed 0"
    assert passed(LINES[:1]) and not passed(LINES)


def test_json_keeps_what_to_do_at_each_line() -> None:
    report = Report(version="1", started="2026-01-02T03:04:05+00:00", seconds=1.5, passed=False, checks=LINES)
    found = json.loads(as_json(report))
    assert set(found) == {"version", "started", "seconds", "passed", "checks"}
    assert found["checks"][2] == {"check": "library", "verdict": "failed", "found": "a", "cure": "install it"}
