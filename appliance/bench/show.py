"""What a bench found, for a person at a console."""

from rich.console import Console
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from appliance.bench.recommend import told
from appliance.bench.report import COLUMNS, Advice, Found, cells


def everything(found: Found, console: Console, hint: bool) -> None:
    """Heading, the table of stages, the advice, the notes. ``hint``: how to have the advice written."""
    console.print(
        f"[bold]{escape(found.model)}[/] on {escape(found.device)}, {escape(found.payload)}", highlight=False
    )
    table = Table(box=None, pad_edge=False)
    shown = [at for at, column in enumerate(COLUMNS) if column != "queue p99 ms"]  # 80 letters are not many
    for at in shown:
        last = COLUMNS[at] == "errors"
        table.add_column(
            COLUMNS[at].removesuffix(" ms").removesuffix(" peak"),
            justify="left" if last else "right",
            no_wrap=not last,
        )
    for stage in found.stages:
        row = cells(stage)
        table.add_row(*(escape(row[at]) for at in shown), style="red" if stage.errors else "")
    console.print(table)
    console.print("[dim]Latencies and time in the queue in ms; medians of the rounds, memory at its peak[/]\n")
    if found.advice is not None:
        advice(found.advice, console, hint)
    for note in found.notes:
        console.print(f"[dim]{escape(note)}[/]", highlight=False, soft_wrap=True)


def advice(found: Advice, console: Console, hint: bool) -> None:
    """What was tried, in order, and what to do."""
    table = Table("batch", "instances", "delay ms", "least", "most", "", box=None, pad_edge=False)
    for one in found.tried:
        low, high = (told(found.goal, pick(one.scores)) if one.scores else "–" for pick in (min, max))
        setting = one.setting
        table.add_row(
            str(setting.batch),
            str(setting.instances),
            f"{setting.delay_ms:g}",
            low,
            high,
            escape(one.fault or one.verdict),
            style="bold" if one.taken else "",
        )
    console.print(f"\nTried, one change at a time, for {found.goal.words()}:", highlight=False)
    console.print(table)
    console.print(f"\n[bold]{escape(found.words)}[/]", highlight=False, soft_wrap=True)
    if found.diff:
        diff(found.diff, console)
    console.print("[dim]--write puts this into the file.[/]\n" if found.diff and hint else "", highlight=False)


def diff(text: str, console: Console) -> None:
    """As a patch."""
    console.print(Syntax(text, "diff", theme="ansi_dark", background_color="default"))
