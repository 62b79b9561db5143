"""What pystray's backends need beside its public interface, each with the reason.

pystray connects to the display when it is imported, so it is imported here, by the thread that then runs
the icon's loop, and nowhere else.
"""

import ctypes
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from appliance.system import desktop

_GTK = ("appindicator", "gtk")

# winuser.h
_WM_QUERYENDSESSION, _WM_ENDSESSION, _WM_RBUTTONUP = 0x0011, 0x0016, 0x0205
_LOGOFF_GRACE = 4.0  # seconds; Windows gives a program 5 before it is ended

_io_error_handlers: list[Any] = []  # what C calls later must not be collected


class NoTray(RuntimeError):
    """No tray icon can be shown; the message says why in one line."""


def load() -> tuple[Any, str]:
    """Import pystray with the first backend that works here; gives the module and the backend's name.

    Raises NoTray with the reason of every backend that was tried.
    """
    reasons = []
    for name in desktop.tray_backends():
        before = os.environ.get("PYSTRAY_BACKEND")
        os.environ["PYSTRAY_BACKEND"] = name
        try:
            if name in _GTK:
                os.environ.setdefault("GDK_GL", "disable")  # else GDK asks OpenGL, and so the GPU, for its visuals
                _prefer_x11()
            return importlib.import_module("pystray"), name
        except Exception as error:  # noqa: BLE001 - it connects to a display at import: anything may come
            sys.modules.pop("pystray", None)
            reasons.append(f"{name}: {' '.join(str(error).split()) or type(error).__name__}")
        finally:
            if before is None:
                os.environ.pop("PYSTRAY_BACKEND", None)
            else:
                os.environ["PYSTRAY_BACKEND"] = before
    raise NoTray(f"no tray icon can be shown here ({'; '.join(reasons) or 'PyGObject is not installed'})")


def _prefer_x11() -> None:
    """Let GTK use X where both are there: when a Wayland compositor goes, GDK ends the whole process."""
    gi = importlib.import_module("gi")
    gi.require_version("Gdk", "3.0")
    gdk = importlib.import_module("gi.repository.Gdk")
    gdk.set_allowed_backends("x11,*")


def has_menu(name: str) -> bool:
    """Whether the backend shows a menu; the plain X one has only a click."""
    return name != "xorg"


def label(text: str, name: str) -> str:
    """`text` as the backend wants it: Windows takes a lone ``&`` for the mark of a shortcut."""
    return text.replace("&", "&&") if name == "win32" else text


def picture(image: Any, name: str) -> Any:
    """The image as the backend wants it: the plain X one drops what makes it transparent, and shows rubbish."""
    if name != "xorg":
        return image
    pillow = importlib.import_module("PIL.Image")
    flat = pillow.new("RGB", image.size, "#303030")
    flat.paste(image, mask=image.getchannel("A"))
    return flat


def has_host(icon: Any, name: str) -> bool:
    """Whether a program that shows tray icons runs in this session; true where the system always has one."""
    if name == "xorg":
        return _x_host()
    if name in _GTK:
        return _bus_host() or (bool(os.environ.get("DISPLAY")) and _x_host())
    return True


def _x_host() -> bool:
    xdisplay = importlib.import_module("Xlib.display")
    display = xdisplay.Display()
    try:
        atom = display.intern_atom(f"_NET_SYSTEM_TRAY_S{display.get_default_screen()}")
        return bool(display.get_selection_owner(atom))
    finally:
        display.close()


def _bus_host() -> bool:
    repository = importlib.import_module("gi.repository")
    gio, glib = repository.Gio, repository.GLib
    bus = gio.bus_get_sync(gio.BusType.SESSION, None)
    answer = bus.call_sync(
        "org.freedesktop.DBus",
        "/org/freedesktop/DBus",
        "org.freedesktop.DBus",
        "NameHasOwner",
        glib.Variant("(s)", ("org.kde.StatusNotifierWatcher",)),
        None,
        gio.DBusCallFlags.NONE,
        2000,
        None,
    )
    return bool(answer.unpack()[0])


def prepare(icon: Any, name: str, lost: Callable[[str], None], quit_: Callable[[], None]) -> None:
    """Mend the new icon, before its loop runs.

    `lost` is called with a reason if the display goes away, `quit_` if the person logs off.
    """
    if name == "win32":
        _mend_windows(icon, quit_)
    elif name == "xorg":
        _mend_xorg(icon)
    elif name in _GTK and os.environ.get("DISPLAY"):
        _survive_display(lost)


