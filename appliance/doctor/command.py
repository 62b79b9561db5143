"""The command: looks, and prints."""

import contextlib
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from appliance.doctor import report
from appliance.doctor.examine import examine
from appliance.doctor.report import Report, Verdict
from appliance.settings import Settings

_STYLES: dict[Verdict, str] = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def doctor(settings: Settings, fault: str | None, as_json: bool) -> int:
    """Print the report; 0 if nothing has failed, else 1."""
    terminal = sys.stdout is not None and sys.stdout.isatty() and not as_json
    if terminal:
        console = Console(highlight=False)
        with console.status("looking at this machine, up to 100 s …"):
            found = examine(settings, fault)
        _print_rich(console, found)
    else:
        found = examine(settings, fault)
        words = report.json(found).decode() if as_json else f"{report.text(found.checks)}\n{_last(found)}\n"
        _write(words)
    return 0 if found.passed else 1


def _last(found: Report) -> str:
    return f"{report.verdict(found.checks)} in {found.seconds:.1f} s"


def _print_rich(console: Console, found: Report) -> None:
    """In colours, wrapped at the terminal's width with the words kept in their column."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line, words, cure in report.sentences(found.checks):
        told = Text(words[len(line.check) :].lstrip())
        if cure:
            told.append(f"\n→ {cure}", style="cyan")
        table.add_row(Text(line.verdict, style=_STYLES[line.verdict]), line.check, told)
    console.print(table)
    console.print(Text(_last(found), style=_STYLES["ok" if found.passed else "failed"]))


def _write(words: str) -> None:
    """To a pipe or a file, if there is one; an encoding without a letter gets a '?'."""
    if sys.stdout is None:
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        words.encode(encoding)
    except UnicodeEncodeError:
        words = words.replace("→", "->")
    with contextlib.suppress(OSError, ValueError):  # nobody listens any more
        sys.stdout.write(words.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
