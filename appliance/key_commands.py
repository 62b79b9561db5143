"""What ``appliance key …`` does: keys that open the API, for other programs and machines."""

import datetime
import json

import httpx
from rich.console import Console
from rich.table import Table

from appliance.keys import KeyFile, KeysError, Scope, headers
from appliance.settings import Settings
from appliance.system.instance import find_all

_MAY = {"infer": "infer, and read the state", "admin": "everything"}
_ASK_S = 10.0


def create(settings: Settings, scope: Scope, name: str | None) -> int:
    """Exit code 0, and the key alone on standard output; 1 if it cannot be kept."""
    try:
        made, secret = KeyFile(settings.state_folder()).create(scope, name)
    except KeysError as error:
        return _refused(error)
    print(secret)  # noqa: T201
    said = Console(stderr=True, soft_wrap=True, highlight=False)
    said.print(f"This is key '{made.name}' (scope {scope}: {_MAY[scope]}). It is kept nowhere: copy it now.")
    said.print("From now on every call but health needs a key; programs of this user find one in the port file.")
    _tell(settings, said)
    return 0


def list_all(settings: Settings, as_json: bool) -> int:
    """Exit code 1 if they cannot be read."""
    try:
        keys = KeyFile(settings.state_folder()).read()
    except KeysError as error:
        return _refused(error)
    made = [datetime.datetime.fromtimestamp(key.created, datetime.UTC).isoformat(timespec="seconds") for key in keys]
    if as_json:
        rows = [{"name": key.name, "scope": key.scope, "created": at} for key, at in zip(keys, made, strict=True)]
        print(json.dumps(rows, indent=2))  # noqa: T201
        return 0
    table = Table("key", "scope", "may", "made")
    for key, at in zip(keys, made, strict=True):
        table.add_row(key.name, key.scope, _MAY[key.scope], at)
    if settings.api_key:
        table.add_row("(setting api_key)", "admin", _MAY["admin"], "")
    console = Console()
    if keys or settings.api_key:
        console.print(table)
    else:
        print("there is no key: every program of this machine may do everything")  # noqa: T201
    return 0


def remove(settings: Settings, name: str) -> int:
    """Exit code 1 if there is none of that name."""
    try:
        KeyFile(settings.state_folder()).remove(name)
    except KeysError as error:
        return _refused(error)
    print(f"removed: {name}")  # noqa: T201
    _tell(settings, Console(stderr=True, soft_wrap=True, highlight=False))
    return 0


def _tell(settings: Settings, said: Console) -> None:
    """All appliances of this state folder read their keys again now; they would by themselves a little later."""
    for running in find_all(settings.state_folder()):
        try:
            answer = httpx.post(
                f"{running.url}/api/settings/reload",
                headers=headers(running, settings.api_key),
                timeout=_ASK_S,
                trust_env=False,
            )
            taken = answer.status_code == 200 and not answer.json()["faults"]
        except (httpx.HTTPError, ValueError, KeyError):
            taken = False
        said.print(f"{running.url} has taken it up." if taken else f"{running.url} has not taken it up: restart it.")


def _refused(error: KeysError) -> int:
    print(f"appliance: {error}")  # noqa: T201
    return 1
