"""A screen for the tests: an X server that shows nothing, a session bus, a program that shows tray icons."""

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "work" / "desktop"
NEEDED = ("Xvfb", "trayer", "xdotool", "import", "xwininfo", "dbus-daemon")

T = TypeVar("T")


def missing() -> str | None:
    """What the tests need and this machine lacks."""
    lacking = [program for program in NEEDED if shutil.which(program) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else None


def until(probe: Callable[[], T | None], seconds: float = 15.0) -> T:
    """What `probe` gives once it gives something true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"nothing came within {seconds} s")


def gobject_folder(work: Path) -> Path | None:
    """A folder with nothing but the system's PyGObject in it, or None if this Python cannot use that."""
    if importlib.util.find_spec("gi") is not None:
        return work
    system = Path("/usr/lib/python3/dist-packages/gi")
    tag = f"cpython-{sys.version_info.major}{sys.version_info.minor}-"
    if not any(tag in file.name for file in system.glob("_gi.*.so")):
        return None
    folder = work / "gobject"
    folder.mkdir(exist_ok=True)
    (folder / "gi").symlink_to(system)
    return folder


class Screen:
    """Programs on one display, all ended by `close`; the helpers look at and click on that display."""

    def __init__(self, work: Path, *, bus: bool = True) -> None:
        self._work = work
        self._started: list[subprocess.Popen[bytes]] = []
        self.env = {k: v for k, v in os.environ.items() if k not in ("WAYLAND_DISPLAY", "PYSTRAY_BACKEND")}
        self.env["NO_AT_BRIDGE"] = "1"  # GTK would start the accessibility services, which outlive us
        self.env["GTK_THEME"] = "Adwaita"
        self.env.pop("DBUS_SESSION_BUS_ADDRESS", None)
        self.env["XDG_RUNTIME_DIR"] = str(work)
        self.server = self._start_server()
        if bus:
            self._start_bus()

    def _start_server(self) -> subprocess.Popen[bytes]:
        reading, writing = os.pipe()
        server = subprocess.Popen(
            ["Xvfb", "-displayfd", str(writing), "-screen", "0", "800x600x24", "-nolisten", "tcp"],
            pass_fds=(writing,),
            stderr=subprocess.DEVNULL,
        )
        self._started.append(server)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            self.env["DISPLAY"] = f":{int(pipe.readline())}"
        return server

    def _start_bus(self) -> None:
        bus = subprocess.Popen(
            ["dbus-daemon", "--session", "--nofork", "--nopidfile", "--print-address=1"],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._started.append(bus)
        assert bus.stdout is not None
        with bus.stdout as pipe:
            self.env["DBUS_SESSION_BUS_ADDRESS"] = pipe.readline().decode().strip()

    tray_host: subprocess.Popen[bytes]

    def start_tray_host(self) -> subprocess.Popen[bytes]:
        """Trayer, once its panel is there; started anew if it did not come up on a busy machine."""
        for attempt in (1, 2, 3):
            self.tray_host = subprocess.Popen(
                ["trayer", "--edge", "top", "--align", "right", "--widthtype", "request", "--height", "32"],
                env=self.env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self._started.append(self.tray_host)
            try:
                until(lambda: self.windows('"panel"'), 8)
            except AssertionError:
                if attempt == 3:
                    raise
                self.tray_host.kill()
                self.tray_host.wait()
            else:
                break
        return self.tray_host

    def run(self, *command: str) -> str:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=20, check=False)
        return done.stdout

    def windows(self, pattern: str) -> list[tuple[int, int, int, int]]:
        """(x, y, width, height) of every mapped-or-not window whose line matches."""
        found = []
        for line in self.run("xwininfo", "-root", "-tree").splitlines():
            place = re.search(r"(\d+)x(\d+)\+-?\d+\+-?\d+\s+\+(-?\d+)\+(-?\d+)$", line)
            if place and re.search(pattern, line):
                width, height, x, y = (int(number) for number in place.groups())
                found.append((x, y, width, height))
        return found

    def icon(self) -> tuple[int, int, int, int] | None:
        """Where the docked icon is: the widest the panel holds, or None while it holds none."""
        panels = self.windows('"panel"')
        if not panels or panels[0][2] < 20:
            return None
        x, y, width, height = panels[0]
        return (x + 1, y + 1, width - 2, height - 2)

    def click(self, button: int) -> None:
        x, y, width, height = until(self.icon)
        self.run("xdotool", "mousemove", str(x + width // 2), str(y + height // 2), "click", str(button))

    def shot(self, name: str) -> Path:
        SHOTS.mkdir(parents=True, exist_ok=True)
        file = SHOTS / f"{name}.png"
        self.run("import", "-window", "root", str(file))
        return file

    def close(self) -> None:
        for process in reversed(self._started):
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Driver:
    """The small program that shows the icon (or another of this folder), and what it says."""

    def __init__(
        self,
        screen: Screen,
        extra_path: Path | None,
        backend: str | None = None,
        program: str = "tray_driver.py",
    ) -> None:
        env = dict(screen.env)
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([str(extra_path)] if extra_path else [])])
        if backend:
            env["PYSTRAY_BACKEND"] = backend
        self.errors = (screen._work / f"{program}-errors").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(program))],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.lines: list[str] = []
        self._rest = b""

    def said(self, start: str) -> str | None:
        """The first line so far that starts so."""
        assert self.process.stdout is not None
        self._rest += self.process.stdout.read() or b""
        *whole, self._rest = self._rest.split(b"\n")
        self.lines += [line.decode() for line in whole]
        return next((line for line in self.lines if line.startswith(start)), None)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def session(work: Path, *, bus: bool = True, host: bool = True) -> Iterator[Screen]:
    """A screen that is surely gone afterwards."""
    screen = Screen(work, bus=bus)
    try:
        if host:
            screen.start_tray_host()
        yield screen
    finally:
        screen.close()


def stop_by_signal(driver: Driver, number: signal.Signals) -> int:
    """The exit code after a signal; the driver must be gone within five seconds."""
    driver.process.send_signal(number)
    return driver.process.wait(5)
