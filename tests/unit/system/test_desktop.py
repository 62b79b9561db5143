"""What the person's desktop offers, on a machine that is made up."""

import os
import sys
from pathlib import Path

import pytest

from appliance.system import desktop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="about Linux desktops")


def tool(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with what the tests put there, and a few programs that scripts need."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("cat", "sleep"):
        (folder / name).symlink_to(next(p for p in ("/bin/" + name, "/usr/bin/" + name) if os.path.exists(p)))  # noqa: PTH110
    return folder


def test_a_session_needs_a_display() -> None:
    assert desktop.no_session({"DISPLAY": ":0"}) is None
    assert desktop.no_session({"WAYLAND_DISPLAY": "wayland-0"}) is None
    assert "DISPLAY" in (desktop.no_session({}) or "")


def test_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = {"DBUS_SESSION_BUS_ADDRESS": "unix:path=x"}
    x, wayland = {"DISPLAY": ":0"}, {"WAYLAND_DISPLAY": "wayland-0"}
    monkeypatch.setattr(desktop, "has_gobject", lambda: True)
    assert desktop.tray_backends(x | bus) == ("appindicator", "gtk", "xorg")
    assert desktop.tray_backends(wayland | bus) == ("appindicator",)
    assert desktop.tray_backends(x) == ("xorg",)
    assert desktop.tray_backends(wayland) == ()
    assert desktop.tray_backends(x | bus | {"PYSTRAY_BACKEND": "gtk"}) == ("gtk",)
    (tmp_path / "bus").touch()
    assert desktop.has_session_bus({"XDG_RUNTIME_DIR": str(tmp_path)})
    monkeypatch.setattr(desktop, "has_gobject", lambda: False)
    assert desktop.tray_backends(x | bus) == ("xorg",)


def test_the_clipboard_gets_the_text(path: Path, tmp_path: Path) -> None:
    tool(path, "xclip", f'cat > "{tmp_path}/got"')
    desktop.copy_text("http://127.0.0.1:11711", {"DISPLAY": ":0"})
    assert (tmp_path / "got").read_text() == "http://127.0.0.1:11711"


def test_the_next_tool_is_tried(path: Path, tmp_path: Path) -> None:
    tool(path, "wl-copy", "exit 1")
    tool(path, "xsel", f'cat > "{tmp_path}/got"')
    desktop.copy_text("words", {"DISPLAY": ":0", "WAYLAND_DISPLAY": "w"})
    assert (tmp_path / "got").read_text() == "words"


def test_a_tool_that_hangs_is_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desktop, "_TOOL_PATIENCE", 0.2)
    tool(path, "xclip", "exec sleep 30")
    with pytest.raises(desktop.DesktopError, match="xclip or wl-clipboard"):
        desktop.copy_text("words", {"DISPLAY": ":0"})


def test_no_tool_at_all(path: Path) -> None:
    with pytest.raises(desktop.DesktopError, match="clipboard"):
        desktop.copy_text("words", {"DISPLAY": ":0"})
    with pytest.raises(desktop.DesktopError, match="xdg-open is not installed"):
        desktop.open_url("http://127.0.0.1")


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_folder_is_made_and_opened(path: Path, tmp_path: Path) -> None:
    tool(
        path, "xdg-open", f'echo "$1" > "{tmp_path}/got.part"; [ -s "{tmp_path}/got.part" ] && : > "{tmp_path}/done"'
    )
    desktop.open_folder(tmp_path / "new" / "models")
    assert (tmp_path / "new" / "models").is_dir()
    import time

    deadline = time.monotonic() + 5
    while not (tmp_path / "done").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "got.part").read_text().strip() == str(tmp_path / "new" / "models")
    (tmp_path / "file").touch()
    with pytest.raises(desktop.DesktopError, match="cannot be opened"):
        desktop.open_folder(tmp_path / "file")
