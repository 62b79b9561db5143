"""A model's ``model.toml`` with some keys changed, and all else as the person wrote it."""

import codecs
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from appliance.bench.faults import BenchError
from appliance.errors import ModelLoadError
from appliance.models.folder import TOML, ModelFolder
from appliance.models.toml import read_config

Key = tuple[str, ...]
"""``("batching", "max")``."""


def edited(text: str, changes: Mapping[Key, Any]) -> str:
    """``text`` with these keys set, or removed where the value is None; comments and order stay.

    Line ends are those of the text. Raises BenchError where the outcome would not say that.
    """
    crlf = "\r\n" in text
    try:
        document = tomlkit.parse(text.replace("\r\n", "\n"))
        for key, value in changes.items():
            _change(document, key, value)
        found = tomlkit.dumps(document)
        table = tomlkit.parse(found).unwrap()
        read_config(found)
    except (TOMLKitError, ModelLoadError) as error:
        raise BenchError(f"{TOML} cannot be changed: {error}") from None
    wrong = [".".join(key) for key, value in changes.items() if _get(table, key) != value]
    if wrong:
        raise BenchError(f"{TOML} cannot be changed: {', '.join(wrong)} would not have its new value")
    return found.replace("\n", "\r\n") if crlf else found


def difference(before: str, after: str, name: str) -> str:
    """The unified diff of the two; empty where they are the same."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, f"{name} (new)", lineterm="")
    return "\n".join(lines)


def home(model: ModelFolder) -> Path:
    """The file that holds this model's settings, whether it is there or not. BenchError where none may."""
    if model.read_only:
        raise BenchError(
            f"'{model.name}' comes with the program: copy its folder into the models folder to change its settings"
        )
    if not model.path.is_dir():
        return model.path.with_suffix(".toml")
    if (model.path / "config.pbtxt").exists():
        raise BenchError(f"'{model.name}' has a config.pbtxt, beside which there may be no {TOML}")
    return model.path / TOML


def read(file: Path) -> str:
    """Its text, empty where it is missing. BenchError."""
    try:
        return file.read_bytes().decode("utf-8-sig") if file.exists() else ""
    except (OSError, ValueError) as error:
        raise BenchError(f"{file.name}: cannot be read: {error}") from None


def write(file: Path, text: str) -> None:
    """Whole or not at all; a byte order mark stays. BenchError."""
    # Hidden, so that no scan takes it for something of the model's.
    draft = file.with_name(f".{file.name}.new")
    try:
        mark = file.exists() and file.read_bytes().startswith(codecs.BOM_UTF8)
        draft.write_bytes((codecs.BOM_UTF8 if mark else b"") + text.encode())
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise BenchError(f"{file.name}: cannot be written: {error.strerror}") from None


def _change(document: tomlkit.TOMLDocument, key: Key, value: Any) -> None:
    table: Any = document
    for part in key[:-1]:
        if part not in table:
            if value is None:
                return
            table[part] = tomlkit.table()
        table = table[part]
    if value is not None:
        table[key[-1]] = value
    elif key[-1] in table:
        del table[key[-1]]


def _get(table: Mapping[str, Any], key: Key) -> Any:
    found: Any = table
    for part in key:
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found
