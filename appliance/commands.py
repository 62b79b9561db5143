"""What the client commands do: ask the running appliance, or look at the folders where none runs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from appliance.errors import ApplianceError
from appliance.keys import headers
from appliance.models.repository import ModelFolder, Root, add, remove, scan
from appliance.serving.check import Checked, check
from appliance.serving.roots import models_roots
from appliance.settings import Settings
from appliance.system import autostart
from appliance.system.instance import find_running

_out = Console
_STATE_STYLE = {"READY": "green", "LOADING": "yellow", "UNAVAILABLE": "red"}


def status(settings: Settings, as_json: bool) -> int:
    """Exit code 0 when it runs, 1 when not."""
    found = _ask(settings, "/api/status")
    if found is None:
        return _not_running(settings)
    if as_json:
        print(json.dumps(found, indent=2))  # noqa: T201
        return 0
    device, queue = found["device"], found["queue"]
    table = Table(show_header=False, box=None)
    table.add_row("state", found["state"])
    table.add_row("address", found["address"])
    table.add_row("device", f"{device['running'] or 'none yet'} (asked for: {device['policy']})")
    if device["reason"]:
        table.add_row("", f"[yellow]{escape(device['reason'])}[/]")
    for reading in found["devices"]:
        table.add_row(reading["id"], f"{escape(reading['name'])}, {_memory(reading)}")
    for engine in found["engines"]:
        name = "engine" if len(found["engines"]) == 1 else f"engine {engine['id']}"
        table.add_row(name, f"{engine['state']}, restarts: {engine['restarts']}, pid {engine['pid'] or '–'}")
        if engine["deaths"]:
            table.add_row("", f"last end: {escape(engine['deaths'][-1]['reason'])}")
    table.add_row("queue", f"{queue['waiting']} waiting, {queue['running']} running")
    console = _out()
    console.print(table)
    console.print(_models_table(found["models"]))
    for note in found["notes"]:
        console.print(f"[yellow]{escape(note)}[/]")
    return 0


def pause(settings: Settings, paused: bool) -> int:
    """Pause or resume the running appliance. Exit code 0 when it is done, 1 when none runs or it refuses."""
    found = _ask(settings, "/api/pause" if paused else "/api/resume", "POST")
    if found is None:
        return _not_running(settings)
    if found.get("paused") is not paused:
        print(f"appliance: {found['error']['message']}")  # noqa: T201
        return 1
    print("paused: requests wait; go on with: appliance resume" if paused else "requests go on")  # noqa: T201
    return 0


def diagnose(settings: Settings, fault: str | None, out: Path | None) -> int:
    """Save a diagnostic file; exit code 1 if it cannot be written. ``fault``: why the settings could not be read."""
    from appliance import diagnose as diagnosis

    found = _ask(settings, "/api/status")
    print("looking at this machine, up to 100 s …", flush=True)  # noqa: T201
    try:
        file = diagnosis.save(settings, found, out, fault)
    except OSError as error:
        print(f"appliance: the diagnostic file cannot be saved: {error.strerror or error}")  # noqa: T201
        return 1
    print(f"saved: {file}")  # noqa: T201
    return 0


def autostart_set(on: bool) -> int:
    """Switch start at login on or off for this user. Exit code 1 if the system refuses."""
    try:
        autostart.enable() if on else autostart.disable()
    except autostart.AutostartError as error:
        print(f"appliance: {error}")  # noqa: T201
        return 1
    return 0 if autostart_status() == int(not on) else 1


def autostart_status() -> int:
    """Exit code 0 when the next login starts it, 1 when not."""
    try:
        held, own = autostart.entry(), autostart.own_line()
    except autostart.AutostartError as error:
        print(f"appliance: {error}")  # noqa: T201
        return 1
    print("start at login: off" if held is None else f"start at login: on ({held})")  # noqa: T201
    if held is not None and held != own:
        print("that is another copy; this one is set with: appliance autostart on")  # noqa: T201
    return int(held is None)


def models_list(settings: Settings, as_json: bool) -> int:
    """The running appliance's view, else the folders'."""
    found = _ask(settings, "/api/status")
    if found is not None:
        if as_json:
            print(json.dumps(found["models"], indent=2))  # noqa: T201
        else:
            _out().print(_models_table(found["models"]))
        return 0
    folders = scan(models_roots(settings))
    if as_json:
        rows = [
            {"name": f.name, "versions": [v.version for v in f.files], "error": f.error} for f in folders.values()
        ]
        print(json.dumps(rows, indent=2))  # noqa: T201
        return 0
    table = Table("model", "versions", "where", "error")
    for folder in sorted(folders.values(), key=lambda f: f.name):
        versions = ", ".join(v.version for v in folder.files)
        table.add_row(folder.name, versions, "embedded" if folder.read_only else "own", escape(folder.error or ""))
    _out().print(table)
    print("the appliance is not running: nothing is loaded")  # noqa: T201
    return 0


def models_show(settings: Settings, name: str, as_json: bool) -> int:
    """Metadata from the running appliance, else a check."""
    found = _ask(settings, f"/v2/models/{name}")
    if found is None:
        return models_check(settings, [name], as_json)
    if as_json or "error" in found:
        print(json.dumps(found, indent=2))  # noqa: T201
        return 1 if "error" in found else 0
    table = Table(show_header=False, box=None)
    table.add_row("model", found["name"])
    table.add_row("versions", ", ".join(found["versions"]))
    table.add_row("platform", found["platform"])
    for kind in ("inputs", "outputs"):
        for tensor in found[kind]:
            table.add_row(kind[:-1], f"{tensor['name']}  {tensor['datatype']}{tensor['shape']}".replace("[", "\\["))
    for key, value in found["parameters"].items():
        if value not in (None, [], "", 0):
            table.add_row(key, escape(str(value)))
    _out().print(table)
    return 0


def models_add(settings: Settings, source: Path, name: str | None) -> int:
    """Copy, whole or not at all."""
    try:
        added = add(settings.models_folder(), source, name)
    except ApplianceError as error:
        return _refused(error)
    print(f"added: {added}. See what it says: appliance models check {added}")  # noqa: T201
    return 0


def models_remove(settings: Settings, name: str) -> int:
    """Only from the user's own folder."""
    try:
        remove(settings.models_folder(), name)
    except ApplianceError as error:
        return _refused(error)
    print(f"removed: {name}")  # noqa: T201
    return 0


