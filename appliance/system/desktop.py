"""The person's desktop: is there one, which kinds of tray icon it can show, open something, the clipboard."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from appliance.system.long_paths import shown

if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _CF_UNICODETEXT = 13  # winuser.h
    _GMEM_MOVEABLE = 2  # winbase.h

_CLIPBOARDS = (  # what takes text on its standard input, and the variable without which it cannot work
    ("WAYLAND_DISPLAY", ["wl-copy"]),
    ("DISPLAY", ["xclip", "-selection", "clipboard"]),
    ("DISPLAY", ["xsel", "--clipboard", "--input"]),
)
_TOOL_PATIENCE = 5.0  # seconds; these programs hand the text over at once or never


class DesktopError(RuntimeError):
    """The desktop could not do it; the message says why in one line."""


def no_session(env: Mapping[str, str] = os.environ) -> str | None:
    """Why nothing can be shown to a person here, in one line, or None if there is a graphical session."""
    if sys.platform == "win32":
        session = wintypes.DWORD()
        ctypes.WinDLL("kernel32").ProcessIdToSessionId(os.getpid(), ctypes.byref(session))
        return "the program runs as a service, which has no desktop" if session.value == 0 else None
    if sys.platform == "darwin" or env.get("DISPLAY") or env.get("WAYLAND_DISPLAY"):
        return None
    return "there is no graphical session (neither DISPLAY nor WAYLAND_DISPLAY is set)"


def tray_backends(env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The backends of pystray worth trying here, the best first; empty if none can work.

    The first two need PyGObject and a session bus and show a menu; "xorg" needs neither and has no menu.
    ``PYSTRAY_BACKEND``, which pystray itself obeys, leaves only the one it names.
    """
    wanted = env.get("PYSTRAY_BACKEND")
    if wanted:
        return (wanted,)
    if sys.platform == "win32":
        return ("win32",)
    if sys.platform == "darwin":
        return ("darwin",)
    with_menu = ("appindicator", "gtk") if has_gobject() and has_session_bus(env) else ()
    return (*with_menu, "xorg") if env.get("DISPLAY") else with_menu[:1]


def has_gobject() -> bool:
    """Whether PyGObject can be imported; it is looked for, not imported."""
    found = importlib.util.find_spec("gi")
    return found is not None and found.origin is not None  # a stray folder of that name has no origin


def has_session_bus(env: Mapping[str, str] = os.environ) -> bool:
    """Whether a D-Bus session bus is there already. Asking GIO instead would start one that nobody ends."""
    if env.get("DBUS_SESSION_BUS_ADDRESS"):
        return True
    runtime = env.get("XDG_RUNTIME_DIR")
    return bool(runtime) and Path(runtime or "", "bus").exists()


def open_url(url: str) -> None:
    """Open `url` in the person's browser. DesktopError if there is no program for it."""
    if sys.platform == "win32":
        try:
            os.startfile(url)  # noqa: S606 - the address is our own
        except OSError as error:
            raise DesktopError(f"{url} cannot be opened: {error}") from error
    else:
        _start_opener(url)


def open_folder(folder: Path) -> None:
    """Show `folder` in the file manager; it is made if it does not exist. DesktopError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":
            os.startfile(shown(folder))  # noqa: S606 - the folder is our own
        else:
            _start_opener(str(folder))
    except OSError as error:
        raise DesktopError(f"{folder} cannot be opened: {error}") from error


def _start_opener(target: str) -> None:
    opener = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    if opener is None:
        raise DesktopError(f"xdg-open is not installed, so {target} cannot be opened")
    subprocess.Popen(  # not waited for: some openers stay until the person closes the browser
        [opener, target],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def copy_text(text: str, env: Mapping[str, str] = os.environ) -> None:
    """Put `text` on the clipboard. DesktopError, in words for a person, if there is no way to."""
    if sys.platform == "win32":
        _copy_windows(text)
        return
    commands = [["pbcopy"]] if sys.platform == "darwin" else [c for name, c in _CLIPBOARDS if env.get(name)]
    for command in commands:
        program = shutil.which(command[0])
        if program is not None and _feed([program, *command[1:]], text):
            return
    raise DesktopError("nothing here can reach the clipboard (install xclip or wl-clipboard)")


def _feed(command: list[str], text: str) -> bool:
    try:
        # no pipes for the outputs: these programs leave a child behind that serves the clipboard
        done = subprocess.run(
            command,
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TOOL_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


if sys.platform == "win32":

    def _copy_windows(text: str) -> None:
        """The system owns the memory once SetClipboardData took it; until then it is ours to free."""
        user = ctypes.WinDLL("user32", use_last_error=True)
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.GlobalAlloc.restype = wintypes.HGLOBAL
        kernel.GlobalAlloc.argtypes = (wintypes.UINT, ctypes.c_size_t)
        kernel.GlobalLock.restype = wintypes.LPVOID
        kernel.GlobalLock.argtypes = (wintypes.HGLOBAL,)
        kernel.GlobalUnlock.argtypes = (wintypes.HGLOBAL,)
        kernel.GlobalFree.argtypes = (wintypes.HGLOBAL,)
        user.OpenClipboard.argtypes = (wintypes.HWND,)
        user.SetClipboardData.restype = wintypes.HANDLE
        user.SetClipboardData.argtypes = (wintypes.UINT, wintypes.HANDLE)
        data = ctypes.create_unicode_buffer(text)
        size = ctypes.sizeof(data)
        if not user.OpenClipboard(None):
            raise DesktopError("another program holds the clipboard")
        try:
            user.EmptyClipboard()
            block = kernel.GlobalAlloc(_GMEM_MOVEABLE, size)
            place = kernel.GlobalLock(block) if block else None
            if not place:
                raise DesktopError("there is no memory for the clipboard")
            ctypes.memmove(place, data, size)
            kernel.GlobalUnlock(block)
            if not user.SetClipboardData(_CF_UNICODETEXT, block):
                kernel.GlobalFree(block)
                raise DesktopError("the clipboard did not take the text")
        finally:
            user.CloseClipboard()
