"""Verdicts and the table of the GPU checks, and what they need. No GPU, no PyTorch."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.gpu import needs
from tests.gpu.client import Answer, Job, only, tally
from tests.gpu.filler import to_take
from tests.gpu.report import (
    Row,
    crashed,
    exit_code,
    judged,
    line,
    median,
    off,
    skipped,
    summary,
    table,
    told,
    worst,
)
from tests.gpu.run import unmet

GIB = 1 << 30


def test_a_goal_is_reached_or_not() -> None:
    assert judged("a", "0", "0", True) == Row("a", "0", "0", "ok")
    assert judged("a", "0", "1", False).verdict == "FAILED"
    assert judged("a", "1.5 ×", "1.6 ×", False, speed=True).verdict == "missed"
    assert judged("a", "1.5 ×", "1.2 ×", True, speed=True).verdict == "ok"


def test_a_check_that_breaks_is_a_failure_with_its_first_line() -> None:
    assert crashed("a", ValueError("no such\nfile")) == Row("a", "comes to an end", "ValueError: no such", "FAILED")
    assert crashed("a", KeyError()).measured == "KeyError: "


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([judged("a", "g", "m", True), skipped("b", "why")], 0),
        ([judged("a", "g", "m", False, speed=True), told("b", "7")], 0),
        ([judged("a", "g", "m", True), judged("b", "g", "m", False)], 1),
        ([skipped("a", "why"), told("b", "7")], 2),
        ([], 2),
    ],
)
def test_the_exit_code(rows: list[Row], code: int) -> None:
    assert exit_code(rows) == code


def test_the_summary_begins_with_what_is_worst() -> None:
    rows = [judged("a", "g", "m", True), skipped("b", "w"), judged("c", "g", "m", False), judged("d", "g", "m", True)]
    assert summary(rows) == "1 FAILED, 2 ok, 1 skipped"
    assert summary([]) == "nothing"


def test_how_far_off() -> None:
    assert off(105, 100) == pytest.approx(0.05)
    assert off(95, 100) == pytest.approx(0.05)
    assert (off(0, 0), off(1, 0)) == (0, float("inf"))


def test_the_worst_of_a_table() -> None:
    assert worst({1: 100, 2: 220, 4: 400}, {1: 100, 2: 200, 4: 400}) == (2, pytest.approx(0.1))
    assert worst({1: 100}, {1: 100, 8: 800}) == (8, float("inf"))
    assert worst({1: 100, 16: 1}, {1: 100}) == (1, 0)
    with pytest.raises(ValueError, match="nothing"):
        worst({1: 1}, {})


def test_the_median() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 3
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_a_row_as_it_comes() -> None:
    assert line(judged("admission", "0 fail", "3 fail", False)) == "FAILED   admission: 3 fail (goal: 0 fail)"
    assert line(skipped("streams", "needs CUDA")) == "skipped  streams: needs CUDA"


def test_the_table_shows_all_of_every_row_as_it_is() -> None:
    rows = [judged("cost [1, 2]", "within 5 %", "1.2 %", True), skipped("language", "not installed")]
    console = Console(file=io.StringIO(), width=100)
    console.print(table(rows, "cuda:0: a card"))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in (
        "cuda:0: a card",
        "cost [1, 2]",
        "within 5 %",
        "1.2 %",
        "ok",
        "language",
        "not installed",
        "skipped",
    ):
        assert part in text


def test_the_card_is_never_filled_beyond_its_bounds() -> None:
    assert to_take(8 * GIB, 10 * GIB, GIB) == 7 * GIB
    assert to_take(GIB // 2, 10 * GIB, GIB) == 0
    assert to_take(100 * GIB, 100 * GIB, 0) == int(97 * GIB)


def test_answers_are_counted_by_what_became_of_them() -> None:
    job = Job("m", {}, lambda found: only(found).tolist() == [2.0])
    good = Answer(200, {"y": np.array([2.0])}, "", 0.1, 0.1, "cpu")
    wrong = good._replace(outputs={"y": np.array([3.0])})
    full = Answer(507, {}, "insufficient_memory", 0.1, 0, "")
    broken = Answer(0, {}, "ReadError", 0.1, 0, "")
    outcomes = [(job, answer) for answer in (good, full, wrong, full, broken, good)]
    assert tally(outcomes) == (2, "1 × 0 ReadError, 2 × 507 insufficient_memory, 1 × wrong answer")
    assert tally([]) == (0, "")


def test_dependencies_are_read_from_the_project_file() -> None:
    assert needs.missing() == []  # the tests run with them
    assert needs.fault() is None


def test_a_dependency_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[project]\ndependencies = ["numpy>=2", "no-such-thing[x]>=1; python_version > \'3\'"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.setattr(needs, "ROOT", tmp_path)
    assert needs.missing() == ["no-such-thing"]


def machine(**torch: object) -> needs.Machine:
    nothing = needs.Runtime({}, "onnxruntime is not installed")
    return needs.Machine(needs.Runtime(torch, "" if torch else "torch is not installed"), nothing, nothing)


def test_what_is_missing_is_told() -> None:
    assert unmet(machine(), "cuda:0") == "torch is not installed"
    card = {"name": "card", "total": GIB}
    assert unmet(machine(version="2.9", devices=[card], why=None), "cuda:0") is None
    assert unmet(machine(version="2.9", devices=[], why="no CUDA"), "cpu") is None
    none = unmet(machine(version="2.9", devices=[], why="no CUDA"), "cuda:0")
    assert none == "there is no cuda:0: no CUDA. To try the checks without one: --device cpu"
    second = unmet(machine(version="2.9", devices=[card], why=None), "cuda:1")
    assert second is not None
    assert "PyTorch 2.9 sees 1 GPUs" in second