def _mend_windows(icon: Any, quit_: Callable[[], None]) -> None:
    """Answer the log-off messages, and build the menu when it opens.

    pystray's window answers 0 to every message it does not know, and 0 to "may the session end" keeps
    Windows from shutting down. A menu rebuilt at any other time would be destroyed while it is open.
    """
    handlers = icon._message_handlers
    win32 = importlib.import_module("pystray._util.win32")
    clicked = handlers[win32.WM_NOTIFY]

    def on_click(wparam: int, lparam: int) -> Any:
        if lparam == _WM_RBUTTONUP:
            icon.update_menu()
        return clicked(wparam, lparam)

    def on_end(wparam: int, _lparam: int) -> int:
        if wparam:  # zero: another program refused, the session goes on
            quit_()
            time.sleep(_LOGOFF_GRACE)  # the process ends meanwhile; returning would end it at once
        return 0

    handlers[win32.WM_NOTIFY] = on_click
    handlers[_WM_QUERYENDSESSION] = lambda _wparam, _lparam: 1
    handlers[_WM_ENDSESSION] = on_end


def _mend_xorg(icon: Any) -> None:
    """Ask for clicks: pystray handles them, but does not select them for its window."""
    x = importlib.import_module("Xlib.X")
    icon._window.change_attributes(event_mask=x.ExposureMask | x.StructureNotifyMask | x.ButtonPressMask)


def _survive_display(lost: Callable[[str], None]) -> None:
    """Keep the program alive when the X server goes: GDK's own handler ends the process.

    Xlib allows no return from this handler, so the thread of the tray stays in it for good. It holds Xlib's
    lock there, for which the libraries' own clean-up would wait at the end of the process: give it back.
    """
    try:
        xlib = ctypes.CDLL("libX11.so.6")
    except OSError:
        return
    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)

    def handle(display: int) -> int:
        lost("the connection to the display was lost")
        xlib.XUnlockDisplay(ctypes.c_void_p(display))
        threading.Event().wait()
        return 0

    handler = prototype(handle)
    _io_error_handlers.append(handler)
    xlib.XSetIOErrorHandler(handler)


def keep_shown(icon: Any, name: str) -> None:
    """Put the icon where it is missing, on Windows: its first adding fails without a word while the taskbar is busy,
    as it is at login. (For a new Explorer pystray answers TaskbarCreated.)"""
    if name != "win32" or not icon.visible:
        return
    win32 = importlib.import_module("pystray._util.win32")
    nothing = win32.NOTIFYICONDATAW(cbSize=ctypes.sizeof(win32.NOTIFYICONDATAW), hWnd=icon._hwnd, uFlags=0)
    if not win32.Shell_NotifyIcon(win32.NIM_MODIFY, nothing):
        icon._show()


def show_menu(icon: Any, name: str) -> None:
    """Make the menu say what ``icon.menu`` says now; an open one stays open where only texts changed."""
    if name in _GTK:
        glib = importlib.import_module("gi.repository.GLib")
        glib.idle_add(_relabel, icon)
    elif name == "darwin":
        icon.update_menu()


def _relabel(icon: Any) -> bool:
    """In GTK's loop: new texts into the widgets; a new menu, which closes an open one, only if lines came or went."""
    if icon._menu_handle and _alike(icon.menu, icon._menu_handle):
        _rewrite(icon.menu, icon._menu_handle)
    else:
        icon.update_menu()
    return False


def _alike(menu: Any, widget: Any) -> bool:
    """Whether the lines differ in texts alone. A tick that is set counts as choosing the line, so it is none."""
    items, lines = list(menu), widget.get_children()
    return len(items) == len(lines) and all(
        bool(line.get_children()) == (item is not menu.SEPARATOR)
        and (line.get_active() if hasattr(line, "get_active") else None) == item.checked
        and (line.get_submenu() is None) == (item.submenu is None)
        and (item.submenu is None or _alike(item.submenu, line.get_submenu()))
        for item, line in zip(items, lines, strict=True)
    )


def _rewrite(menu: Any, widget: Any) -> None:
    for item, line in zip(menu, widget.get_children(), strict=True):
        text = line.get_children()
        if text and text[0].get_text() != item.text:
            line.set_label(item.text)
        if text and line.get_sensitive() != item.enabled:
            line.set_sensitive(item.enabled)
        if item.submenu is not None:
            _rewrite(item.submenu, line.get_submenu())


def show_tooltip(icon: Any, name: str, text: str) -> None:
    """The words shown when the pointer rests on the icon."""
    icon.title = text
    if name == "gtk":  # pystray sets the title that a screen reader gets, not the tooltip
        glib = importlib.import_module("gi.repository.GLib")
        glib.idle_add(icon._status_icon.set_property, "tooltip-text", text)
