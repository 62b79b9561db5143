"""The dashboard's frame and its live view."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import nets
from tests.support.server import PHOTOS, Server

CAT = (PHOTOS / "chelsea.png").read_bytes()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded models, one that takes its time, and one that is broken."""
    server = Server(tmp_path_factory.mktemp("live"), embedded=True)
    (server.models / "slow").mkdir()
    (server.models / "slow" / "model.toml").write_text(
        'backend = "fake"\n[backend_options]\nrun_ms = 600\n[warmup]\nenabled = false\n[batching]\nmax = 1\n'
    )
    with server:
        yield server


def slow(server: Server) -> None:
    httpx.post(f"{server.url}/predict/slow", json={"inputs": {"x": [[1.0]]}}, timeout=60, trust_env=False)


def test_it_tells_the_state_and_how_the_device_was_chosen(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.until("document.getElementById('state').dataset.kind === 'good'")
    assert board.text("#state") == "Ready"
    assert board.text("#device") == "cpu · setting: cpu"
    assert board.text("#version") == server.status()["version"]
    assert board.page.title() == "Ready · Inference Appliance"
    assert all(url.startswith((server.url, "blob:", "data:")) for url in board.asked), "nothing from elsewhere"


def test_numbers_queues_errors_and_memory(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.until("document.querySelectorAll('#queues tbody tr').length >= 6")
    waiters = [threading.Thread(target=slow, args=(server,)) for _ in range(6)]
    for waiter in waiters:
        waiter.start()
    row = board.page.locator("#queues tr", has_text="slow")
    board.until("Number(document.querySelector('#tile-waiting .value').textContent) >= 2")
    assert row.locator("td").nth(1).inner_text() == "1 / 1"
    assert "Busy" in board.text("#state")
    for _ in range(4):
        assert server.client.post("/predict/classify", content=CAT).status_code == 200
    for _ in range(3):
        assert server.client.post("/predict/classify", content=b"no picture").status_code == 415
    for waiter in waiters:
        waiter.join()
    board.until("document.querySelector('#errors li b')?.textContent === '3'")
    assert board.text("#errors code") == "unsupported_media"
    assert board.text("#tile-errors .value") == "3"
    board.until("document.querySelector('#tile-p50 .value').textContent.endsWith('ms')")
    ours = server.status()["memory"]["cpu"]["models"]
    named = board.page.locator("#memory .legend li span").all_inner_texts()
    assert set(named) >= {name for name, size in ours.items() if size >= 1 << 20} | {"Other programs", "Free"}
    assert board.page.locator("#memory .membar").get_attribute("aria-label").startswith("cpu: ")


def test_what_was_before_is_there_when_it_is_opened(server: Server, dashboard: Callable[..., Any]) -> None:
    server.client.post("/predict/classify", content=CAT)
    known = server.wait_for(lambda: server.client.get("/api/history").json()["at"][2:], 30, "three samples")
    board = dashboard(server)
    board.until("document.querySelectorAll('#charts .u-legend').length === 4")
    board.until("[...document.querySelectorAll('#charts .plot')].every((plot) => plot.getAttribute('aria-label'))")
    labels = [plot.get_attribute("aria-label") for plot in board.page.locator("#charts .plot").all()]
    assert [label.split(":")[0] for label in labels] == ["Memory", "Queue", "Latency", "Requests per second, errors"]
    assert re.search(r"Ours [\d,.]+ [MG]iB, Other programs [\d,.]+ [MG]iB, Total [\d,.]+ GiB", labels[0])
    inked = "(c) => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v)"
    assert all(board.page.locator("#charts canvas").nth(i).evaluate(inked) for i in range(4))
    server.wait_for(lambda: server.client.get(f"/api/history?since={known[-1]}").json()["at"], 30, "a new one")
    with board.page.expect_response(lambda response: "/api/history?since=" in response.url) as asked:
        pass
    assert float(asked.value.url.partition("since=")[2]) >= known[-1], "only what is new is asked for"


def test_pause_and_resume(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.page.get_by_role("button", name="Pause").click()
    board.until("document.getElementById('state').textContent === 'Paused'")
    assert server.status()["queue"]["paused"] is True
    board.page.get_by_role("button", name="Resume").click()
    board.until("document.getElementById('state').textContent === 'Ready'")
    assert server.status()["queue"]["paused"] is False


def test_an_engine_that_is_killed_while_the_page_is_open(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.until("document.querySelector('#engine dd')?.textContent === 'ready'")
    before = server.status()["engine"]["restarts"]
    pid = server.engine_pid
    os.kill(pid, signal.SIGKILL)
    notice = board.page.locator(".notice", has_text="The engine was restarted")
    notice.wait_for()
    assert "signal 9" in notice.inner_text()
    assert "signal 9" in board.page.locator(".deaths li").first.inner_text()
    board.until(f"!document.getElementById('engine').textContent.includes('{pid}')")
    board.until("document.getElementById('state').textContent === 'Ready'")
    assert board.page.locator("#engine dd").nth(4).inner_text() == str(before + 1)
    notice.get_by_role("button", name="Close").click()
    notice.wait_for(state="detached")
    assert server.client.post("/predict/classify", content=CAT).status_code == 200
    board.keep("engine")


def test_a_broken_model_is_told_of(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.until("document.getElementById('state').textContent === 'Ready'")
    file = server.models / "broken.onnx"
    file.write_bytes(b"no model at all")
    board.page.locator(".notice", has_text="broken").wait_for()
    assert board.text("#state") == "Degraded"
    file.unlink()
    board.page.locator(".notice", has_text="broken").wait_for(state="detached")


def test_an_appliance_that_goes_and_comes_back(tmp_path: Path, dashboard: Callable[..., Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(tmp_path, port=port)
    nets.scale(server.models / "scale.onnx")
    with server:
        board = dashboard(server)
        board.until("document.getElementById('state').textContent === 'Ready'")
        server.stop()
        board.until("document.getElementById('state').textContent === 'Not reachable'")
        board.page.locator(".notice", has_text="does not answer").wait_for()
        assert board.page.locator("#pause").is_disabled()
        server.start()
        board.until("document.getElementById('state').textContent === 'Ready'")
        board.page.locator(".notice", has_text="does not answer").wait_for(state="detached")
    assert all("Failed to load resource" in fault or "ERR_" in fault for fault in board.faults)
    board.faults.clear()


def test_colours_are_the_systems_or_the_persons_own(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server, color_scheme="dark")
    shade = "getComputedStyle(document.body).backgroundColor"
    dark = board.page.evaluate(shade)
    button = board.page.locator("#theme")
    assert button.get_attribute("aria-label") == "Colours: as the system"
    button.click()
    light = board.page.evaluate(shade)
    assert button.get_attribute("aria-label") == "Colours: light" and light != dark
    board.page.reload()
    assert board.page.evaluate(shade) == light, "it is kept"
    button.click()
    assert board.page.evaluate(shade) == dark
    button.click()
    assert board.page.evaluate("localStorage.getItem('theme')") == "auto"


@pytest.mark.parametrize(
    ("locale", "tag", "tabs"),
    [
        ("de-AT", "de", "Live Modelle Ausprobieren"),
        ("zh-CN", "zh", "实时 模型 试用"),
        ("fr-FR", "en", "Live Models Try it"),
    ],
)
def test_the_persons_language(
    server: Server, dashboard: Callable[..., Any], locale: str, tag: str, tabs: str
) -> None:
    board = dashboard(server, locale=locale)
    assert board.page.evaluate("document.documentElement.lang") == tag
    assert " ".join(board.page.locator("nav a:visible").all_inner_texts()) == tabs
    assert board.page.locator("#language").input_value() == tag


def test_another_language_can_be_chosen(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.page.select_option("#language", "de")
    board.until("document.getElementById('state').textContent === 'Bereit'")
    assert board.text("#memory-title") == "Speicher"
    board.until("document.querySelector('#tile-waiting h2')?.textContent === 'Wartend'")
    board.page.reload()
    board.until("document.getElementById('state').textContent === 'Bereit'")


def test_every_text_is_there_in_three_languages(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    texts: dict[str, list[str]] = board.page.evaluate("import('/web/js/texts.js').then((m) => m.TEXTS)")
    for name, row in texts.items():
        assert len(row) == 3 and all(text.strip() for text in row), name
        assert len({tuple(sorted(re.findall(r"\{\w+\}", text))) for text in row}) == 1, name
    web = Path(__file__).resolve().parents[2] / "appliance" / "web"
    used = set()
    for file in [web / "index.html", *web.glob("js/*.js")]:
        named = r"""(?:\bt\(|data-t=|data-t-label=|"data-t": |"data-t-label": )"([a-z0-9_]+)\""""
        used |= set(re.findall(named, file.read_text("utf-8")))
    assert used <= set(texts)


def test_the_doctor_looks_at_the_machine(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.page.get_by_role("button", name="Examine this machine").click()
    board.page.locator(".findings li").first.wait_for(timeout=100_000)
    told = server.client.get("/api/doctor", timeout=100).json()["checks"]
    lines = board.page.locator(".findings li").all_inner_texts()
    assert len(lines) == len(told)
    assert all(check["check"] in line and check["cure"] in line for check, line in zip(told, lines, strict=True))
    board.keep("doctor")


def test_an_idle_page_costs_little(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server)
    board.until("document.querySelectorAll('#charts .u-legend').length === 4")
    board.asked.clear()
    time.sleep(6)
    assert len(board.asked) <= 2, "one question for new samples in five seconds, and nothing else"