def models_check(settings: Settings, what: list[str], as_json: bool) -> int:
    """Exit code 0 when all are fine, 1 when one is not."""
    folders, unknown = _chosen(settings, what)
    console = Console(stderr=True)

    async def run() -> list[Checked]:
        found: list[Checked] = []
        with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as progress:
            task = progress.add_task(f"checking {len(folders)} models")
            async for verdict in check(settings, folders):
                found.append(verdict)
                progress.update(task, description=f"checked {verdict.name}")
        return found

    verdicts = asyncio.run(run())
    if as_json:
        rows = [{"name": v.name, "version": v.version, "error": v.error, "notes": v.notes} for v in verdicts]
        rows += [{"name": name, "version": "", "error": "not found", "notes": ()} for name in unknown]
        print(json.dumps(rows, indent=2))  # noqa: T201
    else:
        table = Table("model", "version", "verdict")
        for verdict in verdicts:
            table.add_row(verdict.name, verdict.version, _words(verdict))
        for name in unknown:
            table.add_row(escape(name), "", "[red]there is no such model, file or folder[/]")
        _out().print(table)
    return 1 if unknown or any(v.error for v in verdicts) else 0


def _words(verdict: Checked) -> str:
    if verdict.error:
        return f"[red]{escape(verdict.error)}[/]"
    spec = verdict.spec
    lines = ["[green]fine[/]" + (f", {spec.device}, loads in {verdict.load_ms:.0f} ms" if spec else ", a pipeline")]
    if spec:
        lines.append(f"in: {', '.join(f'{t.name} {t.describe()}' for t in spec.inputs)}".replace("[", "\\["))
        lines.append(f"out: {', '.join(f'{t.name} {t.describe()}' for t in spec.outputs)}".replace("[", "\\["))
        merged = f"up to {spec.max_batch}" if spec.max_batch else "no"
        if 0 < spec.good_batch < spec.max_batch:
            merged += f", {spec.good_batch} here: with more, each item took longer"
        lines.append(f"requests merged: {merged}")
        if spec.degraded:
            lines.append(f"[yellow]{escape(spec.degraded)}[/]")
    return "\n".join([*lines, *(f"[yellow]{escape(note)}[/]" for note in verdict.notes)])


def _chosen(settings: Settings, what: list[str]) -> tuple[list[ModelFolder], list[str]]:
    known = scan(models_roots(settings))
    if not what:
        return sorted(known.values(), key=lambda f: f.name), []
    chosen, unknown = [], []
    for name in what:
        path = Path(name)
        if name in known:
            chosen.append(known[name])
        elif path.exists():
            beside = scan([Root(path.absolute().parent)])
            folder = beside.get(path.name) or beside.get(path.stem)
            chosen.append(folder) if folder else unknown.append(name)
        else:
            unknown.append(name)
    return chosen, unknown


def _not_running(settings: Settings) -> int:
    print(f"the appliance is not running on port {settings.port}; start it with: appliance")  # noqa: T201
    return 1


def _ask(settings: Settings, path: str, method: str = "GET") -> Any:
    """The running appliance's JSON, or None if none runs."""
    running = find_running(settings.state_folder(), settings.port)
    url = running.url if running else f"http://{settings.host}:{settings.port}"
    key = headers(running, settings.api_key)
    try:
        return httpx.request(method, f"{url}{path}", headers=key, timeout=10, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return None


def _models_table(models: list[dict[str, Any]]) -> Group:
    """A line a version, and below, in full width, what is wrong."""
    faults: list[str] = []
    table = Table(box=None, pad_edge=False)
    for column in ("model", "version", "state", "device", "task", "queue", "requests"):
        table.add_column(column, no_wrap=True)
    for model in models:
        for version in model["versions"] or [{}]:
            state = version.get("state", "UNAVAILABLE")
            table.add_row(
                model["name"],
                version.get("version", ""),
                f"[{_STATE_STYLE[state]}]{state}[/]",
                version.get("device") or "",
                model["task"] or "",
                str(version.get("waiting", "")),
                str(version.get("requests", "")),
            )
            why = version.get("error") or model["error"] or version.get("device_reason")
            if why:
                faults.append(f"[red]{model['name']}[/]: {escape(why)}")
    return Group(table, *(f"\n{fault}" for fault in faults))


def _memory(reading: dict[str, Any]) -> str:
    used, total = reading["memory_used"], reading["memory_total"]
    if used is None or total is None:
        return "memory unknown"
    return f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB used"


def _refused(error: ApplianceError) -> int:
    print(f"appliance: {error.message}")  # noqa: T201
    return 1
