"""From the state of the appliance to what the tray shows: menu, colour, glyph, tooltip. Pure."""

import textwrap
from typing import Literal

import msgspec

from appliance.tray.state import ModelCondition, ModelState, State, TrayState

NAME = "Inference Appliance"

TOOLTIP_UNITS = 127
"""Longest tooltip of a Windows tray icon, in UTF-16 units (shellapi.h: 128 with the closing zero)."""

NOTICE_UNITS = 255
"""Longest notification of a Windows tray icon, likewise."""

_REASON_WIDTH = 64
_REASON_LINES = 4
_LINE_WIDTH = 80
_MODELS = 30  # in the menu; a screen has no room for more
_NAME_WIDTH = 40

Glyph = Literal["dots", "check", "play", "bang", "cross", "bars"]
Action = Literal[
    "open_dashboard",
    "copy_address",
    "open_models",
    "open_logs",
    "open_docs",
    "pause",
    "resume",
    "restart_engine",
    "load_model",
    "unload_model",
    "pin_model",
    "unpin_model",
    "start_at_login",
    "no_start_at_login",
    "save_diagnosis",
    "quit",
]

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
    "stopped": "Ending",
    "paused": "Paused",
}


_CONDITIONS: dict[ModelCondition, str] = {
    "ready": "ready",
    "loading": "being loaded",
    "failed": "failed",
    "asleep": "asleep, a request loads it",
    "unloaded": "not loaded",
}


class MenuItem(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the menu. A line without an action only tells something; a separator has no text.

    ``model`` is the one that the action is about. ``checked``: None for a line that cannot be ticked. A line with
    ``items`` opens them, and has no action.
    """

    text: str = ""
    action: Action | None = None
    model: str = ""
    enabled: bool = False
    default: bool = False
    checked: bool | None = None
    separator: bool = False
    items: tuple["MenuItem", ...] = ()


_SEPARATOR = MenuItem(separator=True)


def items(state: TrayState) -> tuple[MenuItem, ...]:
    """The menu from top to bottom; exactly one item is the default one (what a plain click does)."""
    ending = state.state == "stopped"
    login = state.starts_at_login
    paused = state.state == "paused"
    return (
        *_status(state),
        _SEPARATOR,
        _action("Open dashboard", "open_dashboard", default=True),
        _action(f"Copy API address ({state.address})", "copy_address"),
        _action("Open models folder", "open_models"),
        _action("Open logs", "open_logs"),
        _SEPARATOR,
        _action("Resume", "resume") if paused else _action("Pause", "pause", enabled=not ending),
        _action("Restart engine", "restart_engine", enabled=state.engine_running and not ending),
        _SEPARATOR,
        *(
            [_action("Start at login", "no_start_at_login" if login else "start_at_login", checked=login)]
            if login is not None
            else []
        ),
        _action("Saving a diagnostic file …", "save_diagnosis", enabled=False)
        if state.saving
        else _action("Save a diagnostic file", "save_diagnosis"),
        _open("About", (*_lines(NAME, *state.about), _SEPARATOR, _action("API documentation", "open_docs"))),
        _SEPARATOR,
        _action(_quit(state), "quit"),
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


def notice(text: str) -> str:
    """A notification that every desktop takes: at most 255 UTF-16 units."""
    return _clip_units(text, NOTICE_UNITS)


def _status(state: TrayState) -> list[MenuItem]:
    found = _lines(f"{_WORDS[state.state]}: {state.device}", *_wrapped(state.device_reason or state.device_choice))
    memory = _memory(state)
    if memory:
        found.append(_open(f"Memory: {memory}", tuple(_lines(*_shares(state)))))
    found += _lines(f"Queue: {_queue(state)}")
    ready = sum(m.condition == "ready" for m in state.models)
    found.append(_open(f"Models: {ready} of {len(state.models)} ready", _models(state)))
    failed = [m.name for m in state.models if m.condition == "failed"]
    if failed:
        found += _lines(f"Failed: {', '.join(failed)}")
    if state.engine_restarts:
        times = "once" if state.engine_restarts == 1 else f"{state.engine_restarts} times"
        found += _lines(f"The engine was restarted {times}", *_wrapped(state.engine_last_end))
    if state.restart_needed:
        found += _lines(f"Changed, and counts after a restart: {', '.join(state.restart_needed)}")
    return found


def _shares(state: TrayState) -> list[str]:
    return [f"{_clip(name, _NAME_WIDTH)}: {_size(size)}" for name, size in state.memory_parts]


def _models(state: TrayState) -> tuple[MenuItem, ...]:
    """A line a model, those that failed first."""
    ranked = sorted(state.models, key=lambda m: (m.condition != "failed", m.name))
    shown = [_open(_model_line(m), _model(m, state.state != "stopped")) for m in ranked[:_MODELS]]
    more = len(ranked) - len(shown)
    return (*shown, *(_lines(f"{more} more: see the dashboard") if more else []))


def _model_line(model: ModelState) -> str:
    """The name, and how it is."""
    parts = [_CONDITIONS[model.condition].partition(",")[0]]
    if model.memory:
        parts.append(_size(model.memory))
    if model.pinned:
        parts.append("pinned")
    return f"{_clip(model.name, _NAME_WIDTH)}: {', '.join(parts)}"


def _model(model: ModelState, may_act: bool) -> tuple[MenuItem, ...]:
    """What is known of a model, and what can be done with it."""
    ready, name = model.condition == "ready", model.name
    device = f", on {model.device}" if model.device else ""
    return (
        *_lines(f"{_CONDITIONS[model.condition].capitalize()}{device}", *_wrapped(model.error)),
        *_lines(f"{model.running} running, {model.waiting} waiting"),
        _SEPARATOR,
        _action(
            "Load again" if ready else "Load",
            "load_model",
            model=name,
            enabled=may_act and model.condition != "loading",
        ),
        _action("Unload", "unload_model", model=name, enabled=may_act and model.condition != "unloaded"),
        _action(
            "Pinned: makes room for no other model",
            "unpin_model" if model.pinned else "pin_model",
            model=name,
            enabled=may_act,
            checked=model.pinned,
        ),
    )


def _quit(state: TrayState) -> str:
    """Quit answers what is there first; chosen again, it does not."""
    count = state.running + state.queued
    requests = "1 request" if count == 1 else f"{count} requests"
    if state.state == "stopped":
        return f"Quit now ({requests} get no answer)" if count else "Quit now"
    return f"Quit (answers {requests} first)" if count else "Quit"


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


def _size(count: int) -> str:
    return f"{_gib(count)} GiB" if count >= 1 << 30 else f"{max(1, round(count / (1 << 20)))} MiB"


def _lines(*texts: str) -> list[MenuItem]:
    return [MenuItem(text=_clip(text, _LINE_WIDTH)) for text in texts]


def _wrapped(text: str | None) -> list[str]:
    return textwrap.wrap(text or "", _REASON_WIDTH, max_lines=_REASON_LINES, placeholder=" …", break_long_words=True)


def _open(text: str, inside: tuple[MenuItem, ...]) -> MenuItem:
    """A line that opens others, if there are any."""
    return MenuItem(text=_clip(text, _LINE_WIDTH), items=inside, enabled=bool(inside))


def _action(
    text: str,
    action: Action,
    *,
    model: str = "",
    default: bool = False,
    enabled: bool = True,
    checked: bool | None = None,
) -> MenuItem:
    return MenuItem(text=text, action=action, model=model, enabled=enabled, default=default, checked=checked)


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
