"""From the state of the appliance to what the tray shows: menu, colour, glyph, tooltip. Pure."""

import textwrap
from typing import Literal

import msgspec

NAME = "Inference Appliance"

TOOLTIP_UNITS = 127
"""Longest tooltip of a Windows tray icon, in UTF-16 units (shellapi.h: 128 with the closing zero)."""

_REASON_WIDTH = 64
_REASON_LINES = 4
_LINE_WIDTH = 80

State = Literal["starting", "ready", "busy", "degraded", "stopped", "paused"]
Glyph = Literal["dots", "check", "play", "bang", "cross", "bars"]
Action = Literal["open_dashboard", "copy_address", "open_models", "open_logs", "pause", "resume", "quit"]

_COLOURS: dict[State, str] = {  # Okabe and Ito's palette: told apart with any kind of colour vision
    "starting": "#56b4e9",
    "ready": "#009e73",
    "busy": "#0072b2",
    "degraded": "#e69f00",
    "stopped": "#d55e00",
    "paused": "#7f7f7f",
}

_GLYPHS: dict[State, Glyph] = {
    "starting": "dots",
    "ready": "check",
    "busy": "play",
    "degraded": "bang",
    "stopped": "cross",
    "paused": "bars",
}

_WORDS: dict[State, str] = {
    "starting": "Starting",
    "ready": "Ready",
    "busy": "Busy",
    "degraded": "Degraded",
    "stopped": "Engine stopped",
    "paused": "Paused",
}


class TrayState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the tray knows. Memory in bytes, None where the device does not tell.

    `device` is a text for people ("cuda:0 NVIDIA RTX 4060", "CPU"); `device_reason` says why it is not the
    one that was asked for. `address` is the API's base URL.
    """

    state: State
    address: str
    device: str
    device_reason: str | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    running: int = 0
    queued: int = 0
    models_ready: int = 0
    models_total: int = 0
    models_failed: tuple[str, ...] = ()
    engine_restarts: int = 0


class MenuItem(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the menu. A line without an action only tells something; a separator has no text."""

    text: str = ""
    action: Action | None = None
    enabled: bool = False
    default: bool = False
    separator: bool = False


_SEPARATOR = MenuItem(separator=True)


def items(state: TrayState) -> tuple[MenuItem, ...]:
    """The menu from top to bottom; exactly one item is the default one (what a plain click does)."""
    return (
        *(MenuItem(text=_clip(line, _LINE_WIDTH)) for line in _status(state)),
        _SEPARATOR,
        _action("Open dashboard", "open_dashboard", default=True),
        _action(f"Copy API address ({state.address})", "copy_address"),
        _action("Open models folder", "open_models"),
        _action("Open logs", "open_logs"),
        _SEPARATOR,
        _action("Resume", "resume") if state.state == "paused" else _action("Pause", "pause"),
        _SEPARATOR,
        _action("Quit", "quit"),
    )


def colour(state: TrayState) -> str:
    """The icon's colour, ``#rrggbb``; a different one for each state."""
    return _COLOURS[state.state]


def glyph(state: TrayState) -> Glyph:
    """The sign on the icon, which tells the state without its colour; a different one for each state."""
    return _GLYPHS[state.state]


def tooltip(state: TrayState) -> str:
    """A few words on the state, at most 127 UTF-16 units."""
    lines = [f"{NAME}: {_WORDS[state.state].lower()}", state.device]
    memory = _memory(state)
    lines.append(f"{memory}; {_queue(state)}" if memory else _queue(state))
    return _clip_units("\n".join(lines), TOOLTIP_UNITS)


def _status(state: TrayState) -> list[str]:
    lines = [f"{_WORDS[state.state]}: {state.device}"]
    if state.device_reason:
        lines += textwrap.wrap(
            state.device_reason,
            _REASON_WIDTH,
            max_lines=_REASON_LINES,
            placeholder=" …",
            break_long_words=True,
        )
    memory = _memory(state)
    if memory:
        lines.append(f"Memory: {memory}")
    lines.append(f"Queue: {_queue(state)}")
    lines.append(f"Models: {state.models_ready} of {state.models_total} ready")
    if state.models_failed:
        lines.append(f"Failed: {', '.join(state.models_failed)}")
    if state.engine_restarts:
        times = "once" if state.engine_restarts == 1 else f"{state.engine_restarts} times"
        lines.append(f"The engine was restarted {times}")
    return lines


def _queue(state: TrayState) -> str:
    return f"{state.running} running, {state.queued} waiting"


def _memory(state: TrayState) -> str:
    """Used of total in GiB, or what of it is known."""
    used, total = state.memory_used, state.memory_total
    if used is None and total is None:
        return ""
    if total is None:
        return f"{_gib(used)} GiB used"
    if used is None:
        return f"{_gib(total)} GiB in all"
    return f"{_gib(used)} of {_gib(total)} GiB"


def _gib(count: int | None) -> str:
    return f"{(count or 0) / (1 << 30):.1f}"


def _action(text: str, action: Action, *, default: bool = False) -> MenuItem:
    return MenuItem(text=text, action=action, enabled=True, default=default)


def _clip(text: str, limit: int) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _clip_units(text: str, limit: int) -> str:
    if _units(text) <= limit:
        return text
    while _units(text) > limit - 1:
        text = text[:-1]
    return text + "…"


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
