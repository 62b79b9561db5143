"""The dashboard on a large and a small screen, for the keyboard and for a screen reader, and with a key."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.desktop.test_dashboard_try import tried
from tests.support import nets
from tests.support.server import PHOTOS, Server

KEY = "a-key-of-mine"
SCREENS = {"4k": (3840, 2160), "desk": (1440, 900), "phone": (390, 844)}
VIEWS = ("live", "models", "try")


@pytest.fixture(scope="module")
def busy(embedded: Server) -> Iterator[Server]:
    """The embedded models, asked all the time."""
    stop = threading.Event()

    def ask(model: str, photo: str) -> None:
        body = (PHOTOS / photo).read_bytes()
        with httpx.Client(base_url=embedded.url, trust_env=False, timeout=60) as client:
            while not stop.wait(0.05):
                client.post(f"/predict/{model}", content=body)

    asked = [
        ("classify", "chelsea.png"),
        ("classify", "coffee.png"),
        ("detect", "coffee.png"),
        ("segment", "astronaut.png"),
    ]
    threads = [threading.Thread(target=ask, args=pair) for pair in asked]
    for thread in threads:
        thread.start()
    yield embedded
    stop.set()
    for thread in threads:
        thread.join()


def axe(board: Any) -> list[str]:
    """What axe finds wrong: rule, and where."""
    from axe_playwright_python.sync_playwright import Axe

    board.page.wait_for_timeout(400)  # colours that change slowly have no contrast yet
    found = Axe().run(board.page).response["violations"]
    return [f"{one['id']}: {node['target']} {node['failureSummary']}" for one in found for node in one["nodes"]]


def fill(board: Any, view: str) -> None:
    """Open a view with something in it."""
    board.view(view)
    if view == "try":
        tried(board, "detect", "coffee")
    elif view == "live":
        board.until("document.querySelectorAll('#charts .u-legend').length === 4")
        board.until("document.querySelector('#tile-p50 .value')?.textContent.endsWith('ms')")
    else:
        board.until("document.querySelectorAll('.card').length >= 7")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_every_view_fits_and_is_accessible(
    busy: Server, dashboard: Callable[..., Any], screen: str, scheme: str
) -> None:
    width, height = SCREENS[screen]
    board = dashboard(busy, viewport={"width": width, "height": height}, color_scheme=scheme)
    for view in VIEWS:
        fill(board, view)
        wide = board.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"{view}: something sticks out at the right"
        small = board.page.evaluate(
            """[...document.querySelectorAll("button, a, select, input")]
            .filter((e) => e.checkVisibility() && e.type !== "file")
            .filter((e) => e.getBoundingClientRect().height < 24).map((e) => e.outerHTML)"""
        )
        assert small == [], f"{view}: too small for a finger"
        if screen != "4k" or scheme == "light":
            assert axe(board) == [], view
        board.keep(f"{view}-{screen}-{scheme}")


@pytest.mark.parametrize("locale", ["de-DE", "zh-CN"])
def test_other_languages_fit_too(busy: Server, dashboard: Callable[..., Any], locale: str) -> None:
    board = dashboard(busy, viewport={"width": 390, "height": 844}, locale=locale)
    for view in VIEWS:
        fill(board, view)
        assert board.page.evaluate("document.documentElement.scrollWidth") <= 390, view
        board.keep(f"{view}-{locale}")


def test_all_can_be_reached_with_the_keyboard(embedded: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(embedded)
    board.until("document.querySelectorAll('.card').length >= 7")
    board.page.keyboard.press("Tab")
    assert board.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    seen = []
    for _ in range(60):
        board.page.keyboard.press("Tab")
        seen.append(board.page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        if board.page.evaluate("document.activeElement === document.body"):
            break
    assert seen[:3] == ["Live", "Models", "Try it"]
    assert {"pause", "language", "theme", "queues"} <= set(seen)
    board.page.locator("nav a[data-view=models]").press("Enter")
    board.page.wait_for_selector("#models:not([hidden])")
    board.page.locator("[data-model=segment] [data-act=pin]").focus()
    board.page.keyboard.press("Enter")
    board.until("document.querySelector('[data-model=segment] .pin').getAttribute('aria-pressed') === 'true'")
    assert board.page.evaluate("document.activeElement.dataset.act") == "pin", "the focus stays"
    board.page.keyboard.press("Enter")
    board.until("document.querySelector('[data-model=segment] .pin').getAttribute('aria-pressed') === 'false'")


def test_the_key_is_asked_for_and_sent(tmp_path: Path, dashboard: Callable[..., Any]) -> None:
    server = Server(tmp_path, api_key=KEY)
    server.client.headers["X-API-Key"] = KEY
    nets.scale(server.models / "scale.onnx")
    with server:
        board = dashboard(server)
        board.page.wait_for_selector("#ask-key[open]")
        board.page.get_by_role("button", name="Cancel").click()
        board.until("document.getElementById('state').textContent === 'Locked'")
        board.page.get_by_role("button", name="API key").click()
        board.page.fill("#key-value", "not-the-key-at-all")
        board.page.keyboard.press("Enter")
        board.page.get_by_text("That is not the key.").wait_for()
        assert axe(board) == []
        board.page.fill("#key-value", KEY)
        board.page.get_by_role("button", name="Continue").click()
        board.until("document.getElementById('state').textContent === 'Ready'")
        board.view("models")
        board.card("scale").get_by_role("button", name="Unload").click()
        board.card("scale").get_by_text("Not loaded").wait_for()
        board.card("scale").get_by_role("button", name="Load", exact=False).click()
        board.card("scale").get_by_text("Ready").wait_for()
        board.page.set_input_files("#add-file", nets.scale(tmp_path / "two.onnx"))
        board.page.click("#add-go")
        board.page.locator(".result[data-kind=good]").wait_for()
        board.view("try")
        assert "YOUR-KEY" in board.text("#code") and KEY not in board.page.content()
        assert board.page.evaluate("sessionStorage.getItem('api-key')") == KEY
        assert board.page.evaluate("JSON.stringify(localStorage)").find(KEY) == -1
        board.page.reload()
        board.until("document.getElementById('state').textContent === 'Ready'")
        assert all("401" in fault for fault in board.faults), board.faults
        board.faults.clear()
