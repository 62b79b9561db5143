"""What ``appliance config …`` does: which settings count, where they come from, and what is wrong with them."""

import json
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from appliance.setting_layers import Fault, Layer, faults_of, merged, unknown_variables
from appliance.settings import Settings, layers, live, shown
from appliance.system import paths

_DEFAULT = "built-in"


def show(flags: dict[str, Any], as_json: bool) -> int:
    """Each setting, its value and where it comes from. Exit code 1 where the settings are faulty."""
    found = layers(**flags)
    faults = faults_of(Settings, found, merged(found))
    if faults:
        return _told(faults, [])
    settings, rows = Settings(**merged(found)), []
    for name in Settings.model_fields:
        layer = next((layer for layer in found if name in layer.values), None)
        value = shown(name, getattr(settings, name))
        rows.append({"name": name, "value": value, "from": _where(layer, name), "live": live(name)})
    if as_json:
        print(json.dumps(rows, indent=2))  # noqa: T201
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("setting", "value", "from", "a change counts"):
        table.add_column(column, no_wrap=column != "value", overflow="fold")
    for row in rows:
        own = row["from"] != _DEFAULT
        value = "none" if row["value"] in (None, []) else str(row["value"])
        values = [str(row["name"]), value, str(row["from"]), "at once" if row["live"] else "after a restart"]
        table.add_row(*(f"[bold]{escape(text)}[/]" if own else escape(text) for text in values))
    Console().print(table)
    return 0


def check(flags: dict[str, Any]) -> int:
    """Every fault of every source, also of those that a stronger one hides; exit code 1 if there is one."""
    faults: list[Fault] = []
    for layer in layers(**flags):
        faults += faults_of(Settings, [layer], layer.values)
    return _told(faults, unknown_variables(Settings))


def path(as_json: bool) -> int:
    """Where the settings files are, whether they are there or not."""
    user, system = paths.settings_files()
    files = {"user": user, "system": system}
    if as_json:
        print(json.dumps({name: {"path": str(f), "exists": f.exists()} for name, f in files.items()}, indent=2))  # noqa: T201
        return 0
    for name, file in files.items():
        print(f"{name:8}{file}{'' if file.exists() else '  (not there)'}")  # noqa: T201
    return 0


def _where(layer: Layer | None, name: str) -> str:
    if layer is None:
        return _DEFAULT
    return layer.kind if layer.file is None else f"{layer.kind}, line {layer.lines[name]}"


def _told(faults: list[Fault], remarks: list[str]) -> int:
    for fault in faults:
        print(f"fault: {fault}{'' if fault.file else f' ({fault.kind})'}")  # noqa: T201
    for remark in remarks:
        print(f"remark: {remark}")  # noqa: T201
    if not faults:
        print("the settings are well")  # noqa: T201
    return 1 if faults else 0
