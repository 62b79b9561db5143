"""Start at login, for this user alone: a value under Windows' Run key, a desktop entry on Linux (XDG autostart).

What is started is ``appliance run`` of this copy of the program, without a console. A person may also switch
the entry off with the system's own tools (Task Manager, a desktop's settings): that counts as off here.
"""

import configparser
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import platformdirs

from appliance.system import paths

if sys.platform == "win32":
    import winreg

NAME = "Inference Appliance"

_RUN = r"Software\Microsoft\Windows\CurrentVersion\Run"
_APPROVED = r"Software\Microsoft\Windows\CurrentVersion\Explorer\StartupApproved\Run"
_LONGEST = 260  # characters that Windows reads of a command under the Run key
_CONSOLE = "-cli"  # appliance-cli.exe is the console's program, appliance.exe beside it the windowed one
_SECTION = "Desktop Entry"


class AutostartError(RuntimeError):
    """Start at login cannot be told or changed; the message says why in one line."""


class Place(Protocol):
    """Where a system keeps one entry. `read` and `write` take and give the command as the system writes it."""

    def line(self, command: Sequence[str]) -> str:
        """`command` in the system's own writing. AutostartError if it cannot be written there."""
        ...

    def read(self) -> str | None:
        """What will be started at the next login; None: there is no entry, or it is switched off."""
        ...

    def write(self, line: str) -> None:
        """Make the entry, or replace it, switched on. AutostartError if the system refuses."""
        ...

    def remove(self) -> None:
        """Remove the entry, if there is one. AutostartError if the system refuses."""
        ...


def enabled(at: Place | None = None) -> bool:
    """Whether this user's next login starts the appliance (this copy or another). AutostartError."""
    return (at or place()).read() is not None


def entry(at: Place | None = None) -> str | None:
    """The command of the next login, as the system has it, or None. AutostartError."""
    return (at or place()).read()


def own_line(at: Place | None = None) -> str:
    """What `enable` writes: the command of this copy of the program. AutostartError."""
    return (at or place()).line(program())


def enable(at: Place | None = None) -> None:
    """Start this copy at login from now on; an entry of another copy is replaced. AutostartError."""
    at = at or place()
    at.write(at.line(program()))


def disable(at: Place | None = None) -> None:
    """Do not start at login; nothing happens where it was off. AutostartError."""
    (at or place()).remove()


def program() -> list[str]:
    """The command to start at login: of two frozen programs the windowed one, whichever this process is."""
    first, *rest = paths.program_command()
    return [str(windowed(Path(first))), *rest, "run"]


def windowed(executable: Path) -> Path:
    """The program beside `executable` that opens no console, if there is one, else `executable` itself."""
    stem = executable.stem
    beside = executable.with_name(
        f"pythonw{executable.suffix}" if stem == "python" else f"{stem.removesuffix(_CONSOLE)}{executable.suffix}"
    )
    return beside if beside.is_file() else executable


def place(name: str = NAME) -> Place:
    """This system's place for the entry `name`. AutostartError where there is none."""
    if sys.platform == "win32":
        return RunKey(name, UserRegistry())
    if sys.platform == "darwin":
        raise AutostartError("start at login is not supported on this system")
    return DesktopEntry(name, platformdirs.user_config_path("autostart"))


class DesktopEntry:
    """A file of the XDG autostart specification in `folder`."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self.file = folder / f"{name.lower().replace(' ', '-')}.desktop"

    def line(self, command: Sequence[str]) -> str:
        return " ".join(_quoted(part) for part in command)

    def read(self) -> str | None:
        parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",), strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys are case-sensitive there
        try:
            parser.read_string(self.file.read_text("utf-8"))
            keys = parser[_SECTION]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise AutostartError(f"{self.file} cannot be read: {error.strerror}") from error
        except (configparser.Error, KeyError, UnicodeDecodeError):
            return None  # a desktop starts nothing from a file that it cannot read
        off = keys.get("Hidden") == "true" or keys.get("X-GNOME-Autostart-enabled") == "false"
        return None if off else keys.get("Exec")

    def write(self, line: str) -> None:
        text = "\n".join(
            (
                f"[{_SECTION}]",
                "Type=Application",
                f"Name={self._name}",
                "Comment=Local inference server",
                f"Exec={line}",
                "Terminal=false",
                "",
            )
        )
        draft = self.file.with_suffix(".new")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(text, "utf-8")
            draft.replace(self.file)
        except OSError as error:
            raise AutostartError(f"{self.file} cannot be written: {error.strerror}") from error

    def remove(self) -> None:
        try:
            self.file.unlink(missing_ok=True)
        except OSError as error:
            raise AutostartError(f"{self.file} cannot be removed: {error.strerror}") from error


def _quoted(part: str) -> str:
    """One argument of an Exec key: quoted for the command line, then escaped as every string of the file."""
    if "\n" in part:
        raise AutostartError("a command of more than one line cannot be started at login")
    for special in ("\\", '"', "`", "$"):
        part = part.replace(special, f"\\{special}")
    return '"' + part.replace("%", "%%").replace("\\", "\\\\") + '"'


class Registry(Protocol):
    """The user's part of the registry. Every method raises OSError where the system refuses."""

    def get(self, key: str, name: str) -> str | bytes | None:
        """A value; None if there is none."""
        ...

    def put(self, key: str, name: str, text: str) -> None:
        """Write a text value; the key is made if it does not exist."""
        ...

    def delete(self, key: str, name: str) -> None:
        """Remove a value, if there is one."""
        ...


