"""What each line of the menu does, with a stand-in for the appliance and the desktop."""

import threading
from pathlib import Path
from typing import Any, get_args

import pytest

from appliance.system import autostart, desktop
from appliance.system.autostart import AutostartError, FakePlace
from appliance.tray.actions import DRAIN_S, Actions, ControlError, starts_at_login
from appliance.tray.menu import Action

URL = "http://127.0.0.1:11711"


class Controls:
    """Notes what is asked; ``refuses`` is what every call says."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.refuses: str | None = None
        self.draining = False

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            self.calls.append((name, *arguments))
            if self.refuses:
                raise ControlError(self.refuses)

        return call

    def dashboard(self) -> str:
        return "/#code=once"

    def drain(self, within_s: float) -> bool:
        self.calls.append(("drain", within_s))
        before, self.draining = self.draining, True
        return not before


class Desk:
    """The desktop, and an `Actions` on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.opened: list[Any] = []
        self.left: list[int] = []
        self.refuses = False
        self.saved: Path | OSError = folder / "zips" / "a.zip"
        for name in ("open_url", "open_folder", "copy_text"):
            monkeypatch.setattr(desktop, name, lambda what, name=name: self.open(name, what))
        self.place = FakePlace()
        monkeypatch.setattr(autostart, "place", lambda: self.place)
        self.controls = Controls()
        self.act = Actions(
            self.controls, lambda: URL, folder / "models", folder / "logs", self.save, lambda: self.left.append(1)
        )

    def open(self, name: str, what: Any) -> None:
        if self.refuses:
            raise desktop.DesktopError("xdg-open is not installed")
        self.opened.append((name, what))

    def save(self) -> Path:
        if isinstance(self.saved, OSError):
            raise self.saved
        return self.saved


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    return Desk(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("action", "model", "call"),
    [
        ("pause", "", ("pause",)),
        ("resume", "", ("resume",)),
        ("restart_engine", "", ("restart_engine",)),
        ("load_model", "yolo", ("load", "yolo")),
        ("unload_model", "yolo", ("unload", "yolo")),
        ("pin_model", "yolo", ("pin", "yolo", True)),
        ("unpin_model", "yolo", ("pin", "yolo", False)),
    ],
)
def test_what_is_asked_of_the_appliance(desk: Desk, action: Action, model: str, call: tuple[Any, ...]) -> None:
    assert desk.act(action, model) is None
    assert desk.controls.calls == [call]
    desk.controls.refuses = "there is no such model"
    assert desk.act(action, model) == "there is no such model"


@pytest.mark.parametrize(
    ("action", "opened"),
    [
        ("open_dashboard", ("open_url", f"{URL}/#code=once")),
        ("open_docs", ("open_url", f"{URL}/docs")),
        ("copy_address", ("copy_text", URL)),
    ],
)
def test_what_is_opened(desk: Desk, action: Action, opened: tuple[Any, ...]) -> None:
    assert desk.act(action, "") is None
    assert desk.opened == [opened]


def test_folders_are_opened(desk: Desk, tmp_path: Path) -> None:
    desk.act("open_models", "")
    desk.act("open_logs", "")
    assert desk.opened == [("open_folder", tmp_path / "models"), ("open_folder", tmp_path / "logs")]


def test_start_at_login_is_switched_and_a_refusal_is_told(desk: Desk) -> None:
    assert starts_at_login() is False
    assert desk.act("start_at_login", "") is None
    assert starts_at_login() is True
    assert desk.act("no_start_at_login", "") is None
    assert desk.place.held is None
    desk.place.refuses = AutostartError("the registry cannot be written")
    assert desk.act("start_at_login", "") == "start at login: the registry cannot be written"


def test_no_start_at_login_on_this_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise AutostartError("not supported")

    monkeypatch.setattr(autostart, "place", fail)
    assert starts_at_login() is None


def test_a_saved_file_is_told_and_its_folder_opened(desk: Desk, tmp_path: Path) -> None:
    assert desk.act("save_diagnosis", "") == f"Saved: {tmp_path / 'zips' / 'a.zip'}"
    assert desk.opened == [("open_folder", tmp_path / "zips")]
    desk.refuses = True  # where nothing opens folders, the place is told all the same
    assert desk.act("save_diagnosis", "") == f"Saved: {tmp_path / 'zips' / 'a.zip'}"
    desk.saved = OSError(28, "No space left on device")
    assert desk.act("save_diagnosis", "") == "the diagnostic file cannot be saved: No space left on device"
    assert not desk.act.saving


def test_one_file_is_made_at_a_time(desk: Desk) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Path:
        begun.set()
        assert go_on.wait(10)
        raise OSError(5, "Input/output error")

    desk.act._save = slow
    first = threading.Thread(target=desk.act, args=("save_diagnosis", ""))
    first.start()
    assert begun.wait(10)
    assert desk.act.saving
    assert desk.act("save_diagnosis", "") is None
    go_on.set()
    first.join(10)
    assert not desk.act.saving


def test_quit_drains_and_quits_at_once_when_chosen_again(desk: Desk) -> None:
    assert desk.act("quit", "") is None
    assert (desk.controls.calls, desk.left) == ([("drain", DRAIN_S)], [])
    desk.act("quit", "")
    assert desk.left == [1]


def test_every_action_does_something(desk: Desk) -> None:
    for action in get_args(Action):
        before = (len(desk.controls.calls), len(desk.opened), desk.place.held)
        desk.act(action, "yolo")
        assert (len(desk.controls.calls), len(desk.opened), desk.place.held) != before, action
