"""A real tray icon in a real X session: what it looks like, what its menu does, and how it ends."""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from PIL import Image

from appliance.tray import menu
from appliance.tray.state import TrayState

ADDRESS = "http://127.0.0.1:11711"
STATES = ("ready", "busy", "degraded", "stopped", "paused", "starting")
BACKENDS = ("appindicator", "gtk", "xorg")

Start = Callable[..., tuple]


def state(name: str, **more: object) -> str:
    """One line for the driver."""
    values = {"state": name, "address": ADDRESS, "device": "cuda:0 NVIDIA RTX 4060"}
    models = [
        {"name": "classify", "condition": "ready", "memory": 61 << 20, "device": "cuda:0"},
        {"name": "detect", "condition": "ready", "memory": 37 << 20, "device": "cuda:0", "pinned": True},
        {"name": "yolo", "condition": "unloaded"},
    ]
    parts = [("classify", 61 << 20), ("detect", 37 << 20), ("runs and runtime", 700 << 20), ("free", 5 << 30)]
    full = {"memory_used": 3 << 30, "memory_total": 8 << 30, "memory_parts": parts, "models": models}
    full |= {"starts_at_login": True, "about": ["Version 0.1.0", "ONNX Runtime 1.32.0"]}
    return json.dumps(values | full | more)


def state_of(name: str) -> TrayState:
    return TrayState(state=name, address="", device="")


def icon_pixels(screen, file: Path) -> list[tuple[int, int, int]]:
    """The pixels of the icon in a picture of the screen."""
    x, y, width, height = screen.icon()
    with Image.open(file) as picture:
        part = picture.convert("RGB").crop((x, y, x + width, y + height))
        return [part.getpixel((i, j)) for j in range(height) for i in range(width)]


def near(pixel: tuple[int, int, int], colour: str) -> bool:
    """Within what scaling changes."""
    wanted = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return all(abs(a - b) <= 12 for a, b in zip(pixel, wanted, strict=True))


def shows(screen, file: Path, colour: str) -> bool:
    """Whether the colour covers a good part of the icon."""
    pixels = icon_pixels(screen, file)
    return sum(near(pixel, colour) for pixel in pixels) > 0.25 * len(pixels)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_state_has_its_colour_and_its_sign(desktop: ModuleType, start: Start, backend: str) -> None:
    screen, driver = start(backend)
    desktop.until(screen.icon)
    signs = []
    for name in STATES:
        driver.send(state(name))
        wanted = menu.colour(state_of(name))
        file = f"icon-{backend}-{name}"
        desktop.until(lambda file=file, wanted=wanted: shows(screen, screen.shot(file), wanted))
        pixels = icon_pixels(screen, desktop.SHOTS / f"{file}.png")
        signs.append(tuple(near(pixel, wanted) for pixel in pixels))
    assert len(set(signs)) == len(STATES)  # told apart without colour, too


@pytest.mark.parametrize("backend", ["appindicator", "gtk"])
def test_the_menu_opens_stays_open_while_it_changes_and_quits(
    desktop: ModuleType, start: Start, backend: str
) -> None:
    screen, driver = start(backend)
    desktop.until(screen.icon)
    reason = "CUDA was asked for, but libcudnn.so.9 was not found; cuDNN 9 is needed: install the extra 'cuda'"
    driver.send(state("degraded", device="CPU", device_reason=reason, running=2, queued=5))
    wanted = menu.colour(state_of("degraded"))
    desktop.until(lambda: shows(screen, screen.shot(f"menu-{backend}"), wanted))
    time.sleep(0.5)
    before = len(screen.windows("tray_driver"))
    screen.click(3)

    def menu_window() -> tuple[int, int, int, int] | None:
        return next((w for w in screen.windows("tray_driver") if w[2] > 200 and w[3] > 200), None)

    x, y, width, height = desktop.until(menu_window)
    assert len(screen.windows("tray_driver")) > before
    first = screen.shot(f"menu-{backend}")
    inked = Counter(Image.open(first).convert("L").crop((x, y, x + width, y + height)).tobytes())
    assert inked[255] > 0.5 * width * height  # GTK's white menu …
    assert sum(count for level, count in inked.items() if level < 200) > 500  # … with text on it

    driver.send(state("degraded", device="CPU", device_reason=reason, running=1, queued=4))
    desktop.until(lambda: screen.shot(f"menu-{backend}-later").read_bytes() != first.read_bytes())
    assert menu_window() == (x, y, width, height)  # the numbers changed, the menu stayed

    screen.run("xdotool", "mousemove", str(x + 60), str(y + height - 14), "click", "1")
    desktop.until(lambda: driver.said("action quit"))
    assert driver.process.wait(5) == 0
    assert driver.said("ended None")


