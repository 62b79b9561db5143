"""The dashboard's chat: what is said, what it tells of it, and how it ends."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.desktop.test_dashboard_looks import axe
from tests.support import nets
from tests.support.server import Server
from tests.support.speech import fake_model, ids

HELLO = "Good day! How can I help?\nAsk me <b>anything</b>: 你好."
LONG = "word " * 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Language models: one that greets, one that talks for long, one that takes its time."""
    server = Server(tmp_path_factory.mktemp("chat"))
    fake_model(server.models / "greets", HELLO, token_ms=4, context=500)
    fake_model(server.models / "talks", LONG, token_ms=20, context=4096)
    fake_model(server.models / "thinks", HELLO, token_ms=3000)
    nets.scale(server.models / "scale.onnx")
    with server:
        yield server


def open_chat(dashboard: Callable[..., Any], server: Server, model: str, **context: Any) -> Any:
    board = dashboard(server, "/#/chat", **context)
    board.page.wait_for_selector("#chat:not([hidden])")
    choose(board, model)
    return board


def choose(board: Any, model: str) -> None:
    board.page.wait_for_selector(f"#chat-model option[value={model}]", state="attached")
    board.page.select_option("#chat-model", model)
    board.page.wait_for_selector("#chat-context")


def say(board: Any, words: str) -> None:
    board.page.fill("#chat-words", words)
    board.page.press("#chat-words", "Enter")


def last(board: Any) -> Any:
    return board.page.locator(".said.assistant").last


def answered(board: Any, state: str = "whole") -> str:
    """Wait for the end of the newest answer; its words."""
    board.until(f"[...document.querySelectorAll('.said.assistant')].at(-1)?.dataset.state === '{state}'")
    words: str = last(board).locator(".words").text_content()
    return words


def test_there_is_a_tab_only_where_a_language_model_is(tmp_path: Path, dashboard: Callable[..., Any]) -> None:
    server = Server(tmp_path)
    nets.scale(server.models / "scale.onnx")
    with server:
        board = dashboard(server, "/#/chat")
        board.until("document.getElementById('state').textContent === 'Ready'")
        assert board.page.locator("nav a:visible").all_inner_texts() == ["Live", "Models", "Try it"]
        assert board.page.locator("#live").is_visible(), "an address of old leads somewhere"
        fake_model(server.models / "greets", HELLO)
        board.page.locator("nav a[data-view=chat]").wait_for()
        assert board.page.locator("#chat").is_visible(), "it was asked for"
        board.view("models")
        board.card("greets").get_by_role("button", name="Unload").click()
        board.page.locator("nav a[data-view=chat]").wait_for(state="hidden")


