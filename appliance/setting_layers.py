"""Where settings come from: one layer a source, the strongest first, each with what is wrong in it and where."""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource

from appliance.toml_lines import key_lines

Kind = Literal["flag", "environment", "user file", "system file"]

_PREFIX = "APPLIANCE_"
_OURS = ("APPLIANCE_CHILD_", "APPLIANCE_TEST_")  # told to engine processes, and to the tests


class Fault(NamedTuple):
    """``key`` is empty where a whole file is at fault; ``line`` is 0 where there is none."""

    key: str
    words: str
    kind: Kind
    file: Path | None = None
    line: int = 0

    def __str__(self) -> str:
        return self._told(str(self.file))

    @property
    def public(self) -> str:
        """Without the file's path, for what leaves by HTTP."""
        return self._told(f"the {self.kind.partition(' ')[0]}'s settings.toml")

    def _told(self, file: str) -> str:
        where = f"{file}, line {self.line}" if self.line else file
        parts = [where] if self.file is not None else []
        return ": ".join([*parts, *([self.key] if self.key else []), self.words])


class Layer(NamedTuple):
    """What one source sets. ``lines``: where in its file; ``broken``: what could not be read at all."""

    kind: Kind
    file: Path | None
    values: dict[str, Any]
    lines: dict[str, int]
    broken: tuple[Fault, ...] = ()


def read_layers(kind: type[BaseSettings], files: Iterable[Path], flags: Mapping[str, Any]) -> list[Layer]:
    """The strongest first: flags (None: not given), environment, the user's file, the system's."""
    given = {name: value for name, value in flags.items() if value is not None}
    layers = [Layer("flag", None, given, {}), _environment(kind)]
    kinds: tuple[Kind, ...] = ("user file", "system file")
    return layers + [_file(source, file) for source, file in zip(kinds, files, strict=True)]


def merged(layers: Iterable[Layer]) -> dict[str, Any]:
    """Each setting from the strongest layer that sets it."""
    found: dict[str, Any] = {}
    for layer in layers:
        found = {**layer.values, **found}
    return found


def faults_of(kind: type[BaseSettings], layers: list[Layer], values: Mapping[str, Any]) -> list[Fault]:
    """What is wrong with ``values``, which come from ``layers``: each in the strongest layer that has its key."""
    found = [fault for layer in layers for fault in layer.broken]
    try:
        kind(**values)
    except ValidationError as error:
        for one in error.errors():
            key = str(one["loc"][0]) if one["loc"] else ""
            layer = next((layer for layer in layers if key in layer.values), layers[0])
            words = one["msg"].removeprefix("Value error, ")
            if one["type"] == "extra_forbidden":
                words = f"there is no such setting{_meant(kind, key)}"
            elif len(one["loc"]) > 1:
                words = f"entry {'.'.join(str(part) for part in one['loc'][1:])}: {words}"
            found.append(Fault(key, words, layer.kind, layer.file, layer.lines.get(key, 0)))
    return sorted(found, key=lambda fault: (str(fault.file or ""), fault.line))


def unknown_variables(kind: type[BaseSettings], environment: Iterable[str] | None = None) -> list[str]:
    """A remark on each variable ``APPLIANCE_…`` that is none of ours: another program's, or a slip."""
    known = {_PREFIX + name.upper() for name in kind.model_fields}
    names = sorted(os.environ if environment is None else environment)
    return [
        f"{name} is ignored: there is no such setting{_meant(kind, name[len(_PREFIX) :], _PREFIX)}"
        for name in names
        if name.upper().startswith(_PREFIX) and name.upper() not in known and not name.upper().startswith(_OURS)
    ]


def _meant(kind: type[BaseSettings], key: str, prefix: str = "") -> str:
    near = difflib.get_close_matches(key.lower().replace("-", "_"), list(kind.model_fields), 1)
    name = (prefix + near[0].upper() if prefix else near[0]) if near else ""
    return f"; did you mean {name}?" if near else ""


def _environment(kind: type[BaseSettings]) -> Layer:
    source, values, broken = EnvSettingsSource(kind), {}, []
    for name, field in kind.model_fields.items():
        value, _, is_complex = source.get_field_value(field, name)
        if value is None:
            continue
        try:
            values[name] = source.prepare_field_value(name, field, value, is_complex)
        except ValueError:
            broken.append(Fault(name, 'must be JSON, such as ["a", "b"]', "environment"))
    return Layer("environment", None, values, {}, tuple(broken))


def _file(kind: Kind, file: Path) -> Layer:
    """A file that is not there sets nothing."""
    empty = Layer(kind, file, {}, {})
    try:
        text = file.read_text("utf-8-sig")  # some editors begin with a mark
        values = tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return empty
    except OSError as error:
        return empty._replace(broken=(Fault("", error.strerror or "cannot be read", kind, file),))
    except UnicodeDecodeError:
        return empty._replace(broken=(Fault("", "is not text in UTF-8", kind, file),))
    except tomllib.TOMLDecodeError as error:
        return empty._replace(broken=(Fault("", str(error), kind, file),))
    lines = {path[0]: line for path, line in reversed(key_lines(text).items()) if path}
    return Layer(kind, file, values, lines)
