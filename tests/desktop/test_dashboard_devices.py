"""The dashboard with several engines: each of them, the copies of a model, and the end of one."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.process.helpers import fake, infer
from tests.support.server import Server

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two engines on the CPU, a model with a copy in each, and one that lives in one of them."""
    server = Server(tmp_path_factory.mktemp("devices"), device="cpu:0,cpu:1")
    fake(server.models, "both", 'devices = ["all"]', run_ms=1)
    fake(server.models, "one", 'devices = ["cpu:1"]', run_ms=1)
    with server:
        server.wait_for(lambda: copies(server) == {"both": ["cpu:0", "cpu:1"], "one": ["cpu:1"]}, what="all copies")
        yield server


def copies(server: Server) -> dict[str, list[str]]:
    models = server.status()["models"]
    return {m["name"]: sorted(copy["device"] for v in m["versions"] for copy in v["copies"]) for m in models}


def engine(board: Any, name: str) -> dict[str, str]:
    """What is told of an engine; ``state`` is its pill."""
    part = board.page.locator(f"[data-engine='{name}']")
    names, values = part.locator("dt").all_inner_texts(), part.locator("dd").all_inner_texts()
    return {"state": part.locator(".pill").inner_text(), **dict(zip(names, values, strict=True))}


def facts(card: Any) -> dict[str, str]:
    return dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))


def test_each_engine_is_told_of(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.until("document.querySelectorAll('#engine [data-kind=good]').length === 2")
    assert board.text("#engine-title") == "Engines"
    assert board.text("#device") == "cpu:0, cpu:1 · setting: cpu:0,cpu:1"
    for told in server.status()["engines"]:
        shown = engine(board, told["id"])
        assert (shown["state"], shown["Process"], shown["Restarts"]) == ("ready", str(told["pid"]), "0")
        assert shown["Memory"].endswith("MiB")
    assert board.page.locator("#memory .device-memory").count() == 1, "they share the system's memory"
    row = board.page.locator("#queues tr", has_text="both")
    assert row.locator("td").nth(1).inner_text() == "0 / 2", "a lane in each engine"
    board.page.select_option("#language", "de")
    board.until("document.querySelector('[data-engine=\"cpu:1\"] .pill')?.textContent === 'bereit'")
    assert board.text("#engine-title") == "Engines"


def test_a_model_tells_where_its_copies_are(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server, "/#/models", viewport=PHONE)
    card = board.card("both")
    card.get_by_text("Ready").wait_for()
    shown = facts(card)
    assert shown["Device"] == "cpu:0, cpu:1"
    assert [line.split(" · ")[0] for line in shown["Copies"].splitlines()] == ["cpu:0", "cpu:1"]
    alone = facts(board.card("one"))
    assert alone["Device"] == "cpu:1" and "Copies" not in alone
    assert board.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    board.keep("devices-models-phone")


def test_the_end_of_one_engine_is_shown_at_that_one(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.until("document.querySelectorAll('#engine [data-kind=good]').length === 2")
    before = {name: engine(board, name) for name in ("cpu:0", "cpu:1")}
    os.kill(int(before["cpu:1"]["Process"]), signal.SIGKILL)
    notice = board.page.locator(".notice", has_text="Engine cpu:1 was restarted")
    notice.wait_for()
    assert "signal 9" in notice.inner_text()
    board.page.locator("[data-engine='cpu:1'] .deaths li", has_text="signal 9").wait_for()
    board.until("document.querySelectorAll('#engine [data-kind=good]').length === 2")
    after = engine(board, "cpu:1")
    assert after["Restarts"] == str(int(before["cpu:1"]["Restarts"]) + 1)
    assert after["Process"] != before["cpu:1"]["Process"]
    other = engine(board, "cpu:0")
    assert (other["Process"], other["Restarts"]) == (before["cpu:0"]["Process"], "0")
    assert board.page.locator("[data-engine='cpu:0'] .deaths").count() == 0
    server.wait_for(lambda: copies(server)["both"] == ["cpu:0", "cpu:1"], what="its copy again")
    assert infer(server.client, "both", 2).status_code == 200
    board.keep("devices-live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_is_accessible(server: Server, dashboard: Callable[..., Any], scheme: str) -> None:
    from tests.desktop.test_dashboard_looks import axe

    board = dashboard(server, viewport=PHONE, color_scheme=scheme)
    board.until("document.querySelectorAll('#engine [data-engine]').length === 2")
    assert board.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert axe(board) == []
    board.keep(f"devices-live-phone-{scheme}")


def test_a_reason_is_told_with_its_device(server: Server, dashboard: Callable[..., Any]) -> None:
    """Two cards, one of which could not be used for a model: as the status would tell it."""
    board = dashboard(server, "/#/models")
    board.card("both").get_by_text("Ready").wait_for()
    status = server.status()
    status["engines"].append({**status["engines"][0], "id": "cuda:0/torch"})
    (model,) = [m for m in status["models"] if m["name"] == "both"]
    model["versions"][0]["device_reason"] = "no kernel image"
    model["versions"][0]["copies"] = [
        {"engine": "cuda:0/torch", "device": "cuda:0", "reason": None, "memory_bytes": 2 << 30},
        {"engine": "cuda:1", "device": "cpu", "reason": "no kernel image", "memory_bytes": 3 << 20},
    ]
    html = board.page.evaluate(
        "(status) => import('/web/js/models.js')"
        ".then((m) => { m.show(status); return document.querySelector('[data-model=both]').innerText; })",
        json.loads(json.dumps(status)),
    )
    lines = html.splitlines()
    assert "cpu: no kernel image" in lines
    assert "cuda:0 (engine cuda:0/torch) · 2 GiB" in lines
    assert "cpu (engine cuda:1) · 3 MiB · no kernel image" in lines


def test_the_memory_of_several_cards_is_a_line_each(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.until("document.querySelectorAll('#charts .u-legend').length === 4")
    known = server.wait_for(lambda: server.client.get("/api/history").json(), 30, "a sample")
    size = {"total": [8 << 30], "ours": [1 << 30], "others": [2 << 30]}
    at = max([0, *known["at"]]) + 60
    sample = {key: [1] for key in known if key != "memory"} | {
        "at": [at],
        "memory": {"cuda:0": size, "cuda:1": size, "cpu": size},
    }
    board.page.route("**/api/history*", lambda route: route.fulfill(json=sample))
    board.until("document.querySelector('#charts .plot').getAttribute('aria-label')?.includes('cuda:1')")
    label = board.page.locator("#charts .plot").first.get_attribute("aria-label")
    assert label == "Memory: cuda:0 3 GiB, cuda:1 3 GiB"
