"""Windows programs under Wine, driven from Linux: a prefix of one's own, commands, the registry, the X display."""

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server import ROOT

SCRIPTS = ROOT / "build" / "windows"
BASE = Path(os.environ.get("WIN_BASE") or ROOT / "work" / "windows").absolute()
APP = "Inference Appliance"
UNINSTALL_KEY = rf"HKCU\Software\Microsoft\Windows\CurrentVersion\Uninstall\{APP}"
RUN_KEY = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Run"
APPROVED_KEY = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Explorer\StartupApproved\Run"
OWN_KEY = rf"HKCU\Software\{APP}"


def lacking(*programs: str) -> str | None:
    """Why there is no Wine to test with, or None."""
    if os.geteuid() != 0:
        return "Wine runs in a name space of its own, which takes root"
    if not (BASE / "wine" / ".done").exists() or not (BASE / "template" / ".done").exists():
        return "there is no Wine (build/windows/setup.sh makes it; WIN_BASE says where)"
    missing = [program for program in programs if shutil.which(program) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def require(*programs: str) -> None:
    """Skip the test module, with the reason, where Windows programs cannot be run."""
    reason = lacking(*programs)
    if reason:
        pytest.skip(reason, allow_module_level=True)


class Wine:
    """A fresh prefix below ``folder``, for a user of that name. Use as a context manager: at its end all is ended."""

    def __init__(self, folder: Path, user: str = "root", display: str = "") -> None:
        self.folder = folder
        self.prefix = folder / "prefix"
        self.user = user
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
        self.env |= {
            "WIN_BASE": str(BASE),
            "WINEPREFIX": str(self.prefix),
            "WIN_BIND": str(folder),
            "WINEDEBUG": "-all",
            "USER": user,
            "DISPLAY": display,
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self.drive = self.prefix / "drive_c"
        self.home = self.drive / "users" / user
        self.local = self.home / "AppData" / "Local"
        self.program = self.local / "Programs" / APP
        self.state = self.local / APP
        self.menu = self.home / "AppData" / "Roaming" / "Microsoft" / "Windows" / "Start Menu" / "Programs" / APP

    def __enter__(self) -> "Wine":
        subprocess.run([SCRIPTS / "prefix.sh", self.prefix], check=True, env=self.env)
        if self.user != "root":  # whom the prefix was made for: the others have the same folders
            shutil.copytree(self.drive / "users" / "root", self.home, symlinks=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all()
        for process in self._started:
            process.wait(30)
        shutil.rmtree(self.prefix, ignore_errors=True)

    def path(self, path: Path) -> str:
        """As Windows calls it."""
        if path.is_relative_to(self.drive):
            return "C:\\" + "\\".join(path.relative_to(self.drive).parts)
        return "Z:" + str(path).replace("/", "\\")

    def run(self, program: str | Path, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """A Windows program to its end; its output, both streams together."""
        name = self.path(program) if isinstance(program, Path) else program
        # NSIS takes these two with the rest of the line and without quotes, which Wine would put around spaces.
        words = [word for a in arguments for word in (a.split(" ") if a.startswith(("/D=", "_?=")) else [a])]
        command = [SCRIPTS / "winrun", "wine", name, *words]
        # Through a pipe, since not every Windows program takes a file; and not to the pipe's end: what the program
        # has started, and left, holds it too.
        process = subprocess.Popen(
            command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        said, end, over = b"", time.monotonic() + timeout, False
        with process.stdout as pipe:
            while True:
                ready, _, _ = select.select([pipe], [], [], 0.2)
                part = pipe.read() if ready else b""
                said += part or b""
                if over and not part:
                    break
                over = process.poll() is not None
                if time.monotonic() > end:
                    process.kill()
                    process.wait()
                    raise subprocess.TimeoutExpired(command, timeout, said)
        text = said.replace(b"\0", b"").replace(b"\r", b"").decode("utf-8", "replace")
        return subprocess.CompletedProcess(command, process.returncode, text, "")

    def start(self, program: str | Path, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        """A program that goes on; ``more`` are variables of its environment."""
        name = self.path(program) if isinstance(program, Path) else program
        started = subprocess.Popen(
            [SCRIPTS / "winrun", "wine", name, *arguments],
            env={**self.env, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started.append(started)
        return started

    def server(self, *arguments: str) -> None:
        """Wine's own server process: ``-k`` ends everything in the prefix, ``-w`` waits for its end."""
        subprocess.run([SCRIPTS / "winrun", "wineserver", *arguments], env=self.env, check=False, timeout=60)

    def end_all(self) -> None:
        """What a switched-off machine is for its programs; the registry is on the disk afterwards."""
        self.server("-k", str(int(signal.SIGKILL)))
        self.server("-w")

    def registry(self, key: str) -> dict[str, str]:
        """The values of a key by name; empty if it is not there."""
        done = self.run("reg", "query", key)
        found = re.findall(r"^    (.+?)    REG_\w+    (.*)$", done.stdout, re.MULTILINE)
        return dict(found) if done.returncode == 0 else {}

    def files(self) -> set[str]:
        """All that is on drive C but Windows itself and temporary files."""
        places = (path for path in self.drive.rglob("*"))
        names = (path.relative_to(self.drive).as_posix() for path in places)
        return {name for name in names if not name.startswith("windows") and "/Temp" not in name}

    def mentions(self) -> list[str]:
        """Lines of the registry that name the program. Ends everything in the prefix first."""
        self.end_all()
        lines = []
        for file in ("user.reg", "system.reg"):
            text = (self.prefix / file).read_text("latin-1")
            lines += [line for line in text.splitlines() if APP.lower() in line.lower()]
        return lines


def until(condition: object, within_s: float, what: str) -> object:
    """Poll until it is true; its value."""
    assert callable(condition)
    end = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"waited {within_s:g} s for {what}"
        time.sleep(0.1)


@contextmanager
def display(folder: Path, size: str = "1024x768x24") -> Iterator[str]:
    """An X display of one's own."""
    read, write = os.pipe()
    with (folder / "xvfb.log").open("wb") as log:
        process = subprocess.Popen(
            ["Xvfb", "-displayfd", str(write), "-screen", "0", size, "-nolisten", "tcp"],
            pass_fds=(write,),
            stdout=log,
            stderr=log,
        )
    os.close(write)
    try:
        with os.fdopen(read) as told:
            yield f":{told.readline().strip()}"
    finally:
        process.terminate()
        process.wait(10)


def make_setup(folder: Path, out: Path, version: str, **env: str) -> Path:
    """The set-up of a frozen folder, quickly packed."""
    given = {**os.environ, "WIN_BASE": str(BASE), "QUICK": "1", "VERSION": version, **env}
    command: Sequence[str | Path] = [SCRIPTS / "installer.sh", folder, out]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    variant = given.get("VARIANT", "cpu")
    return out / f"inference-appliance-{version}-{variant}-setup.exe"
