"""What the doctor says: lines, the report as JSON, and each line as a person reads it. Pure."""

from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

Verdict = Literal["ok", "warning", "failed"]


class Judged(Protocol):
    """A line of a report, here or of the self-test."""

    @property
    def verdict(self) -> Verdict: ...


class Line(msgspec.Struct, frozen=True):
    """One thing that was looked at: what was found, in one line, and (``cure``) what a person can do, or nothing."""

    check: str
    verdict: Verdict
    found: str
    cure: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """``started`` is ISO 8601 in UTC. ``passed``: nothing has failed; a warning is no failure."""

    version: str
    started: str
    seconds: float
    passed: bool
    checks: tuple[Line, ...]


def passed(lines: Iterable[Judged]) -> bool:
    """A warning is no failure."""
    return all(line.verdict != "failed" for line in lines)


def sentences(lines: Iterable[Line]) -> list[tuple[Line, str, str]]:
    """(line, its sentence, what to do or ""). What a line above has told already is not told again."""
    told: set[str] = set()
    found = []
    for line in lines:
        cure = "" if line.cure in told else line.cure
        told.add(line.cure)
        found.append((line, f"{line.check:<12} {one_line(line.found)}", one_line(cure)))
    return found


def text(lines: Iterable[Line]) -> str:
    """All lines; what to do is a second, indented line."""
    parts = []
    for line, words, cure in sentences(lines):
        parts.append(f"{line.verdict:<8} {words}")
        if cure:
            parts.append(f"{'':<21} → {cure}")
    return "\n".join(parts)


def verdict(lines: Iterable[Judged]) -> str:
    """The last line: how many of what."""
    lines = tuple(lines)
    count = {kind: sum(line.verdict == kind for line in lines) for kind in ("ok", "warning", "failed")}
    result = "passed" if passed(lines) else "FAILED"
    return f"{result}: {', '.join(f'{kind} {number}' for kind, number in count.items())}"


def json(report: Report) -> bytes:
    """The report as JSON, in lines."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def one_line(words: str) -> str:
    """Without breaks and double spaces."""
    return " ".join(words.split())
