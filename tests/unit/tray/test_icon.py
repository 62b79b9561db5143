"""The painter with a stand-in for pystray: threads, reasons, and that nothing of it stops the program."""

import ctypes
import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from appliance.system import desktop
from appliance.system.desktop import DesktopError
from appliance.tray import backend
from appliance.tray.icon import available, one_icon, run_tray
from appliance.tray.state import ModelState, TrayState

ROOT = Path(__file__).resolve().parents[3]


def state(name: str = "ready", **more: Any) -> TrayState:
    return TrayState(**({"state": name, "address": "http://127.0.0.1:11711", "device": "CPU"} | more))


class Menu:
    """What is used of pystray.Menu."""

    SEPARATOR = object()

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items[0]() if callable(self.items[0]) else self.items)


class Icon:
    """What is used of pystray.Icon; its loop ends by `stop`, or by itself with `broken`."""

    HAS_NOTIFICATION = True
    broken: str | None = None
    made: ClassVar[list["Icon"]]

    def __init__(self, name: str, icon: Any, title: str, menu: Menu) -> None:
        self.icon, self.title, self.menu = icon, title, menu
        self.visible = False
        self.notes: list[str] = []
        self.updates = 0
        self.over = threading.Event()
        type(self).made.append(self)

    def run(self, setup: Callable[[Any], None]) -> None:
        if self.broken:
            raise RuntimeError(self.broken)
        threading.Thread(target=setup, args=(self,), daemon=True).start()
        self.over.wait()

    def stop(self) -> None:
        self.over.set()

    def update_menu(self) -> None:
        self.updates += 1

    def notify(self, text: str, _title: str) -> None:
        self.notes.append(text)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> type[Icon]:
    """A desktop where pystray is the stand-in, as its macOS backend, which needs no mending."""

    class Fresh(Icon):
        made: ClassVar[list[Icon]] = []

    module = SimpleNamespace(
        Icon=Fresh, Menu=Menu, MenuItem=lambda text, action, **more: SimpleNamespace(text=text, action=action, **more)
    )
    monkeypatch.setattr(backend, "load", lambda: (module, "darwin"))
    monkeypatch.setattr("appliance.tray.icon.available", lambda: None)
    return Fresh