@pytest.mark.parametrize("backend", ["appindicator", "gtk"])
def test_a_model_is_chosen_two_menus_deep(desktop: ModuleType, start: Start, backend: str) -> None:
    screen, driver = start(backend)
    desktop.until(screen.icon)
    driver.send(state("busy", running=1))
    desktop.until(lambda: shows(screen, screen.shot(f"models-{backend}"), menu.colour(state_of("busy"))))
    time.sleep(0.5)

    def windows() -> list[tuple[int, int, int, int]]:
        return [w for w in screen.windows("tray_driver") if w[2] > 100 and w[3] > 60]

    screen.click(3)
    desktop.until(lambda: len(windows()) == 1)
    screen.run("xdotool", "key", "Down", "Down", "Right")  # grey lines are passed over: memory, models
    desktop.until(lambda: len(windows()) == 2)
    screen.run("xdotool", "key", "Down", "Right")  # the second model, "detect"
    desktop.until(lambda: len(windows()) == 3)
    screen.run("xdotool", "key", "Down", "Down")
    screen.shot(f"models-{backend}")
    three = set(windows())
    driver.send(state("busy", running=2))  # other numbers leave all three open
    time.sleep(1)
    assert three <= set(windows())  # beside them, a tooltip may be there
    screen.run("xdotool", "key", "Return")
    assert desktop.until(lambda: driver.said("action ")) == "action unpin_model detect"

    unpinned = [{"name": "detect", "condition": "ready"}]
    driver.send(state("busy", models=unpinned))  # a tick that is set by the program is no choice
    time.sleep(1)
    assert driver.said("action pin_model") is None


@pytest.mark.parametrize("backend", ["appindicator", "gtk"])
def test_what_a_person_should_know_reaches_the_desktop(desktop: ModuleType, start: Start, backend: str) -> None:
    screen, driver, notes = start(backend, notes=True)
    desktop.until(screen.icon)
    driver.send(state("degraded", device="CPU", device_reason="libcudnn.so.9 was not found"))
    told = desktop.until(lambda: notes.said("note "))
    assert told == "note Inference Appliance: Running on CPU: libcudnn.so.9 was not found"
    restarted = {"engine_restarts": 1, "engine_last_end": "killed"}
    driver.send(state("degraded", device="CPU", device_reason="libcudnn.so.9 was not found", **restarted))
    told = desktop.until(lambda: notes.said("note Inference Appliance: The engine"))
    assert told == "note Inference Appliance: The engine was restarted: killed"
    driver.send(state("ready", engine_restarts=2))
    time.sleep(1)
    assert notes.said("") == "started"
    assert len(notes.lines) == 3  # the second restart within a minute is not told


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_icon_uses_no_gpu(desktop: ModuleType, start: Start, backend: str) -> None:
    screen, driver = start(backend)
    desktop.until(screen.icon)
    screen.click(3)
    time.sleep(1)
    loaded = Path(f"/proc/{driver.process.pid}/maps").read_text()
    opened = [str(file.readlink()) for file in Path(f"/proc/{driver.process.pid}/fd").iterdir()]
    for name in ("libcuda", "libnvidia", "libGLX", "libEGL_", "libvulkan", "onnxruntime", "_dri.so"):
        assert name not in loaded, name
    assert not [file for file in opened if file.startswith(("/dev/dri", "/dev/nvidia"))]