def test_an_answer_comes_with_its_numbers(server: Server, dashboard: Callable[..., Any]) -> None:
    board = open_chat(dashboard, server, "greets")
    with board.page.expect_request("**/v1/chat/completions") as sent:
        say(board, "Hello?\nAnybody there?")
    assert answered(board) == HELLO, "also what looks like HTML is text"
    asked = sent.value.post_data_json
    assert asked == {
        "model": "greets",
        "messages": [{"role": "user", "content": "Hello?\nAnybody there?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    count = len(ids(HELLO))
    board.until(f"document.querySelector('#chat-tokens dd').textContent === '{count}'")
    # What the server counts for the same conversation.
    usage = server.client.post(
        "/v1/chat/completions", json={**asked, "stream": False, "stream_options": None}
    ).json()["usage"]
    assert usage["completion_tokens"] == count
    assert board.text("#chat-context dd") == f"{usage['total_tokens']} of 500 tokens"
    assert board.page.evaluate("document.getElementById('chat-room').value") == usage["total_tokens"]
    speed = re.fullmatch(r"([\d.,]+) tokens/s", board.text("#chat-speed dd"))
    assert speed and 0 < float(speed[1].replace(",", "")) <= 1000 / 4 * 1.05
    assert board.text("#chat-first dd").endswith("ms")
    assert board.page.locator("#chat-told").text_content() == f"The answer is complete: {count} tokens."
    assert board.page.locator("#chat-send").is_visible() and not board.page.locator("#chat-stop").is_visible()
    board.keep("chat-answer")


def test_the_conversation_goes_on_and_begins_anew(server: Server, dashboard: Callable[..., Any]) -> None:
    board = open_chat(dashboard, server, "greets")
    say(board, "One")
    answered(board)
    board.page.locator("#chat summary").click()
    board.page.fill("#chat-system", "Be short.")
    board.page.fill("#chat-temperature", "0.5")
    board.page.fill("#chat-most", "7")
    with board.page.expect_request("**/v1/chat/completions") as sent:
        say(board, "Two")
    assert answered(board, "full") == HELLO[:7]
    assert last(board).locator("p").inner_text() == "Ended at the longest length"
    asked = sent.value.post_data_json
    assert [(m["role"], m["content"]) for m in asked["messages"]] == [
        ("system", "Be short."),
        ("user", "One"),
        ("assistant", HELLO),
        ("user", "Two"),
    ]
    assert (asked["temperature"], asked["max_tokens"]) == (0.5, 7)
    board.page.click("#chat-new")
    assert board.page.locator(".said").count() == 0
    assert board.text("#chat-log").startswith("Nothing has been said yet.")
    board.page.fill("#chat-most", "")
    with board.page.expect_request("**/v1/chat/completions") as sent:
        say(board, "Three")
    assert [m["content"] for m in sent.value.post_data_json["messages"]] == ["Be short.", "Three"]
    answered(board)


def test_an_answer_can_be_stopped(server: Server, dashboard: Callable[..., Any]) -> None:
    board = open_chat(dashboard, server, "talks")
    say(board, "Go")
    board.until("document.querySelector('.said.assistant .words')?.textContent.length > 20")
    assert "≈" in board.text("#chat-tokens dd"), "before the end it is a guess"
    assert not board.page.locator("#chat-send").is_visible()
    board.page.click("#chat-stop")
    words = answered(board, "stopped")
    assert 20 < len(words) < len(LONG) and LONG.startswith(words)
    assert last(board).locator("p").inner_text() == "Stopped"
    assert board.page.evaluate("document.activeElement.id") == "chat-words"
    # The engine does not go on: the lane is free.
    server.wait_for(lambda: server.status()["queue"]["running"] == 0, 5, "the end of the run")
    board.until("document.getElementById('chat-fault').children.length === 0")
    say(board, "Again")
    board.until("document.querySelectorAll('.said.assistant').length === 2")
    board.page.click("#chat-new")
    server.wait_for(lambda: server.status()["queue"]["running"] == 0, 5, "the end of the run")
    assert board.page.locator(".said").count() == 0, "what still came belongs to nothing"
    choose(board, "greets")
    say(board, "Hello")
    assert answered(board) == HELLO


def test_what_was_stopped_before_its_answer_can_be_said_in_other_words(
    server: Server, dashboard: Callable[..., Any]
) -> None:
    board = open_chat(dashboard, server, "thinks")
    for typed, shown in (("", 0), ("The next", 1)):
        say(board, "Go")
        board.page.wait_for_selector("#chat-stop:not([hidden])")
        board.page.fill("#chat-words", typed)
        board.page.click("#chat-stop")
        board.page.wait_for_selector("#chat-send:not([hidden])")
        assert board.page.locator(".said").count() == shown
        assert board.page.locator("#chat-words").input_value() == (typed or "Go")
    server.wait_for(lambda: server.status()["queue"]["running"] == 0, 10, "the end of the run")


def test_an_engine_that_dies_is_told_of_and_can_be_asked_again(server: Server, dashboard: Callable[..., Any]) -> None:
    board = open_chat(dashboard, server, "talks")
    say(board, "Go")
    board.until("document.querySelector('.said.assistant .words')?.textContent.length > 20")
    os.kill(server.engine_pid, signal.SIGKILL)
    words = answered(board, "failed")
    assert LONG.startswith(words)
    board.page.locator("#chat-fault .fault", has_text="model_error").wait_for()
    assert last(board).locator("p").inner_text() == "This answer is not complete"
    board.keep("chat-fault")
    server.wait_ready()
    board.page.click("#chat-again")
    board.until("document.querySelector('.said.assistant .words')?.textContent.length > 20")
    assert board.page.locator(".said").count() == 2, "in place of the one that failed"
    board.page.click("#chat-stop")
    answered(board, "stopped")


def test_what_is_refused_is_told(server: Server, dashboard: Callable[..., Any]) -> None:
    board = open_chat(dashboard, server, "greets")
    say(board, "x" * 600)
    board.page.locator("#chat-fault .fault", has_text="context_length_exceeded").wait_for()
    assert len(board.faults) == 1 and "400" in board.faults[0]
    board.faults.clear()
    assert board.page.locator(".said").count() == 0
    assert board.page.locator("#chat-words").input_value() == "x" * 600, "to be made shorter"
    assert board.page.locator("#chat-again").count() == 0
    with board.page.expect_request("**/v1/chat/completions") as sent:
        say(board, "x")
    assert len(sent.value.post_data_json["messages"]) == 1
    assert answered(board) == HELLO
    assert board.page.locator("#chat-fault .fault").count() == 0


def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one(
    server: Server, dashboard: Callable[..., Any]
) -> None:
    board = open_chat(dashboard, server, "greets")
    chunk = "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": "Half"}, "finish_reason": None}]})
    board.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=f"{chunk}\n\n"),
    )
    say(board, "Hello")
    assert answered(board, "failed") == "Half"
    board.page.locator("#chat-fault .fault", has_text="The answer broke off").wait_for()
    board.page.unroute("**/v1/chat/completions")
    board.page.click("#chat-again")
    assert answered(board) == HELLO


