"""Logs: JSON lines in a file that turns over, readable lines on a console that is there."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from appliance import logs


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Leaves the process as it was."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers = before
    root.setLevel(level)
    structlog.reset_defaults()


def lines(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_the_file_holds_one_json_object_a_line(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "appliance.log"
    assert logs.set_up("info", file, console=False) is None
    structlog.get_logger("models").info("served", model="größe", n=3)
    logging.getLogger("library").warning("two\nlines")
    logging.getLogger("library").debug("too quiet")
    logging.getLogger("httpx").info("noise")
    first, second = lines(file)
    assert (first["event"], first["model"], first["n"]) == ("served", "größe", 3)
    assert (first["level"], first["logger"]) == ("info", "models")
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == ("two\nlines", "warning")


def test_the_level_counts(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    logs.set_up("warning", file, console=False)
    structlog.get_logger("x").info("no")
    structlog.get_logger("x").warning("yes")
    assert [line["event"] for line in lines(file)] == ["yes"]


def test_exceptions_are_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    logs.set_up("info", file, console=False)
    try:
        raise ValueError("inner")
    except ValueError:
        structlog.get_logger("x").exception("fault")
    assert "ValueError: inner" in lines(file)[0]["exception"]


def test_a_file_that_cannot_be_written_is_said_and_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    fault = logs.set_up("info", tmp_path / "file" / "a.log", console=True)
    assert fault is not None
    assert fault.startswith("the log folder cannot be written: ")
    assert str(tmp_path) not in fault
    structlog.get_logger("x").info("still here")
    assert "still here" in capsys.readouterr().err


def test_a_program_without_a_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert logs.set_up("info", None, console=True) is None
    assert logging.getLogger().handlers == []
    logs.set_up_child("info")
    assert logging.getLogger().handlers == []


def test_the_child_writes_json_to_its_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up_child("info")
    structlog.get_logger("engine").info("loaded", ms=5)
    found = json.loads(capsys.readouterr().err)
    assert (found["event"], found["ms"], found["logger"]) == ("loaded", 5, "engine")


def test_rotate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_BYTES", 10)
    file = tmp_path / "engine.log"
    logs.rotate(file)  # none there
    file.write_text("x" * 10)
    logs.rotate(file)
    assert file.exists()
    file.write_text("y" * 11)
    logs.rotate(file)
    assert not file.exists()
    assert (tmp_path / "engine.log.1").read_text() == "y" * 11


def test_the_file_turns_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_BYTES", 2000)
    logs.set_up("info", tmp_path / "a.log", console=False)
    for n in range(100):
        structlog.get_logger("x").info("line", n=n, filler="f" * 100)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.log", "a.log.1", "a.log.2", "a.log.3"]
    assert all(p.stat().st_size <= 2000 for p in tmp_path.iterdir())
