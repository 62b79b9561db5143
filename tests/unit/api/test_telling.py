"""Streams that wait: comment lines, and what a failure is told as, before and after the head was sent."""

import asyncio
import json
from typing import Any

import pytest

from appliance.api import telling
from appliance.api.openai.writers import CompletionWriter
from appliance.api.telling import Plan
from appliance.errors import InferenceTimeout, ModelError, QueueTimeout
from appliance.pipelines.base import Told
from appliance.pipelines.language.answer import Answer
from appliance.pipelines.language.tokenizer import TextTokenizer
from tests.support import speech

TOKENIZER = TextTokenizer(speech.tokenizer().to_str(), "m")


class Run:
    """Gives what it is told to, after so many waits in vain."""

    prompt = 1

    def __init__(self, parts: list[Told | Exception], waits: int = 0, patience_s: float = 60) -> None:
        self.parts = parts
        self.waits = waits
        self.patience_s = patience_s
        self.ended = False

    async def begin(self, within_s: float) -> bool:
        self.waits -= 1
        return self.waits < 0

    async def part(self) -> Told:
        part = self.parts.pop(0)
        if isinstance(part, Exception):
            raise part
        return part

    def enough(self) -> None:
        self.ended = True

    def patience(self) -> asyncio.Timeout:
        return asyncio.timeout(self.patience_s)

    def timing(self, stream: bool) -> list[tuple[bytes, bytes]]:
        return []


def tell(run: Run, stalls: bool = False) -> tuple[list[Any], BaseException | None]:
    """What was sent, and what was raised."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if stalls and len(sent) > 1:
            await asyncio.Event().wait()

    plan: Any = Plan(
        None,
        [1],
        None,
        Answer(TOKENIZER.decoder()),
        CompletionWriter("c", 1, "m"),
        True,  # type: ignore[arg-type]
    )
    stream = telling._Stream(run, plan, "/v1/completions", "id", send, [])  # type: ignore[arg-type]
    try:
        asyncio.run(stream.tell())
    except BaseException as error:
        return sent, error
    return sent, None


def body(sent: list[Any]) -> str:
    return b"".join(message.get("body", b"") for message in sent).decode()


LETTER = [Told(speech.ids("a"))]
END = [Told([], [], "stop")]


def test_who_waits_long_is_told_a_comment_and_then_the_answer() -> None:
    run = Run([*LETTER, *END], waits=2)
    sent, fault = tell(run)
    assert fault is None and run.ended
    text = body(sent)
    assert text.startswith(": waiting\n\n: waiting\n\ndata: {") and text.endswith("data: [DONE]\n\n")
    assert [m["type"] for m in sent].count("http.response.start") == 1
    assert sent[-1]["more_body"] is False


def test_a_failure_before_anything_was_told_is_the_caller_s() -> None:
    sent, fault = tell(Run([QueueTimeout("late")]))
    assert sent == [] and isinstance(fault, QueueTimeout)


def test_a_failure_after_a_comment_is_an_event() -> None:
    sent, fault = tell(Run([QueueTimeout("late")], waits=1))
    assert isinstance(fault, QueueTimeout)
    comment, event = body(sent).split("\n\n", 1)
    assert comment == ": waiting"
    error = {"message": "late", "type": "server_error", "param": None, "code": "queue_timeout"}
    assert json.loads(event.removeprefix("data: ")) == {"error": error}
    assert sent[-1]["more_body"] is False


def test_a_failure_in_the_middle_is_an_event_and_no_end() -> None:
    for failure, code in ((ModelError("no"), "model_error"), (KeyError("secret"), "internal_error")):
        sent, fault = tell(Run([*LETTER, failure]))
        assert fault is failure
        text = body(sent)
        assert "[DONE]" not in text and "secret" not in text and code in text


def test_a_client_that_does_not_read_is_given_up() -> None:
    run = Run([*LETTER, *END], patience_s=0.05)
    _, fault = tell(run, stalls=True)
    assert isinstance(fault, InferenceTimeout) and "did not read" in fault.message


def test_while_nothing_can_be_told_a_comment_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "KEEP_ALIVE_S", -1.0)
    sent, _ = tell(Run([Told(speech.ids("é")[:1]), Told(speech.ids("é")[1:]), *END]))
    assert body(sent).startswith(": waiting\n\ndata: ") and '"text":"é"' in body(sent)
