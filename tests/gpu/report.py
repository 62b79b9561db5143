"""What was checked, against which goal, and what came out. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from rich.table import Table
from rich.text import Text

Verdict = Literal["ok", "FAILED", "missed", "told", "skipped"]
"""``missed``: a goal of speed that was not reached, which is no fault. ``told``: a figure without a goal."""

STYLES: dict[Verdict, str] = {"ok": "green", "FAILED": "bold red", "missed": "yellow", "told": "", "skipped": "dim"}


class Row(NamedTuple):
    """One line of the table. ``measured``: what was found, or why nothing was."""

    check: str
    goal: str
    measured: str
    verdict: Verdict


def judged(check: str, goal: str, measured: str, good: bool, *, speed: bool = False) -> Row:
    """A check that can go wrong. ``speed``: a goal that a busy or slow machine may miss."""
    return Row(check, goal, measured, "ok" if good else "missed" if speed else "FAILED")


def told(check: str, measured: str) -> Row:
    return Row(check, "-", measured, "told")


def skipped(check: str, why: str) -> Row:
    return Row(check, "-", why, "skipped")


def crashed(check: str, error: BaseException) -> Row:
    """The check itself did not get to an end."""
    words = str(error).strip().splitlines() or [""]
    return Row(check, "comes to an end", f"{type(error).__name__}: {words[0]}"[:300], "FAILED")


def off(value: float, reference: float) -> float:
    """How far ``value`` is from the reference, as a share of it: 0.05 is 5 %. Infinite for a reference of 0."""
    if value == reference:
        return 0.0
    return abs(value - reference) / abs(reference) if reference else float("inf")


def worst(found: dict[int, int], reference: dict[int, int]) -> tuple[int, float]:
    """(key, how far off) where two tables differ most. A key that only the reference has is infinitely far off.

    Raises ValueError for an empty reference: then nothing was compared.
    """
    if not reference:
        raise ValueError("nothing to compare with")
    far = {key: off(found[key], size) if key in found else float("inf") for key, size in reference.items()}
    key = max(far, key=lambda k: far[k])
    return key, far[key]


def median(values: Sequence[float]) -> float:
    """The upper one of two in the middle. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[len(values) // 2]


def exit_code(rows: Sequence[Row]) -> int:
    """0; 1 when a check failed; 2 when nothing was checked. Missed goals of speed are no fault."""
    if any(row.verdict == "FAILED" for row in rows):
        return 1
    return 0 if any(row.verdict in ("ok", "missed") for row in rows) else 2


def summary(rows: Sequence[Row]) -> str:
    """``12 ok, 1 missed, 3 skipped``, the gravest first."""
    counts = Counter(row.verdict for row in rows)
    order: tuple[Verdict, ...] = ("FAILED", "missed", "ok", "told", "skipped")
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in order if counts[verdict]) or "nothing"


def line(row: Row) -> str:
    """One row as it comes, for a run that is cut off before the table."""
    goal = f" (goal: {row.goal})" if row.goal != "-" else ""
    return f"{row.verdict:8} {row.check}: {row.measured}{goal}"


def table(rows: Sequence[Row], title: str) -> Table:
    found = Table(title=title, title_justify="left", show_lines=True)
    for name in ("check", "goal", "measured", "verdict"):
        found.add_column(name, overflow="fold")
    for row in rows:
        found.add_row(Text(row.check), Text(row.goal), Text(row.measured), Text(row.verdict, STYLES[row.verdict]))
    return found
