"""The icon of an appliance in another process: what it sees of it, what it asks of it, and how it waits for it."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from appliance.tray import menu
from appliance.tray.actions import ControlError
from appliance.tray.remote import EVERY_S, Remote

URL = "http://127.0.0.1:11711"
Answer = httpx.Response | Exception


class Other:
    """A stand-in for the appliance: notes what is asked, and answers what is set for the path."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.keys: list[str | None] = []
        self.where = (URL, {"Authorization": "Bearer ia-one"})
        self.answers: dict[str, Answer] = {}
        self.changed = threading.Event()
        self.remote = Remote(lambda: self.where, 60, self.changed, httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, str(request.url)))
        self.keys.append(request.headers.get("authorization"))
        answer = self.answers.get(request.url.path, httpx.Response(200, json={}))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def looks(self, answer: Answer) -> bool:
        self.answers["/api/status"] = answer
        return self.remote.look()


@pytest.fixture
def other() -> Iterator[Other]:
    made = Other()
    yield made
    made.remote._client.close()


def status(**values: Any) -> dict[str, Any]:
    return {"name": "inference-appliance", "state": "ready", "models": []} | values


def texts(remote: Remote) -> list[str]:
    return [item.text for item in menu.items(remote.state())]


def test_what_it_tells_is_shown_without_what_is_not_there_for_this_user(other: Other) -> None:
    assert other.looks(httpx.Response(200, json=status(state="busy")))
    assert other.asked == [("GET", f"{URL}/api/status")]
    assert other.keys == ["Bearer ia-one"]
    assert other.changed.is_set()
    state = other.remote.state(saving=True)
    assert (state.state, state.address, state.away, state.saving) == ("busy", URL, None, True)
    actions = [item.action for item in menu.items(other.remote.state()) if item.action]
    assert actions == ["open_dashboard", "copy_address", "pause", "restart_engine", "save_diagnosis", "quit"]
    assert texts(other.remote)[-1] == "Quit this icon"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.ConnectError("refused"), f"Not running: nothing answers at {URL}"),
        (httpx.ReadTimeout("late"), f"No answer from {URL} within 5 s"),
        (httpx.Response(401, json={}), f"No access: {URL} wants an API key, and the setting api_key has none that"),
        (
            httpx.Response(403, json={"error": {"code": "forbidden", "message": "Host 'x' is none"}}),
            "No access: Host",
        ),
        (httpx.Response(500, text="oops"), "No access: it answers with the status 500"),
        (httpx.Response(200, json={"name": "triton"}), f"Not running: another program answers at {URL}"),
        (httpx.Response(200, json=[1]), f"Not running: another program answers at {URL}"),
        (httpx.Response(200, text="<html>"), f"What {URL} answers is not understood"),
        (httpx.Response(200, json=status(state="dreaming")), f"What {URL} answers is not understood"),
        (httpx.Response(200, json=status(models=[{"name": "a"}])), f"What {URL} answers is not understood"),
    ],
)
def test_one_that_tells_nothing_is_shown_as_not_there_with_the_reason(
    other: Other, answer: Answer, words: str
) -> None:
    assert other.looks(httpx.Response(200, json=status()))
    assert not other.looks(answer)
    state = other.remote.state()
    assert state.away is not None and state.away.startswith(words)
    assert (state.state, other.remote.status) == ("stopped", None)
    assert words[:40] in menu.tooltip(state)
    grey = {item.action for item in menu.items(state) if item.action and not item.enabled}
    assert grey == {"pause", "restart_engine"}
    assert " ".join(texts(other.remote)).startswith(words[:40])


def test_it_comes_back_by_itself_also_elsewhere_and_with_another_key(other: Other) -> None:
    assert not other.looks(httpx.ConnectError("refused"))
    other.where = ("http://127.0.0.1:4711", {"Authorization": "Bearer ia-two"})
    assert other.looks(httpx.Response(200, json=status(state="ready")))
    assert (other.remote.state().away, other.remote.address) == (None, "http://127.0.0.1:4711")
    assert (other.asked[-1][1], other.keys[-1]) == ("http://127.0.0.1:4711/api/status", "Bearer ia-two")


class Clock:
    """In place of the event that one waits for: notes how long, and ends it when all looks are done."""

    def __init__(self, other: Other, answers: list[Answer], stop: threading.Event) -> None:
        self.waits: list[float] = []
        self._other, self._left, self._stop = other, answers, stop
        self._next()

    def _next(self) -> None:
        if self._left:
            self._other.answers["/api/status"] = self._left.pop(0)
        else:
            self._stop.set()

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._next()

    def clear(self) -> None:
        pass


def test_it_asks_ever_more_seldom_and_often_again_once_it_is_there(other: Other) -> None:
    away, there = httpx.ConnectError("refused"), httpx.Response(200, json=status())
    stop = threading.Event()
    clock = Clock(other, [there, *[away] * 6, there, away], stop)
    other.remote._due = clock  # type: ignore[assignment]
    other.remote.follow(stop)
    assert clock.waits == [EVERY_S, 1, 2, 4, 8, 15, 15, EVERY_S, 1]
    assert other.remote._client.is_closed


@pytest.mark.parametrize(
    ("do", "path"),
    [
        (lambda remote: remote.pause(), "/api/pause"),
        (lambda remote: remote.resume(), "/api/resume"),
        (lambda remote: remote.restart_engine(), "/api/engine/restart"),
        (lambda remote: remote.load("a/ä"), "/v2/repository/models/a%2F%C3%A4/load"),
        (lambda remote: remote.unload("a"), "/v2/repository/models/a/unload"),
        (lambda remote: remote.pin("a", True), "/api/models/a/pin"),
        (lambda remote: remote.pin("a", False), "/api/models/a/unpin"),
    ],
)
def test_each_line_is_one_call_and_the_next_look_is_at_once(
    other: Other, do: Callable[[Remote], None], path: str
) -> None:
    do(other.remote)
    assert other.asked == [("POST", URL + path)]
    assert other.keys == ["Bearer ia-one"]
    assert other.remote._due.is_set()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            httpx.Response(403, json={"error": {"code": "forbidden", "message": "'admin' is needed"}}),
            "'admin' is needed",
        ),
        (httpx.Response(404, json={"error": "no such model", "code": "model_not_found"}), "no such model"),
        (httpx.Response(502, text="bad"), "it answers with the status 502"),
        (httpx.ConnectError("refused"), f"Not running: nothing answers at {URL}"),
        (httpx.ReadTimeout("late"), "the appliance did not do it within 70 s"),
    ],
)
def test_a_refusal_is_told_in_one_line(other: Other, answer: Answer, words: str) -> None:
    other.answers["/v2/repository/models/a/load"] = answer
    with pytest.raises(ControlError) as fault:
        other.remote.load("a")
    assert str(fault.value) == words


def test_quitting_ends_the_icon_alone_and_the_page_asks_for_a_key(other: Other) -> None:
    assert other.remote.drain(30) is False
    assert other.remote.dashboard() == "/"
    assert other.asked == []
