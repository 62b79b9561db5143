"""From the state of the appliance to what the tray shows: menu, colour, glyph, tooltip. Pure."""

from typing import Literal

import msgspec

from appliance.tray.state import DeviceState, EngineState, ModelCondition, ModelState, State, TrayState
from appliance.tray.words import clip, clip_units, gib, size, wrapped

NAME = "Inference Appliance"

TOOLTIP_UNITS = 127
"""Longest tooltip of a Windows tray icon, in UTF-16 units (shellapi.h: 128 with the closing zero)."""

NOTICE_UNITS = 255
"""Longest notification of a Windows tray icon, likewise."""

_LINE_WIDTH = 80
_MODELS = 30  # in the menu; a screen has no room for more
_DEVICES = 8  # likewise
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
        *([] if state.attached else _folders()),
        _SEPARATOR,
        _action("Resume", "resume") if paused else _action("Pause", "pause", enabled=not ending),
        _action(
            "Restart engines" if len(state.engines) > 1 else "Restart engine",
            "restart_engine",
            enabled=not ending and (state.engine_running or any(e.state == "ready" for e in state.engines)),
        ),
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
    """A few words on the state, at most 127 UTF-16 units. Where there are several devices, an engine that does not
    run comes before their names."""
    if state.away is not None:
        return clip_units(f"{NAME}: {state.away}", TOOLTIP_UNITS)
    away = [f"{e.id}: engine {e.state}" for e in state.engines if e.state != "ready"] if state.devices else []
    if len(away) > 1:
        away = [f"{len(away)} of {len(state.engines)} engines do not run"]
    lines = [f"{NAME}: {_WORDS[state.state].lower()}", *(away or [state.device])]
    memory = _memory(state)
    lines.append(f"{memory}; {_queue(state)}" if memory else _queue(state))
    return clip_units("\n".join(lines), TOOLTIP_UNITS)


def notice(text: str) -> str:
    """A notification that every desktop takes: at most 255 UTF-16 units."""
    return clip_units(text, NOTICE_UNITS)


def _folders() -> list[MenuItem]:
    """Those of this program: another one's need not be on this machine, or open to this user."""
    return [_action("Open models folder", "open_models"), _action("Open logs", "open_logs")]


def _status(state: TrayState) -> list[MenuItem]:
    if state.away is not None:
        return _lines(*wrapped(state.away))
    found = _lines(f"{_WORDS[state.state]}: {state.device}", *wrapped(state.device_reason or state.device_choice))
    memory = _memory(state)
    if state.devices:
        found += [_device(device) for device in state.devices[:_DEVICES]]
        more = len(state.devices) - _DEVICES
        found += _lines(f"{more} more devices: see the dashboard") if more > 0 else []
    elif memory:
        found.append(_open(f"Memory: {memory}", tuple(_lines(*_shares(state)))))
    found += _lines(f"Queue: {_queue(state)}")
    if speed := state.tokens_per_s:
        kept = f", KV cache {size(state.kv_cache)}" if state.kv_cache else ""
        found += _lines(f"Language models: {speed:.{0 if speed >= 10 else 1}f} tokens/s{kept}")
    ready = sum(m.condition == "ready" for m in state.models)
    found.append(_open(f"Models: {ready} of {len(state.models)} ready", _models(state)))
    failed = [m.name for m in state.models if m.condition == "failed"]
    if failed:
        found += _lines(f"Failed: {', '.join(failed)}")
    if state.engine_restarts:
        times = "once" if state.engine_restarts == 1 else f"{state.engine_restarts} times"
        who = "Engines were" if len(state.engines) > 1 else "The engine was"
        found += _lines(f"{who} restarted {times}", *wrapped(state.engine_last_end))
    if state.restart_needed:
        found += _lines(f"Changed, and counts after a restart: {', '.join(state.restart_needed)}")
    return found


def _device(device: DeviceState) -> MenuItem:
    """A device, how full it is, and whether its engines run; opens who holds the memory, and the engines."""
    parts = [memory] if (memory := _memory(device)) else []
    parts += [f"engine {e.state}" for e in device.engines if e.state != "ready"][:1]
    name = clip(f"{device.id} {device.name}".rstrip(), _NAME_WIDTH)
    shares = _lines(*_shares(device))
    engines = _lines(*(line for engine in device.engines for line in _engine(engine)))
    between = [_SEPARATOR] if shares and engines else []
    return _open(f"{name}: {', '.join(parts)}" if parts else name, (*shares, *between, *engines))


def _engine(engine: EngineState) -> list[str]:
    times = {0: "", 1: ", restarted once"}.get(engine.restarts, f", restarted {engine.restarts} times")
    return [f"{engine.id}: engine {engine.state}{times}", *wrapped(engine.last_end)]


def _shares(state: TrayState | DeviceState) -> list[str]:
    return [f"{clip(name, _NAME_WIDTH)}: {size(held)}" for name, held in state.memory_parts]


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
        parts.append(size(model.memory))
    if model.pinned:
        parts.append("pinned")
    return f"{clip(model.name, _NAME_WIDTH)}: {', '.join(parts)}"


def _model(model: ModelState, may_act: bool) -> tuple[MenuItem, ...]:
    """What is known of a model, and what can be done with it."""
    ready, name = model.condition == "ready", model.name
    device = f", on {model.device}" if model.device else ""
    return (
        *_lines(f"{_CONDITIONS[model.condition].capitalize()}{device}", *wrapped(model.error or model.progress)),
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
    """Quit answers what is there first; chosen again, it does not. An icon of its own goes alone."""
    if state.attached:
        return "Quit this icon"
    count = state.running + state.queued
    requests = "1 request" if count == 1 else f"{count} requests"
    if state.state == "stopped":
        return f"Quit now ({requests} get no answer)" if count else "Quit now"
    return f"Quit (answers {requests} first)" if count else "Quit"


def _queue(state: TrayState) -> str:
    return f"{state.running} running, {state.queued} waiting"


def _memory(state: TrayState | DeviceState) -> str:
    """Used of total in GiB, or what of it is known."""
    used, total = state.memory_used, state.memory_total
    if used is None and total is None:
        return ""
    if total is None:
        return f"{gib(used)} GiB used"
    if used is None:
        return f"{gib(total)} GiB in all"
    return f"{gib(used)} of {gib(total)} GiB"


def _lines(*texts: str) -> list[MenuItem]:
    return [MenuItem(text=clip(text, _LINE_WIDTH)) for text in texts]


def _open(text: str, inside: tuple[MenuItem, ...]) -> MenuItem:
    """A line that opens others, if there are any."""
    return MenuItem(text=clip(text, _LINE_WIDTH), items=inside, enabled=bool(inside))


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
