"""Logs: JSON lines in a file that turns over, readable lines on a console that is there."""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def test_the_level_can_be_changed(tmp_path: Path) -> None:
    file, log = tmp_path / "a.log", structlog.get_logger("x")
    logs.set_up("warning", file, console=False)
    log.info("no")
    logs.set_level("debug")
    log.debug("yes")
    logging.getLogger("library").debug("too")
    logs.set_level("error")
    log.warning("no more")
    assert [line["event"] for line in lines(file)] == ["yes", "too"]


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


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Bad:
    """A log file on a disk that fails while ``full`` is set, with a clock of the test's own."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.file = Clock(), file
        logs.set_up("info", None, console=False)
        self.handler = logs.LogFile(file, self.clock)
        self.handler.setFormatter(logging.Formatter("%(message)s"))
        logging.getLogger().addHandler(self.handler)
        self._open = self.handler._open
        self.opens = 0
        self.full = False
        monkeypatch.setattr(self.handler, "_open", self._opened)

    def _opened(self) -> Any:
        self.opens += 1
        return open("/dev/full", "a") if self.full else self._open()  # noqa: PTH123

    def fill(self) -> None:
        self.full = True
        if self.handler.stream is not None:
            self.handler.stream.close()
            self.handler.stream = None  # type: ignore[assignment]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_loses_lines_raises_nothing_and_is_over_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Bad(tmp_path / "a.log", monkeypatch)
    log = logging.getLogger("x")
    log.info("before")
    bad.fill()
    for n in range(100):
        log.info("line %d", n)
    assert logs.file_fault() == "the log folder cannot be written: No space left on device"
    assert bad.opens == 2, "it is left alone after the first failure"
    bad.clock.now = 31
    log.info("still full")
    assert bad.opens == 3
    assert logs.file_fault() is not None
    bad.full, bad.clock.now = False, 62
    log.info("after")
    assert logs.file_fault() is None
    words = "the log could not be written (No space left on device), lines lost: 101"
    assert bad.file.read_text().splitlines() == ["before", words, "after"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_it_is_found_to_be_over_without_a_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Bad(tmp_path / "a.log", monkeypatch)
    bad.full = True
    logging.getLogger("x").info("lost")
    assert logs.file_fault() is not None
    bad.full = False
    assert logs.file_fault() is not None, "not at once"
    bad.clock.now = 31
    assert logs.file_fault() is None
    assert "lines lost: 1" in bad.file.read_text()


def test_a_folder_that_becomes_writable_is_written(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    clock = Clock()
    logs.set_up("info", tmp_path / "logs" / "a.log", console=False)
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logs.LogFile)
    handler._clock = clock
    handler._again = 30.0
    assert "the log folder cannot be written: " in (logs.file_fault() or "")
    (tmp_path / "logs").unlink()
    clock.now = 31
    assert logs.file_fault() is None
    logging.getLogger("x").info("here")
    assert [line["event"] for line in lines(tmp_path / "logs" / "a.log")][-1] == "here"


def test_a_file_that_cannot_be_moved_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where another program has it open."""
    monkeypatch.setattr(logs, "_BYTES", 100)
    clock = Clock()
    handler = logs.LogFile(tmp_path / "a.log", clock)
    logging.getLogger().addHandler(handler)
    moved = []

    def rotate(source: str, dest: str) -> None:
        moved.append(source)
        raise PermissionError("in use")

    monkeypatch.setattr(handler, "rotate", rotate)
    log = logging.getLogger("x")
    for _ in range(10):
        log.warning("x" * 60)
    assert handler.fault is None and len(moved) == 1
    assert len((tmp_path / "a.log").read_text().splitlines()) == 10
    monkeypatch.undo()
    clock.now = 31
    log.warning("y")
    assert (tmp_path / "a.log").read_text() == "y\n" and (tmp_path / "a.log.1").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_console_that_fails_is_borne(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", full)
        logs.set_up("info", None, console=True)
        structlog.get_logger("x").info("nobody reads it")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert capsys.readouterr() == ("", "")
