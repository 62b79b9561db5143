"""The checks of the place the program runs in: streams, folders, paths, the tray, start at login, the device."""

import shutil
import sys
import threading
from typing import Any

from appliance.selftest.context import FAR, Context
from appliance.selftest.report import Finding, failed, ok, warning
from appliance.system import autostart, paths
from appliance.system.autostart import AutostartError, Place
from appliance.system.long_paths import extended
from appliance.system.writable import write_fault

HARD_NAME = "Jörg Müller 测试"
_LONG = 300  # characters; Windows' old limit is 260
_ROOM = 1 << 30  # bytes free in the state folder, for logs and runtime packs
_SHOWN_S = 0.5


def settings(context: Context) -> Finding:
    """The user's settings can be read."""
    if context.settings_fault is not None:
        return failed(f"{context.settings_fault}; going on with the defaults", "mend the setting named there")
    chosen = context.settings
    return ok(f"host {chosen.host}, port {chosen.port}, device {chosen.device}")


def streams(_context: Context) -> Finding:
    """Which standard streams there are; those that are there can be written."""
    names = ("stdin", "stdout", "stderr")
    missing = [name for name in names if getattr(sys, name) is None]
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            stream.flush()
    if not missing:
        return ok("stdin, stdout and stderr are there")
    return ok(f"{', '.join(missing)}: None{' (a windowed program)' if len(missing) == len(names) else ''}")


def folders(context: Context) -> Finding:
    """State, logs and models can be written. The program's own folder need not be."""
    state, models = context.settings.state_folder(), context.settings.models_folder()
    faults: list[str] = []
    words: list[str] = []
    for name, folder in (("state", state), ("logs", state / "logs"), ("models", models)):
        fault = write_fault(folder)
        (faults if fault else words).append(f"{name} {folder}{f': {fault}' if fault else ''}")
    if faults:
        cure = "give this user the right to write there, or choose other folders (settings state and models)"
        return failed(f"cannot be written: {'; '.join(faults)}", cure)
    program = paths.program_folder()
    read_only = write_fault(program) is not None
    told = f"{'; '.join(words)}; program {program} ({'read-only' if read_only else 'can be written'})"
    free = shutil.disk_usage(next(p for p in (state, *state.parents) if p.exists())).free
    if free < _ROOM:
        return warning(f"{told}; only {free / 1e6:.0f} MB are free", "make room on the disk of the state folder")
    return ok(told)


def long_paths(context: Context) -> Finding:
    """Files with letters beyond ASCII in their path, and on a path over 260 characters; a model is put on both."""
    hard = context.folder / HARD_NAME
    fault = write_fault(hard)
    if fault:
        return failed(f"a folder named '{HARD_NAME}' cannot be used: {fault}", "use another temporary folder (TEMP)")
    far = hard
    while len(str(far)) < _LONG:
        far = far / f"a folder deep down {len(far.parts)}"
    far = extended(far)  # as the models folder is spelt
    fault = write_fault(far)
    if fault is None:
        try:
            shutil.copytree(paths.assets() / "models" / "segment", far / FAR)
            context.models = far
        except OSError as error:
            fault = error.strerror or type(error).__name__
    if fault:
        return warning(
            f"letters beyond ASCII work; a path of {len(str(far))} characters does not: {fault}",
            "keep models at shorter paths",
        )
    return ok(f"letters beyond ASCII and a path of {len(str(far))} characters work")


def tray(context: Context) -> Finding:
    """The icon is shown for a moment and goes again."""
    from appliance.tray.icon import run_tray
    from appliance.tray.state import TrayState

    shown = TrayState(state="starting", address="http://127.0.0.1", device="self-test")
    seen, stop, changed, told = [0], threading.Event(), threading.Event(), list[str]()

    def state() -> TrayState:
        seen[0] += 1
        if seen[0] == 2:  # the first is asked for before the icon is there, the next when it is
            threading.Timer(_SHOWN_S, stop.set).start()
        return shown

    reason = run_tray(state, lambda _action, _model: None, stop, changed, say=told.append)
    cure = "nothing is lacking but the icon: the program serves without one"
    if reason:
        return warning(f"no icon: {reason}", cure)
    if seen[0] < 2:
        return failed("the icon was not painted")
    return warning(f"an icon was made; {'; '.join(told)}", cure) if told else ok("an icon was shown and removed")


def start_at_login(context: Context) -> Finding:
    """An entry of the self-test's own is set, read back and removed; the user's is only looked at."""
    try:
        place = context.autostart or autostart.place(f"{autostart.NAME} self-test")
        users = context.users_autostart or autostart.place()
        fault = _entry_fault(place)
        if fault:
            return failed(fault, "the system, or who manages it, does not let this user start programs at login")
        held, own = users.read(), autostart.own_line(users)
    except AutostartError as error:
        return warning(str(error))
    if held is not None and held != own:
        return warning(
            f"set and removed; at login another copy is started: {held}", f"{paths.command_name()} autostart on"
        )
    return ok(f"set and removed; the user's own is {'off' if held is None else 'on'}")


def _entry_fault(place: Place) -> str | None:
    try:
        autostart.enable(place)
        if place.read() != autostart.own_line(place):
            return f"the entry was set, but what is read back is {place.read()}"
    finally:
        autostart.disable(place)
    return "the entry was removed, but it is still there" if place.read() is not None else None


def device(context: Context) -> Finding:
    """What runs the models; if that is not CUDA, why."""
    status = context.status()
    return judge_device(status["device"], status["devices"], status["engine"]["providers"])


def judge_device(said: dict[str, Any], readings: list[dict[str, Any]], providers: list[str]) -> Finding:
    """`device`, `devices` and the engine's `providers` of ``/api/status`` in one line. Pure."""
    running, policy, reason = said["running"] or "nothing", said["policy"], said["reason"]
    names = {reading["id"]: reading["name"] for reading in readings}
    first = "cpu" if running.startswith("cpu") else running.partition(",")[0]
    words = f"{running} ({names.get(first, 'unknown')}), asked for: {policy}"
    if reason:
        why, _, cure = reason.partition("; ")
        tell = failed if "cuda" in policy else warning
        return tell(f"{words}; not CUDA: {why}", cure or "see docs/troubleshooting.md")
    if running.startswith("cuda"):
        return ok(words)
    if policy.startswith("cpu"):
        return ok(f"{words}: as the setting says")
    if "CUDAExecutionProvider" in providers:
        return warning(f"{words}; built for CUDA, and it does not say why that is not used")
    cards = [reading for reading in readings if reading["kind"] != "cpu"]
    if cards:
        return warning(f"{words}; built for the CPU, but there is {cards[0]['name']}", "install the build for CUDA")
    return ok(f"{words}; built for the CPU")
