"""Start at login: the desktop entry as its specification wants it, the Run key and Task Manager's mark."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appliance.system import autostart
from appliance.system.autostart import AutostartError, DesktopEntry, FakePlace, FakeRegistry, RunKey

RUN = r"Software\Microsoft\Windows\CurrentVersion\Run"
APPROVED = r"Software\Microsoft\Windows\CurrentVersion\Explorer\StartupApproved\Run"
HARD = ['/opt/My "App"/a$b', "back\\slash", "100% `sure`", "it's; done", "run"]


def test_on_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autostart.paths, "program_command", lambda: ["/opt/appliance"])
    place = FakePlace()
    assert not autostart.enabled(place)
    autostart.enable(place)
    assert autostart.enabled(place)
    assert autostart.entry(place) == autostart.own_line(place) == "/opt/appliance run"
    autostart.disable(place)
    assert not autostart.enabled(place)
    autostart.disable(place)  # off is no fault
    with pytest.raises(AutostartError, match="managed"):
        autostart.enable(FakePlace(refuses=AutostartError("managed by somebody")))


def test_of_two_programs_the_windowed_one(tmp_path: Path) -> None:
    console, windowed, alone = (tmp_path / n for n in ("appliance-cli.exe", "appliance.exe", "other-cli.exe"))
    for file in (console, windowed, alone):
        file.touch()
    assert autostart.windowed(console) == windowed
    assert autostart.windowed(windowed) == windowed
    assert autostart.windowed(alone) == alone
    python = tmp_path / "python.exe"
    python.touch()
    assert autostart.windowed(python) == python
    (tmp_path / "pythonw.exe").touch()
    assert autostart.windowed(python) == tmp_path / "pythonw.exe"


# --- Linux -----------------------------------------------------------------------------------------------------


def test_a_desktop_entry(tmp_path: Path) -> None:
    entry = DesktopEntry("Inference Appliance", tmp_path / "config/autostart")
    assert entry.file.name == "inference-appliance.desktop"
    assert entry.read() is None
    entry.remove()
    line = entry.line(HARD)
    # Quoted by the rules of the Exec key, and each backslash of that doubled by the rules for strings.
    assert line == (r'"/opt/My \\"App\\"/a\\$b" "back\\\\slash" "100%% \\`sure\\`" "it' + r"'s; done" + r'" "run"')
    entry.write(line)
    assert entry.file.read_text().splitlines() == [
        "[Desktop Entry]",
        "Type=Application",
        "Name=Inference Appliance",
        "Comment=Local inference server",
        f"Exec={line}",
        "Terminal=false",
    ]
    assert entry.read() == line
    assert [f.name for f in entry.file.parent.iterdir()] == [entry.file.name]
    entry.remove()
    assert entry.read() is None and not entry.file.exists()


@pytest.mark.skipif(shutil.which("gio") is None, reason="needs GLib's tools, which start such a file")
def test_the_desktop_starts_what_was_meant(tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = tmp_path / "a $program"
    loop = 'for a in "$@"; do printf \'%s\\n\' "$a"; done'
    script.write_text(f"#!/bin/sh\n{loop} >'{said}.new'; mv '{said}.new' '{said}'\n")
    script.chmod(0o755)
    entry = DesktopEntry("Test", tmp_path)
    entry.write(entry.line([str(script), *HARD]))
    subprocess.run(["gio", "launch", str(entry.file)], check=True, timeout=20, capture_output=True)
    deadline = time.monotonic() + 20
    while not said.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert said.read_text().splitlines() == HARD


@pytest.mark.parametrize(
    "content",
    [
        "[Desktop Entry]\nExec=a\nHidden=true\n",
        "[Desktop Entry]\nExec=a\nX-GNOME-Autostart-enabled=false\n",
        "Exec=a",
    ],
)
def test_an_entry_that_the_desktop_does_not_start(tmp_path: Path, content: str) -> None:
    entry = DesktopEntry("Test", tmp_path)
    entry.file.write_text(content)
    assert entry.read() is None
    entry.write('"b"')
    assert entry.read() == '"b"'


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "autostart").write_text("in the way")
    with pytest.raises(AutostartError, match="cannot be written"):
        DesktopEntry("Test", tmp_path / "autostart").write("a")
    with pytest.raises(AutostartError, match="more than one line"):
        DesktopEntry("Test", tmp_path).line(["a\nb"])


@pytest.mark.skipif(sys.platform != "linux", reason="about Linux desktops")
def test_the_users_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    autostart.enable()
    text = (tmp_path / "autostart/inference-appliance.desktop").read_text()
    assert f'Exec="{sys.executable}"' in text and '"run"' in text
    autostart.disable()
    assert not autostart.enabled()


# --- Windows ---------------------------------------------------------------------------------------------------


def test_the_run_key() -> None:
    registry = FakeRegistry()
    key = RunKey("Inference Appliance", registry)
    line = key.line([r"C:\Users\Jörg Müller\Programs\Inference Appliance\appliance.exe", "run"])
    assert line == r'"C:\Users\Jörg Müller\Programs\Inference Appliance\appliance.exe" run'
    assert key.read() is None
    key.remove()
    key.write(line)
    assert registry.values == {(RUN, "Inference Appliance"): line}
    assert key.read() == line
    key.remove()
    assert registry.values == {} and key.read() is None


@pytest.mark.parametrize(("first", "on"), [(2, True), (6, True), (3, False), (7, False)])
def test_task_managers_mark(first: int, on: bool) -> None:
    registry = FakeRegistry()
    registry.values[RUN, "x"] = '"a" run'
    registry.values[APPROVED, "x"] = bytes([first]) + bytes(11)
    key = RunKey("x", registry)
    assert (key.read() is not None) is on
    key.write('"a" run')  # asked for here, it is on, whatever was chosen there before
    assert key.read() == '"a" run' and (APPROVED, "x") not in registry.values


def test_what_windows_refuses() -> None:
    key = RunKey("x", FakeRegistry(refuses=PermissionError(13, "Access is denied")))
    with pytest.raises(AutostartError, match="Access is denied"):
        key.write("a")
    with pytest.raises(AutostartError, match="Access is denied"):
        key.remove()
    with pytest.raises(AutostartError, match="none of more than 260"):
        key.line(["C:\\" + "x" * 260, "run"])
