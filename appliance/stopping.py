"""``appliance stop``: ask the running appliance to answer what it has and to end, and wait until it is gone."""

import time

import httpx
import psutil

from appliance.keys import headers
from appliance.settings import Settings
from appliance.system import ending
from appliance.system.instance import Running, find_all, find_running

_END_S = 2.5  # what the end itself may take beside `shutdown_ms`
_ASK_S = 10.0


def stop(settings: Settings, timeout_s: float, kill: bool, everything: bool) -> int:
    """Exit code 0 when none runs (any more), 1 when one is still there after ``timeout_s`` seconds.

    With ``kill`` such a one is ended with its engine. ``everything``: all appliances of the state folder, not the
    one of the port alone, and whatever else was started from this program's folder.
    """
    until = time.monotonic() + timeout_s
    one = find_running(settings.state_folder(), settings.port)
    running = find_all(settings.state_folder()) if everything else [one] if one else []
    drain_s = max(0.0, timeout_s - settings.shutdown_ms / 1000 - _END_S)
    processes: list[psutil.Process] = []
    deaf: list[psutil.Process] = []
    for found in running:
        tree = ending.tree(found.pid)  # first: what ends at once would be none any more
        (processes if _ask(settings, found, drain_s) else deaf).extend(tree)
    if everything:
        known = {process.pid for process in [*processes, *deaf]}
        processes += [process for process in ending.of_this_folder() if process.pid not in known]
    if not processes and not deaf:
        print("the appliance is not running")  # noqa: T201
        return 0
    if not kill:
        processes, deaf = [*processes, *deaf], []
    left = [*ending.wait_gone(processes, until - time.monotonic()), *deaf]
    if left and kill:
        print("it does not end by itself: it is ended now")  # noqa: T201
        left = ending.end(left)
    if left:
        names = ", ".join(str(process.pid) for process in left)
        print(f"appliance: still running after {timeout_s:g} s: process {names}; end it with --kill")  # noqa: T201
        return 1
    print("stopped")  # noqa: T201
    return 0


def _ask(settings: Settings, running: Running, drain_s: float) -> bool:
    """False when it does not take the request: it hangs, wants another key, or is older than this way of ending."""
    url = f"{running.url}/api/shutdown?timeout_ms={round(drain_s * 1000)}"
    try:
        key = headers(running, settings.api_key)
        answer = httpx.post(url, headers=key, timeout=_ASK_S, trust_env=False)
    except httpx.HTTPError as error:
        print(f"appliance: {running.url} does not answer: {type(error).__name__}")  # noqa: T201
        return False
    if answer.status_code == 200:
        found = answer.json()
        print(f"{running.url} ends: {found['running']} running, {found['waiting']} waiting")  # noqa: T201
        return True
    print(f"appliance: {running.url} refuses: {_words(answer)}")  # noqa: T201
    return False


def _words(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
