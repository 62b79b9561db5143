"""The screen and the driver as fixtures; nothing that a test started is left behind."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load() -> ModuleType:
    # tests are no package (import-mode importlib), so a helper beside them is loaded by its path
    name = "desktop_screen"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("screen.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def desktop() -> ModuleType:
    """The helpers of screen.py, if this machine has what they need."""
    if sys.platform == "win32":
        pytest.skip("this needs an X server")
    module = _load()
    lacking = module.missing()
    if lacking:
        pytest.skip(lacking)
    return module


@pytest.fixture
def start(desktop: ModuleType, tmp_path: Path) -> Iterator[Callable[..., tuple]]:
    """start(backend, bus=…, host=…, gobject=…) gives (screen, driver); notes=True: (screen, driver, notes)."""
    closers: list[Callable[[], None]] = []

    def begin(
        backend: str | None = None, *, bus: bool = True, host: bool = True, gobject: bool = True, notes: bool = False
    ) -> tuple:
        folder = desktop.gobject_folder(tmp_path) if gobject else None
        if gobject and folder is None:
            pytest.skip("PyGObject of the system does not fit this Python")
        context = desktop.session(tmp_path, bus=bus, host=host)
        screen = context.__enter__()
        closers.append(lambda: context.__exit__(None, None, None))
        if notes:
            noted = desktop.Driver(screen, folder, program="notification_host.py")
            closers.append(noted.close)
            desktop.until(lambda: noted.said("started"))
        driver = desktop.Driver(screen, folder, backend)
        closers.append(driver.close)
        desktop.until(lambda: driver.said("started"))
        return (screen, driver, noted) if notes else (screen, driver)

    yield begin
    for close in reversed(closers):
        close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for the tests of one file, if there is one on this machine."""
    from tests.support import browser

    if lacking := browser.missing():
        pytest.skip(lacking)
    with browser.browser() as started:
        yield started


@pytest.fixture
def dashboard(chromium: Any) -> Iterator[Callable[..., Any]]:
    """dashboard(server, path, **context) opens a page. Whatever a browser complains of fails the test."""
    from tests.support.browser import Dashboard

    opened: list[Dashboard] = []

    def begin(server: Any, path: str = "/", **context: Any) -> Dashboard:
        opened.append(Dashboard(chromium, server, path, **context))
        return opened[-1]

    yield begin
    for page in opened:
        page.close()
