"""The dashboard in a real Chromium. What the browser complains of fails the test that caused it."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.server import Server

SCREENSHOTS = os.environ.get("APPLIANCE_TEST_SCREENSHOTS")  # a folder that keeps what tests have seen


def missing() -> str | None:
    """Why there can be no browser here, or None."""
    if chromium() is None:
        return "there is no Chromium on this machine"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return None


def chromium() -> str | None:
    """Chromium's program."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium. Playwright's loop counts as running until the end: no ``asyncio.run`` beside it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--force-color-profile=srgb"]
        )
        try:
            yield started
        finally:
            started.close()


class Dashboard:
    """One page of one server. ``faults``: what the browser complained of; empty it where that was expected."""

    def __init__(self, browser: Any, server: Server, path: str = "/", **context: Any) -> None:
        self.server = server
        self.faults: list[str] = []
        self.asked: list[str] = []
        options = {"viewport": {"width": 1440, "height": 900}, "locale": "en-US", **context}
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(20_000)
        self.page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(server.url + path)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def close(self) -> None:
        """Fails for what the browser complained of."""
        self.context.close()
        assert self.faults == []

    def view(self, name: str) -> None:
        """Go to ``live``, ``models`` or ``try`` by its link."""
        self.page.click(f"nav a[data-view={name}]")
        self.page.wait_for_selector(f"#{name}:not([hidden])")

    def card(self, model: str) -> Any:
        """A model's card."""
        return self.page.locator(f"[data-model='{model}']")

    def text(self, selector: str) -> str:
        found: str = self.page.locator(selector).inner_text()
        return found

    def until(self, script: str) -> None:
        """Wait until a JavaScript expression is true. Playwright's own way needs eval, which the page forbids."""
        deadline = time.monotonic() + 20
        while not self.page.evaluate(f"Boolean({script})"):
            assert time.monotonic() < deadline, script
            self.page.wait_for_timeout(50)

    def keep(self, name: str, whole: bool = True) -> None:
        """Keep a picture of the page, if there is a folder for such."""
        if SCREENSHOTS:
            self.page.evaluate("window.scrollTo(0, 0)")
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=whole)
