"""``appliance tray``: the icon of an appliance that runs in another process."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from appliance.tray import menu
from appliance.tray.state import State, TrayState
from tests.support.server import ROOT, Server

Begin = Callable[[str], tuple[Any, Callable[..., subprocess.Popen[bytes]]]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "service") as started:
        yield started


@pytest.fixture
def begin(desktop: ModuleType, tmp_path: Path, server: Server) -> Iterator[Begin]:
    """begin(backend) gives the screen, and what starts an ``appliance tray`` there."""
    closers: list[Callable[[], None]] = []

    def started(backend: str) -> tuple[Any, Callable[..., subprocess.Popen[bytes]]]:
        folder = desktop.gobject_folder(tmp_path)
        if backend != "xorg" and folder is None:
            pytest.skip("PyGObject of the system does not fit this Python")
        context = desktop.session(tmp_path)
        screen = context.__enter__()
        closers.append(lambda: context.__exit__(None, None, None))

        def tray(*words: str) -> subprocess.Popen[bytes]:
            env = {
                **screen.env,
                **{name: value for name, value in server.env.items() if name.startswith("APPLIANCE_")},
            }
            env |= {"PYSTRAY_BACKEND": backend, "PYTHONPATH": str(folder or "")}
            process = subprocess.Popen(
                [sys.executable, "-m", "appliance", "tray", *words], cwd=ROOT, env=env, stdout=subprocess.PIPE
            )
            closers.append(lambda: end(process))
            return process

        return screen, tray

    yield started
    for close in reversed(closers):
        close()


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def shows(screen: Any, state: State, **more: Any) -> bool:
    """Whether the icon has this state's colour in a good part of it."""
    wanted = menu.colour(TrayState(state=state, address="", device="", **more))
    colour = tuple(int(wanted[i : i + 2], 16) for i in (1, 3, 5))
    place = screen.icon()
    if place is None:
        return False
    x, y, width, height = place
    with Image.open(screen.shot("tray-of-a-service")) as picture:
        part = picture.convert("RGB").crop((x, y, x + width, y + height))
        pixels = [part.getpixel((i, j)) for j in range(height) for i in range(width)]
    near = sum(all(abs(a - b) <= 12 for a, b in zip(pixel, colour, strict=True)) for pixel in pixels)
    return near > 0.25 * len(pixels)


@pytest.mark.parametrize("backend", ["gtk", "xorg"])
def test_it_follows_a_service_that_goes_and_comes_and_goes_alone(
    desktop: ModuleType, begin: Begin, server: Server, backend: str
) -> None:
    screen, tray = begin(backend)
    process = tray()
    desktop.until(lambda: shows(screen, "ready"), 30)

    second = tray()
    assert second.communicate(timeout=30)[0] == b"this icon is shown already\n"
    assert second.returncode == 0

    server.stop()
    desktop.until(lambda: shows(screen, "stopped"), 30)
    server.start()  # on another port, which it finds
    desktop.until(lambda: shows(screen, "ready"), 30)
    server.client.post("/api/pause")
    desktop.until(lambda: shows(screen, "paused"), 30)

    process.terminate()
    assert process.wait(15) == 0
    assert server.status()["state"] == "paused"


def test_its_menu_asks_the_service_and_quits_without_it(desktop: ModuleType, begin: Begin, server: Server) -> None:
    screen, tray = begin("gtk")
    process = tray("--url", server.url)
    desktop.until(lambda: shows(screen, "ready"), 30)
    time.sleep(0.5)
    screen.click(3)
    time.sleep(1)
    # from the end: Quit, About, Save a diagnostic file, Restart engine, Pause
    screen.run("xdotool", "key", "Up", "Up", "Up", "Up", "Up", "Return")
    server.wait_for(lambda: server.status()["queue"]["paused"], 15, "the pause")
    desktop.until(lambda: shows(screen, "paused"), 30)
    screen.click(3)
    time.sleep(1)
    screen.run("xdotool", "key", "Up", "Return")
    assert process.wait(15) == 0
    assert server.status()["state"] == "paused"


def test_where_no_icon_can_be_shown_it_says_so_and_ends(server: Server) -> None:
    env = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")} | server.env
    env = {name: value for name, value in env.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-m", "appliance", "tray"], cwd=ROOT, env=env, capture_output=True, timeout=60
    )
    if sys.platform == "linux":
        assert (done.returncode, done.stdout[:13]) == (1, b"no tray icon ")
    wrong = ["tray", "--url", "localhost:11711"]
    done = subprocess.run(
        [sys.executable, "-m", "appliance", *wrong], cwd=ROOT, env=env, capture_output=True, timeout=60
    )
    assert (done.returncode, b"is no address" in done.stdout) == (2, True)
