"""What the self-test found, as JSON and as a text for a person. Pure, but for `write`."""

from pathlib import Path

import msgspec

from appliance.doctor.report import Verdict, one_line, verdict


class Finding(msgspec.Struct, frozen=True):
    """What a check found, in one line, and (`cure`) what a person can do about it, or nothing."""

    verdict: Verdict
    found: str
    cure: str = ""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One check's part of the report."""

    check: str
    verdict: Verdict
    found: str
    cure: str
    seconds: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`started` is ISO 8601 in UTC. `console`: the program has one. `logs`: the last lines of each log of the
    self-test's own server and engine, where something failed."""

    version: str
    system: str
    python: str
    program: str
    frozen: bool
    console: bool
    started: str
    seconds: float
    checks: tuple[Line, ...]
    passed: bool
    logs: dict[str, str] = {}  # msgspec copies it for each report


def ok(found: str) -> Finding:
    return Finding("ok", found)


def warning(found: str, cure: str = "") -> Finding:
    return Finding("warning", found, cure)


def failed(found: str, cure: str = "") -> Finding:
    return Finding("failed", found, cure)


def sentence(line: Line) -> str:
    """One check as a person reads it; its cure is a second, indented line."""
    words = f"{line.verdict:<8} {line.check:<12} {one_line(line.found)} ({line.seconds:.1f} s)"
    return f"{words}\n{'':<21} → {one_line(line.cure)}" if line.cure else words


def text(report: Report) -> str:
    """The readable report."""
    parts = [
        f"Inference Appliance {report.version}: self-test of {report.started}",
        f"{report.system}; Python {report.python}; {'a console' if report.console else 'no console'}",
        report.program,
        "",
        *(sentence(line) for line in report.checks),
        "",
        f"{verdict(report.checks)} in {report.seconds:.1f} s",
    ]
    for name, lines in report.logs.items():
        parts += ["", f"--- the last of {name} ---", lines.rstrip()]
    return "\n".join(parts) + "\n"


def json(report: Report) -> bytes:
    """The report as JSON, in lines."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def places(where: Path) -> tuple[Path, Path]:
    """The JSON's and the text's file for `where`: a folder, or one of the two files."""
    if where.suffix in (".json", ".txt"):
        return where.with_suffix(".json"), where.with_suffix(".txt")
    return where / "selftest.json", where / "selftest.txt"


def write(report: Report, where: Path) -> tuple[Path, Path]:
    """Write both files and give their names. OSError if that cannot be done."""
    as_json, as_text = places(where)
    as_json.parent.mkdir(parents=True, exist_ok=True)
    as_json.write_bytes(json(report))
    as_text.write_text(text(report), "utf-8")
    return as_json, as_text
