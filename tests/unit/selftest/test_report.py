"""The report: pure rendering, and where the files go."""

import json
from pathlib import Path

import pytest

from appliance.doctor.report import Verdict, passed, verdict
from appliance.selftest import report
from appliance.selftest.report import Line, Report


def line(verdict: Verdict, check: str = "folders", found: str = "state\nhere", cure: str = "") -> Line:
    return Line(check=check, verdict=verdict, found=found, cure=cure, seconds=1.25)


def made(*lines: Line, **more: str) -> Report:
    return Report(
        version="1.2.3",
        system="Windows-10",
        python="3.11.9",
        program="C:\\appliance.exe",
        frozen=True,
        console=False,
        started="2026-01-02T03:04:05+00:00",
        seconds=2.5,
        checks=lines,
        passed=passed(lines),
        logs=more,
    )


def test_a_sentence() -> None:
    assert report.sentence(line("ok")) == "ok       folders      state here (1.2 s)"
    cured = report.sentence(line("failed", cure="make\nroom")).split("\n")
    assert cured == ["failed   folders      state here (1.2 s)", " " * 22 + "→ make room"]


def test_a_warning_is_no_failure() -> None:
    lines = (line("ok"), line("warning"), line("ok"))
    assert passed(lines)
    assert verdict(lines) == "passed: ok 2, warning 1, failed 0"
    lines += (line("failed"),)
    assert not passed(lines)
    assert verdict(lines) == "FAILED: ok 2, warning 1, failed 1"


def test_the_text() -> None:
    assert report.text(made(line("ok"), line("failed", "server", "no answer"), engine="one\ntwo\n")) == (
        "Inference Appliance 1.2.3: self-test of 2026-01-02T03:04:05+00:00\n"
        "Windows-10; Python 3.11.9; no console\n"
        "C:\\appliance.exe\n"
        "\n"
        "ok       folders      state here (1.2 s)\n"
        "failed   server       no answer (1.2 s)\n"
        "\n"
        "FAILED: ok 1, warning 0, failed 1 in 2.5 s\n"
        "\n"
        "--- the last of engine ---\n"
        "one\ntwo\n"
    )


def test_both_files(tmp_path: Path) -> None:
    as_json, as_text = report.write(made(line("ok", found="Jörg 测试")), tmp_path / "new/folder")
    assert (as_json.name, as_text.name) == ("selftest.json", "selftest.txt")
    found = json.loads(as_json.read_text("utf-8"))
    assert found["passed"] is True and found["logs"] == {}
    assert found["checks"] == [
        {"check": "folders", "verdict": "ok", "found": "Jörg 测试", "cure": "", "seconds": 1.25}
    ]
    assert "Jörg 测试" in as_text.read_text("utf-8")
    assert report.write(made(), tmp_path / "mine.txt") == (tmp_path / "mine.json", tmp_path / "mine.txt")
    with pytest.raises(OSError, match="mine"):
        report.write(made(), tmp_path / "mine.json" / "below")