class RunKey:
    """A value under the user's Run key, and Task Manager's mark beside it: an odd first byte means switched off."""

    def __init__(self, name: str, registry: Registry) -> None:
        self._name = name
        self._registry = registry

    def line(self, command: Sequence[str]) -> str:
        program, *rest = command
        line = f'"{program}" {subprocess.list2cmdline(rest)}'
        if len(line) > _LONGEST:
            raise AutostartError(
                f"the command has {len(line)} characters, Windows starts none of more than {_LONGEST} at login; "
                "install the program in a folder with a shorter path"
            )
        return line

    def read(self) -> str | None:
        try:
            line = self._registry.get(_RUN, self._name)
            mark = self._registry.get(_APPROVED, self._name)
        except OSError as error:
            raise AutostartError(f"the registry cannot be read: {error}") from error
        off = isinstance(mark, bytes) and bool(mark) and mark[0] % 2 == 1
        return line if isinstance(line, str) and not off else None

    def write(self, line: str) -> None:
        try:
            self._registry.put(_RUN, self._name, line)
            self._registry.delete(_APPROVED, self._name)
        except OSError as error:
            raise AutostartError(f"the registry cannot be written: {error}") from error

    def remove(self) -> None:
        try:
            self._registry.delete(_RUN, self._name)
            self._registry.delete(_APPROVED, self._name)
        except OSError as error:
            raise AutostartError(f"the registry cannot be written: {error}") from error


if sys.platform == "win32":

    class UserRegistry:
        """The real one: HKEY_CURRENT_USER."""

        def get(self, key: str, name: str) -> str | bytes | None:
            try:
                with winreg.OpenKey(winreg.HKEY_CURRENT_USER, key) as opened:
                    value, _ = winreg.QueryValueEx(opened, name)
            except FileNotFoundError:
                return None
            return value if isinstance(value, str | bytes) else None

        def put(self, key: str, name: str, text: str) -> None:
            with winreg.CreateKey(winreg.HKEY_CURRENT_USER, key) as opened:
                winreg.SetValueEx(opened, name, 0, winreg.REG_SZ, text)

        def delete(self, key: str, name: str) -> None:
            try:
                with winreg.OpenKey(winreg.HKEY_CURRENT_USER, key, 0, winreg.KEY_SET_VALUE) as opened:
                    winreg.DeleteValue(opened, name)
            except FileNotFoundError:
                return


class FakeRegistry:
    """For tests: `values` maps (key, name) to what stands there; `refuses` is raised by whatever writes."""

    def __init__(self, refuses: OSError | None = None) -> None:
        self.values: dict[tuple[str, str], str | bytes] = {}
        self.refuses = refuses

    def get(self, key: str, name: str) -> str | bytes | None:
        return self.values.get((key, name))

    def put(self, key: str, name: str, text: str) -> None:
        self._check()
        self.values[key, name] = text

    def delete(self, key: str, name: str) -> None:
        self._check()
        self.values.pop((key, name), None)

    def _check(self) -> None:
        if self.refuses is not None:
            raise self.refuses


class FakePlace:
    """For tests of what uses a `Place`: `held` is the entry; `refuses` is what `write` and `remove` raise."""

    def __init__(self, held: str | None = None, refuses: AutostartError | None = None) -> None:
        self.held = held
        self.refuses = refuses
        self.written: list[str] = []

    def line(self, command: Sequence[str]) -> str:
        return " ".join(command)

    def read(self) -> str | None:
        return self.held

    def write(self, line: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.written.append(line)
        self.held = line

    def remove(self) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.held = None