@pytest.mark.parametrize("backend", ["gtk", "xorg"])
def test_a_click_opens_the_dashboard(desktop: ModuleType, start: Start, backend: str) -> None:
    screen, driver = start(backend)
    desktop.until(screen.icon)

    def clicked() -> str | None:
        screen.click(1)  # again: on a busy machine the icon is there before it listens
        time.sleep(1)
        return driver.said("action open_dashboard")

    desktop.until(clicked)


def test_without_a_session_bus_there_is_an_icon_without_a_menu(desktop: ModuleType, start: Start) -> None:
    screen, driver = start(None, bus=False)
    desktop.until(screen.icon)
    assert "no menu" in desktop.until(lambda: driver.said("say "))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_in_order(
    desktop: ModuleType, start: Start, backend: str, number: signal.Signals
) -> None:
    screen, driver = start(backend)
    desktop.until(screen.icon)
    assert desktop.stop_by_signal(driver, number) == 0
    assert driver.said("ended None")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_program_goes_on_when_the_display_dies(desktop: ModuleType, start: Start, backend: str) -> None:
    screen, driver = start(backend)
    desktop.until(screen.icon)
    screen.server.kill()
    reason = desktop.until(lambda: driver.said("ended "))
    assert reason != "ended None"
    driver.process.stdin.close()
    desktop.until(lambda: driver.said("went on"))
    assert driver.process.wait(5) == 0


@pytest.mark.parametrize("backend", ["appindicator", "gtk"])
def test_the_icon_waits_for_somebody_to_show_it(desktop: ModuleType, start: Start, backend: str) -> None:
    screen, driver = start(backend, host=False)
    assert "no program shows tray icons" in desktop.until(lambda: driver.said("say "))
    screen.start_tray_host()
    desktop.until(screen.icon)


def test_without_a_menu_and_a_host_it_gives_up(desktop: ModuleType, start: Start) -> None:
    _screen, driver = start("xorg", host=False)
    reason = desktop.until(lambda: driver.said("ended "), 20)
    assert reason == "ended no program shows tray icons in this session"


@pytest.mark.parametrize("backend", ["appindicator", "gtk"])
def test_the_icon_comes_back_with_a_new_tray_host(desktop: ModuleType, start: Start, backend: str) -> None:
    screen, driver = start(backend)
    desktop.until(screen.icon)
    screen.tray_host.kill()
    screen.tray_host.wait()
    time.sleep(0.5)
    assert driver.said("ended") is None
    screen.start_tray_host()
    desktop.until(screen.icon)
    driver.send(state("stopped"))
    wanted = menu.colour(state_of("stopped"))
    desktop.until(lambda: shows(screen, screen.shot(f"again-{backend}"), wanted))


def test_the_plain_icon_survives_its_tray_host(desktop: ModuleType, start: Start) -> None:
    screen, driver = start("xorg")
    desktop.until(screen.icon)
    screen.tray_host.kill()
    screen.tray_host.wait()
    driver.send(state("stopped"))
    time.sleep(1)
    assert driver.process.poll() is None
    assert desktop.stop_by_signal(driver, signal.SIGTERM) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_idle_icon_costs_nothing(desktop: ModuleType, start: Start, backend: str) -> None:
    screen, driver = start(backend)
    desktop.until(screen.icon)
    driver.send(state("ready"))
    time.sleep(2)
    process = psutil.Process(driver.process.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(4)
    assert sum(process.cpu_times()[:2]) - before <= 0.02


def test_an_unknown_backend_is_a_reason_not_a_crash(desktop: ModuleType, start: Start) -> None:
    _screen, driver = start("nonsense")
    assert "unknown backend" in desktop.until(lambda: driver.said("ended "))
