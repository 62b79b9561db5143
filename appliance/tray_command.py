"""``appliance tray``: the icon of an appliance that runs elsewhere, such as a service."""

import re
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from appliance import diagnose
from appliance.keys import headers
from appliance.running import say
from appliance.settings import Settings
from appliance.system.instance import find_running
from appliance.system.processes import on_stop
from appliance.tray.actions import Actions
from appliance.tray.icon import available, one_icon, run_tray
from appliance.tray.remote import Remote


def tray(settings: Settings, url: str | None) -> int:
    """Show the icon until it is quit. Exit code 0, also if this user has one already for that appliance; 1 if no icon
    can be shown; 2 for an address that is none."""
    if url is not None and not _is_address(url):
        say(f"'{url}' is no address: it must be like http://127.0.0.1:11711")
        return 2
    reason = available()
    if reason is not None:
        say(f"no tray icon ({reason})")
        return 1

    def where() -> tuple[str, dict[str, str]]:
        if url is not None:
            return url.rstrip("/"), headers(None, settings.api_key)
        running = find_running(settings.state_folder(), settings.port)
        address = running.url if running else f"http://{settings.host}:{settings.port}"
        return address, headers(running, settings.api_key)

    of = re.sub(r"[^a-z0-9]+", "-", (url or str(settings.port)).lower()).strip("-")
    with one_icon(settings.state_folder(), of) as first:
        if first:
            return _show(settings, where)
    say("this icon is shown already")
    return 0


def _show(settings: Settings, where: Callable[[], tuple[str, dict[str, str]]]) -> int:
    stop, changed = threading.Event(), threading.Event()
    remote = Remote(where, settings.load_timeout_ms / 1000, changed)
    undo = on_stop(stop.set)
    act = Actions(
        remote,
        lambda: remote.address,
        settings.models_folder(),
        settings.state_folder() / "logs",
        save=lambda: diagnose.save(settings, remote.status),
        leave=stop.set,
    )
    threading.Thread(target=remote.follow, args=(stop,), name="tray-look", daemon=True).start()
    try:
        reason = run_tray(lambda: remote.state(act.saving), act, stop, changed, say=say)
    finally:
        undo()
        remote.end(stop)
    if reason is not None:
        say(f"no tray icon ({reason})")
    return 0 if reason is None else 1


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False
