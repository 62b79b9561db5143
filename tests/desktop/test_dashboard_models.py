"""The dashboard's models: every button, and adding one."""

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import nets
from tests.support.server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One small model of the user's own."""
    server = Server(tmp_path)
    nets.scale(server.models / "scale.onnx")
    with server:
        yield server


def pinned(server: Server, model: str) -> bool:
    found: bool = next(m["pinned"] for m in server.status()["models"] if m["name"] == model)
    return found


def test_what_is_told_of_a_model(server: Server, dashboard: Callable[..., Any]) -> None:
    sent = {"inputs": {"x": [[1, 2, 3, 4]]}}
    assert server.client.post("/predict/scale", json=sent).status_code == 200
    assert server.client.post("/predict/scale", json={"inputs": {"x": [1]}}).status_code == 400
    board = dashboard(server, "/#/models")
    card = board.card("scale")
    card.get_by_text("Ready").wait_for()
    facts = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
    assert (facts["Version"], facts["Backend"], facts["Device"]) == ("1", "onnx", "cpu")
    assert facts["Batch"].startswith("up to 16") and facts["Requests"].startswith("1")
    assert "measured" in facts["A run takes"] and " for 1 · " in facts["A run takes"]


def test_unload_load_pin_and_try(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server, "/#/models")
    card = board.card("scale")
    card.get_by_role("button", name="Unload").click()
    card.get_by_text("Not loaded").wait_for()
    board.page.locator(".notice", has_text="“scale” is unloaded").wait_for()
    assert server.index()["scale", "1"]["state"] == "UNAVAILABLE"
    card.get_by_role("button", name="Load", exact=False).click()
    card.get_by_text("Ready").wait_for()
    assert server.index()["scale", "1"]["state"] == "READY"
    card.get_by_role("button", name="Pin").click()
    card.get_by_role("button", name="Pinned", pressed=True).wait_for()
    assert pinned(server, "scale") is True
    assert json.loads((server.state / "pinned.json").read_text()) == ["scale"]
    server.stop()
    server.start()
    assert pinned(server, "scale") is True, "a pin is kept"
    board.page.goto(server.url + "/#/models")
    card.get_by_role("button", name="Pinned").click()
    card.get_by_role("button", name="Pin", pressed=False).wait_for()
    assert pinned(server, "scale") is False
    card.get_by_role("button", name="Try it").click()
    board.page.wait_for_selector("#try:not([hidden])")
    assert board.page.locator("#try-model").input_value() == "scale"
    board.faults.clear()  # the connection was cut


def test_a_model_that_fails_to_load_says_why(server: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(server, "/#/models")
    (server.models / "scale.onnx").write_bytes(b"no model at all")
    board.card("scale").locator(".fault").wait_for()
    card = board.card("scale")
    assert "not an ONNX model" in card.locator(".fault").inner_text()
    card.get_by_role("button", name="Load", exact=False).first.click()
    board.page.locator(".notice[data-kind=bad]", has_text="not an ONNX model").wait_for()
    board.faults.clear()  # a 500 is written to the console


def test_add_a_file(server: Server, tmp_path: Path, dashboard: Callable[..., Any]) -> None:
    file = nets.scale(tmp_path / "My Net.onnx", 3.0)
    board = dashboard(server, "/#/models")
    board.page.set_input_files("#add-file", file)
    assert board.page.locator("#add-name").input_value() == "My-Net"
    board.page.fill("#add-name", "triple")
    board.page.click("#add-go")
    board.page.locator(".result[data-kind=good]").wait_for()
    assert board.text(".result").startswith("“triple” is well and serves.")
    board.card("triple").get_by_text("Ready").wait_for()
    answer = server.client.post("/predict/triple", json={"inputs": {"x": [[1, 2, 3, 4]]}}).json()
    assert answer["outputs"]["y"]["data"] == [3, 6, 9, 12]
    board.keep("models")


def test_drop_a_zip(server: Server, tmp_path: Path, dashboard: Callable[..., Any]) -> None:
    net = nets.scale(tmp_path / "model.onnx", 5.0)
    archive = tmp_path / "five.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(net, "five/1/model.onnx")
        file.writestr("five/model.toml", 'description = "five times"\n')
    board = dashboard(server, "/#/models")
    board.page.evaluate(
        """([bytes, name]) => {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array(bytes)], name));
            const event = new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true});
            document.querySelector("#add .drop").dispatchEvent(event);
        }""",
        [list(archive.read_bytes()), "five.zip"],
    )
    board.page.click("#add-go")
    board.page.locator(".result[data-kind=good]").wait_for()
    answer = server.client.post("/predict/five", json={"inputs": {"x": [[1, 0, 0, 2]]}}).json()
    assert answer["outputs"]["y"]["data"] == [5, 0, 0, 10]


def test_a_refused_model_is_told_in_words_and_leaves_nothing(
    server: Server, tmp_path: Path, dashboard: Callable[..., Any]
) -> None:
    file = tmp_path / "bad.onnx"
    file.write_bytes(b"no model at all")
    board = dashboard(server, "/#/models")
    board.page.set_input_files("#add-file", file)
    board.page.click("#add-go")
    board.page.locator(".result[data-kind=bad]").wait_for()
    assert "the model is refused: model.onnx: it is text, not an ONNX model" in board.text(".result")
    assert [path.name for path in server.models.iterdir()] == ["scale.onnx"]
    board.page.set_input_files("#add-file", tmp_path / "models" / "scale.onnx")
    board.page.click("#add-go")
    board.until("document.querySelector('.result').textContent.includes('already')")
    assert len(board.faults) == 2 and all("400" in fault for fault in board.faults)
    board.faults.clear()
