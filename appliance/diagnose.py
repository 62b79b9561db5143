"""One file for whoever helps: what runs, how the machine is, the settings and the end of the logs. No input data, no
keys, no name of the user's folder; a few MiB at most."""

import contextlib
import importlib.metadata
import io
import os
import platform
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from appliance import __version__
from appliance.doctor.examine import examine
from appliance.doctor.report import Report
from appliance.settings import Settings, layers, shown
from appliance.system import paths
from appliance.system.instance import find_all

_LOG_BYTES = 1 << 20  # of one log, its end
_LOGS_BYTES = 8 << 20  # of all, the newest first
_SECRETS = (
    (re.compile(r"\bia-[A-Za-z0-9_-]{16,}"), "(key)"),
    (re.compile(r"(?i)\b(bearer\s+|x-api-key\W{1,4})[^\s\"',]+"), r"\1(key)"),
    (re.compile(r"(\b\w+://[^/\s:@\"]*:)[^/\s@\"]+@"), r"\1(password)@"),
)
_README = """Made by the Inference Appliance {version} at {when}, for whoever helps.

status.json    what the running appliance said of itself, or that none ran
doctor.json    what was found on this machine: driver, libraries, memory, port, folders
settings.json  each setting with where it comes from; secrets are not shown
versions.json  the program, Python, the system, the packages
logs/          the end of the newest logs: request ids, model names, times, errors; never what was in a request

Keys are taken out, and the user's own folder is written as ~.
"""


def save(
    settings: Settings,
    status: Mapping[str, Any] | None,
    out: Path | None = None,
    fault: str | None = None,
    look: Callable[[Settings, str | None], Report] = examine,
) -> Path:
    """Make the file, within about 100 seconds, and give its place. Raises OSError.

    ``status``: what the running appliance says; ``out``: the file, or a folder for it, else the first that can be
    written of downloads, desktop and state folder; ``fault``: why the settings could not be read.
    """
    now = datetime.now().astimezone()
    parts = dict(_parts(settings, status, fault, look, now.isoformat(timespec="seconds")))
    hidden = [s for s in (settings.api_key, *(r.key for r in find_all(settings.state_folder()))) if s]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in parts.items():
            file.writestr(name, scrubbed(text, hidden, Path.home()))
    return _write(packed.getvalue(), f"appliance-diagnosis-{now:%Y%m%d-%H%M%S}.zip", out, settings.state_folder())


def scrubbed(text: str, secrets: Iterable[str], home: Path) -> str:
    """Without keys and passwords, and with ``~`` for the user's folder, also where it stands in JSON."""
    for secret in secrets:
        text = text.replace(secret, "(key)")
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    if home != Path(home.anchor):
        plain = str(home)
        for folder in {plain, plain.replace("\\", "\\\\"), home.as_posix()}:
            text = re.sub(rf"{re.escape(folder)}(?![\w.-])", "~", text, flags=re.IGNORECASE)
    return text


def _parts(
    settings: Settings,
    status: Mapping[str, Any] | None,
    fault: str | None,
    look: Callable[[Settings, str | None], Report],
    when: str,
) -> Iterator[tuple[str, str]]:
    """(name, text) of each. What cannot be had is told in its place."""
    yield "README.txt", _README.format(version=__version__, when=when)
    yield "status.json", _json(status if status is not None else {"running": False})
    yield "doctor.json", _json(look(settings, fault))
    yield "settings.json", _json({"fault": fault, "settings": _settings(settings)})
    yield "versions.json", _json(_versions())
    yield from _logs(settings.state_folder() / "logs")


def _settings(settings: Settings) -> list[dict[str, Any]]:
    sources = layers()
    found = []
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        other = "built-in" if value == field.get_default(call_default_factory=True) else "flag"
        source = next((str(layer.kind) for layer in sources if name in layer.values), other)
        found.append({"name": name, "value": shown(name, value), "from": source})
    return found


def _versions() -> dict[str, Any]:
    return {
        "appliance": __version__,
        "frozen": paths.frozen(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": dict(sorted(_packages())),
    }


def _packages() -> Iterator[tuple[str, str]]:
    for found in importlib.metadata.distributions():
        with contextlib.suppress(TypeError, KeyError):  # one that was installed by half has no metadata
            yield found.name, found.version


def _logs(folder: Path) -> Iterator[tuple[str, str]]:
    """The ends of the newest ones, as long as there is room."""
    room = _LOGS_BYTES
    for _, file in sorted(((_changed(f), f) for f in folder.glob("*.log*")), reverse=True):
        try:
            end = _end(file, min(room, _LOG_BYTES))
        except OSError as error:
            yield f"logs/{file.name}", f"it cannot be read: {error.strerror}\n"
            continue
        room -= len(end)
        if end:
            yield f"logs/{file.name}", end.decode("utf-8", "replace")


def _changed(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _end(file: Path, most: int) -> bytes:
    """Whole lines, at most so many bytes."""
    with file.open("rb") as stream:
        size = stream.seek(0, io.SEEK_END)
        stream.seek(max(0, size - most))
        end = stream.read(most)
    return end if size <= most else end.partition(b"\n")[2]


def _write(content: bytes, name: str, out: Path | None, state: Path) -> Path:
    if out is not None:
        file = out / name if out.is_dir() else out
        return _put(file.absolute(), content)
    for folder in (platformdirs.user_downloads_path(), platformdirs.user_desktop_path()):
        try:
            if folder.is_dir():
                return _put(folder / name, content)
        except OSError:  # Windows keeps programs out of some people's folders
            continue
    state.mkdir(parents=True, exist_ok=True)
    return _put(state / name, content)


def _put(file: Path, content: bytes) -> Path:
    """All of it or nothing."""
    draft = file.with_name(file.name + ".part")
    try:
        draft.write_bytes(content)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return file


def _json(what: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(what), indent=2).decode() + "\n"
