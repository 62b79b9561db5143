"""Trying models in the dashboard: what is drawn is what the API answers, and the calls to copy do work."""

import ast
import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import nets
from tests.support.server import PHOTOS, ROOT, Server

SAMPLES = ROOT / "assets" / "samples"
KINDS = ("curl", "Python", "JavaScript")


def tried(board: Any, model: str, sample: str) -> dict[str, Any]:
    """Choose a model and a sample; the API's answer that the page got."""
    board.page.wait_for_selector(f"#try-model option[value={model}]", state="attached")
    board.page.select_option("#try-model", model)
    board.page.wait_for_selector("#try-picture:not([hidden])")
    with board.page.expect_response(lambda r: f"/predict/{model}" in r.url and r.ok) as answered:
        board.page.click(f"[data-sample='{sample}.jpg']")
    board.page.wait_for_selector("#answer .frame")
    found: dict[str, Any] = answered.value.json()
    return found


def test_boxes_are_drawn_where_the_model_saw_something(embedded: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(embedded, "/#/try")
    answer = tried(board, "detect", "coffee")
    board.page.wait_for_selector("#answer .box")
    x1, y1, x2, y2 = answer["detections"][0]["box"]
    edge = board.page.locator("#answer .edge").last
    drawn = [float(edge.get_attribute(name)) for name in ("x", "y", "width", "height")]
    assert drawn == pytest.approx([x1, y1, x2 - x1, y2 - y1])
    assert board.page.locator("#answer svg").get_attribute("viewBox") == "0 0 600 400"
    image, over = (board.page.locator(f"#answer {one}").bounding_box() for one in ("img", "svg"))
    assert image == pytest.approx(over, abs=1), "the drawing lies exactly over the picture"
    assert "Coffee cup" in board.page.locator("#answer .bars").inner_text()
    assert "Coffee cup" in board.page.locator("#answer svg").get_attribute("aria-label")
    plate, words = (board.page.locator(f"#answer {one}").last.bounding_box() for one in (".plate", ".box text"))
    assert plate["x"] <= words["x"] and words["x"] + words["width"] <= plate["x"] + plate["width"] + 1
    board.keep("detect")


def test_labels_are_bars(embedded: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(embedded, "/#/try")
    answer = tried(board, "classify", "chelsea")
    assert answer["labels"][0]["label"] == "Egyptian cat"
    first = board.page.locator("#answer .bars li").first
    assert first.inner_text().startswith("Egyptian cat")
    share = float(first.locator(".score").evaluate("(e) => getComputedStyle(e).getPropertyValue('--share')"))
    assert share == pytest.approx(answer["labels"][0]["score"])
    board.page.fill("#try-wish", "2")
    board.page.click("#try-go")
    board.until("document.querySelectorAll('#answer .bars li').length === 2")
    assert "?top_k=2" in board.text("#code")


def test_a_mask_lies_over_the_subject(embedded: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(embedded, "/#/try")
    answer = tried(board, "segment", "astronaut")
    board.page.wait_for_selector("#answer canvas")
    alpha = "(c, [x, y]) => c.getContext('2d').getImageData(x, y, 1, 1).data[3]"
    canvas = board.page.locator("#answer canvas")
    assert canvas.evaluate(alpha, [220, 120]) > 100, "her face"
    assert canvas.evaluate(alpha, [480, 20]) < 30, "the wall behind her"
    assert f"{answer['coverage'] * 100:.1f} %" in board.text("#answer")


def test_lines_of_text_are_marked(embedded: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(embedded, "/#/try")
    board.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=embedded.url)
    answer = tried(board, "ocr", "receipt")
    board.page.wait_for_selector("#answer .line")
    assert board.page.locator("#answer .line").count() == len(answer["lines"]) >= 6
    assert board.text("#answer .read pre").startswith("CORNER CAFE\n2 espresso 4.80")
    board.page.get_by_role("button", name="Copy the text").click()
    board.page.get_by_role("button", name="Copied").wait_for()
    assert board.page.evaluate("navigator.clipboard.readText()") == answer["text"]


def test_a_picture_is_chosen_dropped_or_pasted(embedded: Server, dashboard: Callable[..., Any]) -> None:
    board = dashboard(embedded, "/#/try")
    board.until("document.getElementById('try-model').value === 'classify'")
    board.page.set_input_files("#try-file", PHOTOS / "coffee.png")
    board.page.locator("#answer .bars", has_text="espresso").wait_for()
    cat = base64.b64encode((SAMPLES / "chelsea.jpg").read_bytes()).decode()
    give = """([target, kind, cat]) => {
        const bytes = Uint8Array.from(atob(cat), (c) => c.charCodeAt(0));
        const data = new DataTransfer();
        data.items.add(new File([bytes], "cat.jpg", {type: "image/jpeg"}));
        const more = {bubbles: true, cancelable: true, clipboardData: data, dataTransfer: data};
        const event = new (kind === "paste" ? ClipboardEvent : DragEvent)(kind, more);
        document.querySelector(target).dispatchEvent(event);
    }"""
    board.page.evaluate(give, ["body", "paste", cat])
    board.page.locator("#answer .bars", has_text="Egyptian cat").wait_for()
    board.page.set_input_files("#try-file", PHOTOS / "coffee.png")
    board.page.locator("#answer .bars", has_text="espresso").wait_for()
    board.page.evaluate(give, ["#ask .drop", "drop", cat])
    board.page.locator("#answer .bars", has_text="Egyptian cat").wait_for()
    board.page.set_input_files("#try-file", {"name": "x.png", "mimeType": "image/png", "buffer": b"no picture"})
    board.page.locator("#answer .fault", has_text="unsupported_media").wait_for()
    assert len(board.faults) == 1 and "415" in board.faults[0]
    board.faults.clear()


def test_numbers(tmp_path: Path, dashboard: Callable[..., Any]) -> None:
    server = Server(tmp_path)
    nets.scale(server.models / "scale.onnx", 2.0)
    with server:
        board = dashboard(server, "/#/try")
        board.page.wait_for_selector("#try-words:not([hidden])")
        assert json.loads(board.page.locator("#try-text").input_value()) == {"inputs": {"x": [[0, 0, 0, 0]]}}
        assert board.text("#try-takes") == "It takes x FP32[-1, 4]"
        board.page.fill("#try-text", '{"inputs": {"x": [[1, 2, 3, 4.5]]}}')
        board.page.click("#try-go")
        board.page.wait_for_selector("#answer details[open]")
        assert json.loads(board.text("#answer pre"))["outputs"]["y"]["data"] == [2, 4, 6, 9]
        board.page.fill("#try-text", '{"inputs": {}}')
        board.page.click("#try-go")
        board.page.locator("#answer .fault", has_text="'x'").wait_for()
        assert len(board.faults) == 1 and "400" in board.faults[0]
        board.faults.clear()
        board.page.fill("#try-text", '{"inputs": {"x": [[1, 2, 3, 4]]}}')
        for kind, code in shown(board).items():
            answered = run(kind, code, tmp_path)
            assert answered is None or answered["outputs"]["y"]["data"] == [2, 4, 6, 8], kind


def shown(board: Any) -> dict[str, str]:
    """The calls to copy."""
    found = {}
    for kind in KINDS:
        board.page.get_by_role("tab", name=kind, exact=True).click()
        found[kind] = board.text("#code")
    return found


def run(kind: str, code: str, folder: Path) -> dict[str, Any] | None:
    """What a call answers, made as a person would make it; None where this machine cannot."""
    (folder / "call.mjs").write_text(code)
    local = code.replace("curl ", "curl -s --noproxy '*' ", 1)
    command = {
        "curl": ["bash", "-c", local],
        "Python": [sys.executable, "-c", code],
        "JavaScript": ["node", "call.mjs"],
    }
    if shutil.which(command[kind][0]) is None:
        return None
    done = subprocess.run(command[kind], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = ast.literal_eval(done.stdout) if kind == "Python" else json.loads(done.stdout)
    return found


def test_the_calls_to_copy_do_the_same(embedded: Server, dashboard: Callable[..., Any], tmp_path: Path) -> None:
    board = dashboard(embedded, "/#/try")
    board.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=embedded.url)
    answer = tried(board, "classify", "chelsea")
    shutil.copy(SAMPLES / "chelsea.jpg", tmp_path)
    codes = shown(board)
    board.page.click("#copy")
    board.page.get_by_role("button", name="Copied").wait_for()
    assert board.page.evaluate("navigator.clipboard.readText()") == codes["JavaScript"]
    board.page.locator("#code-JavaScript").press("ArrowRight")
    assert board.text("#code") == codes["curl"], "the arrow keys go round"
    for kind, code in codes.items():
        answered = run(kind, code, tmp_path)
        assert answered is None or answered["labels"] == answer["labels"], kind