def until(probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("nothing came")


class Show:
    """run_tray in a thread."""

    def __init__(
        self, get_state: Callable[[], TrayState], act: Callable[[Any, str], Any] = lambda _a, _m: None
    ) -> None:
        self.stop, self.changed = threading.Event(), threading.Event()
        self.said: list[str] = []
        self.result: list[str | None] = []
        self.thread = threading.Thread(
            target=lambda: self.result.append(run_tray(get_state, act, self.stop, self.changed, say=self.said.append))
        )
        self.thread.start()

    def end(self) -> str | None:
        self.stop.set()
        self.thread.join(5)
        assert not self.thread.is_alive()
        return self.result[0]


def test_it_is_painted_when_told_and_only_where_it_looks_different(shown: type[Icon]) -> None:
    now = [state("ready")]
    show = Show(lambda: now[0])
    icon = until(lambda: shown.made and shown.made[0].visible and shown.made[0])
    first, title = icon.icon, icon.title
    now[0] = state("ready", engine_restarts=1)  # another menu, the same icon and tooltip
    show.changed.set()
    until(lambda: icon.updates == 1)
    assert icon.icon is first
    assert icon.title == title
    now[0] = state("busy", running=1)
    show.changed.set()
    until(lambda: icon.icon is not first)
    assert "busy" in icon.title
    show.changed.set()
    time.sleep(0.4)
    assert icon.updates == 2
    assert show.end() is None


def test_bursts_are_painted_a_few_times_only(shown: type[Icon]) -> None:
    count = [0]

    def get() -> TrayState:
        count[0] += 1
        return state(queued=count[0])

    show = Show(get)
    until(lambda: shown.made)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        show.changed.set()
        time.sleep(0.001)
    show.end()
    assert count[0] <= 7


def test_an_action_runs_outside_the_loop_and_its_answer_is_shown(shown: type[Icon]) -> None:
    threads: list[str] = []

    def act(action: str, _model: str) -> str | None:
        threads.append(threading.current_thread().name)
        if action == "open_logs":
            raise DesktopError("xdg-open is not installed")
        return f"did {action}"

    show = Show(state, act)
    icon = until(lambda: shown.made and shown.made[0].visible and shown.made[0])
    chosen = {item.text: item.action for item in icon.menu if item is not Menu.SEPARATOR}
    chosen["Open dashboard"](icon, None)
    chosen["Open logs"](icon, None)
    until(lambda: sorted(icon.notes) == ["did open_dashboard", "xdg-open is not installed"])
    assert threads == ["tray-action", "tray-action"]
    assert chosen["Ready: CPU"] is None
    show.end()


def test_a_submenu_tells_the_model_and_the_tick(shown: type[Icon]) -> None:
    chosen: list[tuple[str, str]] = []
    models = (ModelState(name="yolo", condition="ready", pinned=True), ModelState(name="ocr", condition="unloaded"))
    show = Show(lambda: state(models=models), lambda action, model: chosen.append((action, model)))
    icon = until(lambda: shown.made and shown.made[0].visible and shown.made[0])
    (opened,) = [item for item in icon.menu if item is not Menu.SEPARATOR and item.text.startswith("Models")]
    lines = {item.text: item for item in opened.action}
    ocr = {item.text: item for item in lines["ocr: not loaded"].action if item is not Menu.SEPARATOR}
    yolo = {item.text: item for item in lines["yolo: ready, pinned"].action if item is not Menu.SEPARATOR}
    ocr["Load"].action(icon, None)
    until(lambda: chosen == [("load_model", "ocr")])
    pin = "Pinned: makes room for no other model"
    assert (yolo[pin].checked(None), ocr[pin].checked(None), ocr["Load"].checked) == (True, False, None)
    show.end()


def test_what_a_person_should_know_is_shown_once(shown: type[Icon]) -> None:
    now = [state()]
    show = Show(lambda: now[0])
    icon = until(lambda: shown.made and shown.made[0].visible and shown.made[0])
    now[0] = state("degraded", device_reason="no driver " * 40, restart_needed=("port",))
    show.changed.set()
    until(lambda: icon.notes)
    show.changed.set()
    time.sleep(0.4)
    (told,) = icon.notes
    assert told.startswith("Changed, and counts after a restart: port\nRunning on CPU: no driver")
    assert len(told) == 255
    show.end()


def test_a_broken_toolkit_is_a_reason(shown: type[Icon]) -> None:
    shown.broken = "no idea"
    show = Show(state)
    show.thread.join(5)
    assert show.result == ["the tray icon failed: RuntimeError: no idea"]


def test_a_state_that_cannot_be_had_is_a_reason(shown: type[Icon]) -> None:
    calls = [0]

    def get() -> TrayState:
        calls[0] += 1
        if calls[0] > 1:
            raise ValueError("gone")
        return state()

    show = Show(get)
    show.thread.join(5)
    assert show.result == ["the tray icon failed: ValueError: gone"]


def test_a_loop_that_ends_by_itself_is_a_reason(shown: type[Icon]) -> None:
    show = Show(state)
    until(lambda: shown.made and shown.made[0].visible and shown.made[0]).stop()
    show.thread.join(5)
    assert show.result == ["the tray icon was closed by the desktop"]


def test_no_backend_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.tray.icon.available", lambda: None)

    def fail() -> Any:
        raise backend.NoTray("nothing works")

    monkeypatch.setattr(backend, "load", fail)
    assert run_tray(state, lambda _a, _m: None, threading.Event(), threading.Event()) == "nothing works"


@pytest.mark.skipif(sys.platform == "win32", reason="about displays")
def test_without_a_display_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    reason = available()
    assert reason is not None
    assert "graphical session" in reason
    assert run_tray(state, lambda _a, _m: None, threading.Event(), threading.Event()) == reason


@pytest.mark.skipif(sys.platform == "win32", reason="about displays")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # python-xlib leaves sockets open
def test_a_display_that_is_not_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desktop, "tray_backends", lambda: ("xorg",))
    monkeypatch.setenv("DISPLAY", ":4711")
    monkeypatch.delitem(sys.modules, "pystray", raising=False)
    with pytest.raises(backend.NoTray, match="xorg: "):
        backend.load()
    assert "PYSTRAY_BACKEND" not in os.environ
    assert "pystray" not in sys.modules


