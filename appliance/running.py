"""``appliance run`` and ``appliance serve``: one instance, the port, the tray, and an orderly end."""

import json
import socket
import sys
import threading
import urllib.error
import urllib.request
from typing import Any

import structlog

from appliance import __version__, logs
from appliance.keys import KeyFile, KeysError
from appliance.setting_layers import unknown_variables
from appliance.settings import Settings
from appliance.system import ports
from appliance.system.instance import AlreadyRunning, Instance, find_running
from appliance.system.processes import on_stop

log = structlog.get_logger("appliance")


def run_appliance(settings: Settings, tray: bool) -> int:
    """Serve until told to stop; returns the exit code.

    0 also when the appliance runs already; 1 when another program has the port; 2 for settings that are refused.
    """
    logs.set_up(settings.log_level, settings.state_folder() / "logs" / "appliance.log", console=True)
    for remark in unknown_variables(Settings):
        log.warning("environment", remark=remark)
    try:
        keys = KeyFile(settings.state_folder()).read()
    except KeysError as error:
        say(f"{error} (in {settings.state_folder()})")
        return 2
    if not ports.is_loopback(settings.host) and not settings.api_key and not keys:
        say(f"host {settings.host} is reachable from other machines: make a key first (appliance key create) or set")
        say("api_key (APPLIANCE_API_KEY)")
        return 2
    stop = threading.Event()
    undo = on_stop(stop.set)
    try:
        return _run(settings, tray, stop)
    finally:
        undo()


def _run(settings: Settings, tray: bool, stop: threading.Event) -> int:
    notes: list[str] = []
    instance: Instance | None = None
    try:
        instance = Instance(settings.state_folder(), settings.port)
    except AlreadyRunning:
        return _second_start(settings)
    except OSError as error:
        say(f"the state folder cannot be written ({error.strerror}); going on without a port file")
        notes.append(f"there is no port file, the state folder cannot be written: {error.strerror}")
    try:
        listener = ports.listen(settings.host, settings.port)
    except OSError as error:
        if instance is not None:
            instance.release()
        return _port_taken(settings, error)
    try:
        return _serve(settings, tray, stop, instance, listener, notes)
    finally:
        if instance is not None:
            instance.release()


def _serve(
    settings: Settings,
    tray: bool,
    stop: threading.Event,
    instance: Instance | None,
    listener: socket.socket,
    notes: list[str],
) -> int:
    from appliance.app import Appliance

    appliance = Appliance(settings, listener, live=True)
    try:
        appliance.start()
    except Exception as error:  # noqa: BLE001 - whatever it is, the person is told in one line
        say(f"the server could not start: {error}")
        return 1
    for note in notes:
        appliance.note(note)
    if instance is not None:
        host, port = listener.getsockname()[:2]
        try:
            key = appliance.keys.local
            instance.announce(host=host, port=port, url=appliance.address, version=__version__, key=key)
        except OSError as error:
            appliance.note(f"the port file cannot be written: {error.strerror}")
    say(f"the appliance answers at {appliance.address} (docs: {appliance.address}/docs)")
    threading.Thread(target=_stop_too, args=(appliance, stop), name="stop-watch", daemon=True).start()
    if tray:
        reason = _tray(settings, appliance, stop)
        if reason:
            say(f"no tray icon ({reason}); going on without one")
    # A wait without an end cannot be interrupted by a signal on Windows.
    while not stop.wait(3600):
        pass
    say("stopping")
    appliance.stop()
    return 0 if not appliance.failed else 1


def _stop_too(appliance: Any, stop: threading.Event) -> None:
    """If the server ends by itself, the program ends."""
    appliance.stopped.wait()
    stop.set()


def _tray(settings: Settings, appliance: Any, stop: threading.Event) -> str | None:
    from appliance import diagnose
    from appliance.tray.actions import Actions, starts_at_login
    from appliance.tray.icon import available, one_icon, run_tray
    from appliance.tray.state import TrayState, from_status

    reason = available()
    if reason:
        return reason
    address = appliance.address
    act = Actions(
        appliance.controls,
        lambda: address,
        settings.models_folder(),
        settings.state_folder() / "logs",
        save=lambda: diagnose.save(settings, appliance.status()),
        leave=stop.set,
    )

    def state() -> TrayState:
        return from_status(appliance.status(), address, starts_at_login=starts_at_login(), saving=act.saving)

    with one_icon(settings.state_folder(), str(settings.port)) as first:
        if not first:
            return "appliance tray shows it already"
        return run_tray(state, act, stop, appliance.changed, say=say, period=2.0)


def say(words: str) -> None:
    """One line for the person at the console; a windowed program has none, and its log gets the line."""
    if sys.stdout is None:
        log.info(words)
        return
    try:
        print(words, flush=True)  # noqa: T201 - this is the program's own output
    except OSError:
        # The terminal or the pipe is gone, and what is left in the buffers would fail again at the exit.
        sys.stdout = sys.stderr = None  # as in a windowed program


def _second_start(settings: Settings) -> int:
    running = find_running(settings.state_folder(), settings.port)  # none: what lies there is of one that was killed
    where = running.url if running else f"port {settings.port} (it is starting)"
    say(f"the appliance is running already: {where}" + (f" (process {running.pid})" if running else ""))
    return 0


def _port_taken(settings: Settings, error: OSError) -> int:
    """Another program has the port: is it an appliance of another user, or something foreign?"""
    url = f"http://{settings.host}:{settings.port}"
    if _is_appliance(url, settings.api_key):
        say(f"the appliance is running already: {url}")
        return 0
    owner = ports.owner_of(settings.port)
    who = f" It is held by {owner}." if owner else ""
    say(f"port {settings.port} on {settings.host} cannot be used: {error.strerror}.{who}")
    say(f"Stop that program, or choose another port: appliance --port {settings.port + 1}")
    return 1


def _is_appliance(url: str, api_key: str | None) -> bool:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(f"{url}/v2", headers=headers)  # noqa: S310 - http to the own address
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
    try:
        with direct.open(request, timeout=2) as answer:
            return bool(json.load(answer).get("name") == "inference-appliance")
    except (OSError, ValueError, AttributeError, urllib.error.URLError):
        return False
