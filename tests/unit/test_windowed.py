"""A program without a console: an exit code and a line in the log, never a dialog."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from appliance import logs, windowed

app = typer.Typer(add_completion=False)


@app.command()
def good() -> None:
    typer.echo("done")


@app.command()
def bad() -> None:
    typer.echo("there is no such thing", err=True)
    raise typer.Exit(3)


@app.command()
def throws() -> None:
    raise KeyError("inside")


@app.command()
def asks() -> None:
    typer.confirm("really?", abort=True)


@app.command()
def looks() -> None:
    windowed.as_it_is()
    raise typer.Exit(0 if (sys.stdin, sys.stdout, sys.stderr) == (None, None, None) else 4)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("APPLIANCE_STATE", str(tmp_path))
    before = list(logging.getLogger().handlers)
    logging.getLogger().handlers = []
    yield tmp_path / "logs/appliance.log"
    for handler in logging.getLogger().handlers:
        handler.close()
    logging.getLogger().handlers = before


def run(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> int:
    """As in a program that has no streams. Not in a fixture: pytest puts its own streams in place after those."""
    with monkeypatch.context() as patch:
        for name in ("stdin", "stdout", "stderr"):
            patch.setattr(f"sys.{name}", None)
        assert windowed.streamless()
        code = windowed.run(app, arguments)
        assert (sys.stdin, sys.stdout, sys.stderr) == (None, None, None)
    return code


def told(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["bad"], 3, "there is no such thing"),
        (["--nope"], 2, "No such option: --nope"),
        (["bad", "--nope"], 2, "No such option: --nope"),
        (["nothing"], 2, "nothing"),
        (["asks"], 1, "there is nobody to ask"),
    ],
)
def test_what_fails_stands_in_the_log(
    log: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    assert run(monkeypatch, arguments) == code
    (line,) = told(log)
    assert line["arguments"] == arguments and line["code"] == code
    assert words in line["told"]


def test_a_fault_stands_there_with_its_trace(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, ["throws"]) == 1
    (line,) = told(log)
    assert "KeyError: 'inside'" in line["exception"]


@pytest.mark.parametrize("arguments", [["good"], ["--help"], ["good", "--help"], ["looks"]])
def test_what_works_leaves_no_word(log: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    assert run(monkeypatch, arguments) == 0
    assert not log.exists()


def test_settings_that_cannot_be_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPLIANCE_PORT", "none")
    monkeypatch.setattr("appliance.system.paths.default_state", lambda: log.parent.parent / "default")
    assert run(monkeypatch, ["bad"]) == 3
    assert told(log.parent.parent / "default/logs/appliance.log")


def test_long_words_do_not_pile_up() -> None:
    stream = windowed.Told()
    for number in range(20_000):
        stream.write(f"{number}\n")
    assert len(stream.getvalue()) < 10_000
    assert stream.getvalue().endswith("19999\n")


def test_with_a_console_nothing_is_replaced() -> None:
    assert not windowed.streamless()
    out = sys.stdout
    windowed.as_it_is()
    assert sys.stdout is out
    assert logs.file_fault() is None