def test_importing_the_tray_imports_no_toolkit() -> None:
    code = (
        "import sys, appliance.tray.icon, appliance.tray.actions, appliance.tray.drawing\n"
        "print([m for m in ('pystray', 'PIL', 'gi', 'Xlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


class Window:
    """What is used of pystray's icon on Windows."""

    def __init__(self, notify: int) -> None:
        self.events: list[Any] = []
        self._message_handlers = {notify: lambda _wparam, lparam: self.events.append(("clicked", lparam))}

    def update_menu(self) -> None:
        self.events.append("menu")


def test_on_windows_log_off_is_allowed_and_the_menu_is_built_when_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    notify = 0x40B
    monkeypatch.setitem(sys.modules, "pystray._util.win32", SimpleNamespace(WM_NOTIFY=notify))
    monkeypatch.setattr(importlib, "import_module", lambda name: sys.modules[name])
    monkeypatch.setattr(backend, "_LOGOFF_GRACE", 0.0)
    window, quits = Window(notify), []
    backend.prepare(window, "win32", lambda _r: None, lambda: quits.append(1))
    handlers: dict[int, Callable[[int, int], Any]] = window._message_handlers
    handlers[notify](0, 0x0202)  # left button up
    handlers[notify](0, 0x0205)  # right button up
    assert window.events == [("clicked", 0x0202), "menu", ("clicked", 0x0205)]
    assert handlers[0x0011](0, 0) == 1  # the session may end
    handlers[0x0016](0, 0)
    assert quits == []  # it does not end after all
    handlers[0x0016](1, 0)
    assert quits == [1]
    assert backend.label("R&D", "win32") == "R&&D"
    assert backend.label("R&D", "gtk") == "R&D"


def test_on_windows_an_icon_that_could_not_be_added_is_added_again(monkeypatch: pytest.MonkeyPatch) -> None:
    taskbar: list[bool] = [False]
    calls: list[Any] = []

    class Data(ctypes.Structure):
        _fields_ = (("cbSize", ctypes.c_uint), ("hWnd", ctypes.c_void_p), ("uFlags", ctypes.c_uint))

    def shell(code: int, data: Data) -> bool:
        calls.append((code, data.hWnd, data.uFlags))
        return taskbar[0]

    win32 = SimpleNamespace(NOTIFYICONDATAW=Data, NIM_MODIFY=1, Shell_NotifyIcon=shell)
    monkeypatch.setattr(importlib, "import_module", lambda name: {"pystray._util.win32": win32}[name])
    icon = SimpleNamespace(visible=True, _hwnd=77, _show=lambda: calls.append("show"))
    backend.keep_shown(icon, "win32")
    assert calls == [(1, 77, 0), "show"]
    taskbar[0] = True
    backend.keep_shown(icon, "win32")
    assert calls[2:] == [(1, 77, 0)]
    backend.keep_shown(icon, "gtk")
    icon.visible = False
    backend.keep_shown(icon, "win32")
    assert len(calls) == 3


def test_at_log_off_nobody_waits_for_the_loop(shown: type[Icon], monkeypatch: pytest.MonkeyPatch) -> None:
    leave: list[Callable[[], None]] = []
    monkeypatch.setattr(backend, "prepare", lambda _icon, _name, _lost, quit_: leave.append(quit_))
    monkeypatch.setattr(shown, "stop", lambda _icon: None)  # a loop that is held up by the log-off
    show = Show(state)
    until(lambda: shown.made and shown.made[0].visible)
    started = time.monotonic()
    leave[0]()
    show.thread.join(5)
    assert show.result == [None]
    assert time.monotonic() - started < 1
    shown.made[0].over.set()


def test_one_appliance_has_one_icon_of_a_user(tmp_path: Path) -> None:
    with (
        one_icon(tmp_path, "11711") as first,
        one_icon(tmp_path, "11711") as second,
        one_icon(tmp_path, "80") as other,
    ):
        assert (first, second, other) == (True, False, True)
    with one_icon(tmp_path, "11711") as again:
        assert again
    (tmp_path / "file").write_text("")
    with one_icon(tmp_path / "file" / "state", "11711") as untold:
        assert untold
