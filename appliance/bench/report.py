"""What a bench found, as JSON, and as a folder with a page, a picture and that JSON."""

import platform
import string
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from appliance import __version__
from appliance.bench.chart import Scene, scene
from appliance.bench.drawing import COLOURS, DARK, DARK_PAPER, PAPER, png, svg
from appliance.bench.faults import BenchError
from appliance.bench.recommend import Goal, Setting, Tried
from appliance.bench.stages import Stage, number

FILES = ("bench.html", "bench.png", "bench.json")

_PAGE = string.Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; $light }
@media (prefers-color-scheme: dark) { :root { $dark } }
body { margin: 0 auto; max-width: 1160px; padding: 12px 20px 48px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
svg { width: 100%; height: auto; font-family: system-ui, sans-serif; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: 6px 12px; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th:last-child, td:last-child { text-align: left; white-space: normal; }
pre { background: color-mix(in srgb, var(--grid) 45%, transparent); padding: 12px 16px; overflow-x: auto; }
p, li { max-width: 80ch; }
</style>
</head>
<body>
$chart
<h2>Stages</h2>
<div class="wide"><table>
<thead><tr>$head</tr></thead>
<tbody>
$rows
</tbody>
</table></div>
$advice
<h2>Notes</h2>
<ul>
$notes
</ul>
<p>$made</p>
</body>
</html>
""")

COLUMNS = (
    "clients",
    "answers/s",
    "spread",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "queue p50 ms",
    "queue p99 ms",
    "batch",
    "memory peak",
    "errors",
)


class Advice(msgspec.Struct, frozen=True):
    """What the search for a goal came to. ``diff``: of the model's ``model.toml``, empty where nothing changes."""

    goal: Goal
    start: Setting
    best: Setting
    tried: tuple[Tried, ...]
    words: str
    diff: str = ""
    written: bool = False


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """All of one bench. ``own``: the appliance was started for it."""

    model: str
    own: bool
    device: str
    payload: str
    seconds: float
    rounds: int
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]
    advice: Advice | None = None
    started: str = msgspec.field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    version: str = __version__
    system: str = msgspec.field(default_factory=platform.platform)


def cells(stage: Stage) -> list[str]:
    """One stage's row, by COLUMNS; medians of the rounds, but for the peak and the errors."""

    def of(name: str) -> str:
        value = stage.median(name)
        return "–" if value is None else number(value)

    errors = ", ".join(f"{count:,} × {code}" for code, count in sorted(stage.errors.items()))
    return [
        str(stage.clients),
        of("per_second"),
        "–" if stage.spread is None else f"{stage.spread * 100:.0f} %",
        *(of(name) for name in ("p50_ms", "p95_ms", "p99_ms", "queue_p50_ms", "queue_p99_ms", "batch")),
        "–" if stage.memory_bytes is None else f"{stage.memory_bytes / 2**20:,.0f} MiB",
        errors or "none",
    ]


def plain(found: Found) -> dict[str, Any]:
    """For JSON: everything that was measured, with the medians beside the rounds."""
    table: dict[str, Any] = msgspec.to_builtins(found)
    for told, stage in zip(table["stages"], found.stages, strict=True):
        names = ("per_second", "p50_ms", "p95_ms", "p99_ms", "queue_p50_ms", "queue_p99_ms", "batch")
        told["median"] = {name: stage.median(name) for name in names}
        told |= {"spread": stage.spread, "memory_bytes": stage.memory_bytes, "errors": stage.errors}
    return table


def json(found: Found) -> bytes:
    """``plain`` as text. JSON has no infinity: a score of a setting that gave no answer at all is null."""
    return msgspec.json.format(msgspec.json.encode(plain(found)), indent=2) + b"\n"


def drawn(found: Found) -> Scene:
    """The chart."""
    last = found.stages[-1].clients
    title = f"{found.model}: {'1 client' if last == 1 else f'1 to {last} clients'}"
    rounds = f"{found.rounds} rounds" if found.rounds > 1 else "1 round"
    about = (
        f"On {found.device}. Each request: {found.payload}. Medians of {rounds} of {number(found.seconds)} s; the "
        "bars go from the least to the most of the rounds."
    )
    advice = found.advice
    return scene(title, about, found.stages, advice.goal if advice else None, advice.tried if advice else ())


def page(found: Found) -> str:
    """The whole page; it needs nothing from anywhere."""
    advice = ""
    if found.advice is not None:
        told = found.advice.diff
        advice = f"<h2>Settings for {escape(found.advice.goal.words())}</h2>\n<p>{escape(found.advice.words)}</p>"
        advice += f"\n<pre>{escape(told)}</pre>" if told else ""
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in cells(stage)) for stage in found.stages)
    own = "an appliance started for it" if found.own else "the running appliance"
    return _PAGE.substitute(
        title=f"Bench of {escape(found.model)}",
        light=_variables(COLOURS, PAPER),
        dark=_variables(DARK, DARK_PAPER),
        chart=svg(drawn(found)),
        head="".join(f"<th>{name}</th>" for name in COLUMNS),
        rows="\n".join(f"<tr>{row}</tr>" for row in rows),
        advice=advice,
        notes="\n".join(f"<li>{escape(note)}</li>" for note in found.notes),
        made=escape(f"Inference Appliance {found.version} on {found.system}, {found.started}; {own}."),
    )


def write(found: Found, folder: Path) -> list[Path]:
    """The three files. BenchError if they cannot be written."""
    contents = (page(found).encode(), png(drawn(found)), json(found))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in zip(FILES, contents, strict=True):
            (folder / name).write_bytes(content)
    except OSError as error:
        raise BenchError(f"the report cannot be written to {folder}: {error.strerror}") from None
    return [folder / name for name in FILES]


def _variables(colours: Any, paper: str) -> str:
    return " ".join(f"--{role}: {colour};" for role, colour in [*colours.items(), ("paper", paper)])