def test_keys_of_the_keyboard(server: Server, dashboard: Callable[..., Any]) -> None:
    board = open_chat(dashboard, server, "greets")
    board.page.click("#chat-words")
    board.page.keyboard.type("one")
    board.page.keyboard.press("Shift+Enter")
    board.page.keyboard.type("two")
    assert board.page.locator("#chat-words").input_value() == "one\ntwo"
    board.page.keyboard.press("Enter")
    assert answered(board) == HELLO
    assert board.page.locator(".said.user .words").text_content() == "one\ntwo"
    board.page.keyboard.press("Enter")  # nothing to send
    assert board.page.locator(".said.user").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("screen", "width", "height"), [("desk", 1440, 900), ("phone", 390, 844)])
def test_it_fits_and_is_accessible(
    server: Server, dashboard: Callable[..., Any], screen: str, width: int, height: int, scheme: str
) -> None:
    size = {"width": width, "height": height}
    board = open_chat(dashboard, server, "greets", viewport=size, color_scheme=scheme)
    assert axe(board) == []
    say(board, "What can you do? " * 6)
    answered(board)
    say(board, "https://example.invalid/" + "a-long-word" * 12)
    answered(board)
    choose(board, "talks")
    say(board, "Go on")
    board.until("[...document.querySelectorAll('.said.assistant')].at(-1).textContent.length > 200")
    assert board.page.evaluate("document.documentElement.scrollWidth") <= width
    left = "(({ scrollTop, clientHeight, scrollHeight }) => scrollHeight - scrollTop - clientHeight)"
    assert board.page.evaluate(f"{left}(document.querySelector('#chat-log'))") < 80, "what comes is in sight"
    board.keep(f"chat-{screen}-{scheme}")
    board.page.click("#chat-stop")
    answered(board, "stopped")
    assert axe(board) == []
    small = board.page.evaluate(
        """[...document.querySelectorAll("#chat button, #chat select, #chat input, #chat textarea")]
        .filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 24).map((e) => e.outerHTML)"""
    )
    assert small == []


@pytest.mark.parametrize("locale", ["de-DE", "zh-CN"])
def test_other_languages_fit_too(server: Server, dashboard: Callable[..., Any], locale: str) -> None:
    board = open_chat(dashboard, server, "greets", viewport={"width": 390, "height": 844}, locale=locale)
    say(board, "Hallo")
    answered(board)
    board.page.locator("#chat summary").click()
    assert board.page.evaluate("document.documentElement.scrollWidth") <= 390
    board.keep(f"chat-{locale}")
    board.page.select_option("#language", "en")
    assert board.text("#chat-send") == "Send"
    assert board.text("#chat-speed dt") == "Speed"
