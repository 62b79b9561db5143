"""The JSON of OpenAI's answers."""

import json
import re
from typing import Any

from appliance.api.openai.writers import ChatWriter, CompletionWriter
from appliance.pipelines.language.answer import Piece, TokenTold
from appliance.pipelines.language.tools import ToolCall

PARIS = ToolCall("weather", '{"city":"Paris"}')
TEXTS = {1: "Hi", 2: "\ufffd", 3: "é"}


def events(data: bytes) -> list[Any]:
    lines = data.decode().split("\n\n")
    assert lines.pop() == "" and all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def writer(**more: Any) -> ChatWriter:
    return ChatWriter("chatcmpl-1", 5, "m", decode=lambda ids: TEXTS[ids[0]], **more)


def test_a_stream_of_a_chat() -> None:
    chat = writer()
    assert chat.events(Piece()) == b""
    (first,) = events(chat.events(Piece("Hi")))
    assert first == {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "m",
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "logprobs": None, "finish_reason": None}
        ],
    }  # fmt: skip
    second, last = events(chat.events(Piece("!", finish="length")))
    assert second["choices"][0]["delta"] == {"content": "!"}
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "length")
    assert chat.last(3, 2) == b"data: [DONE]\n\n"


def test_usage_is_a_chunk_of_its_own() -> None:
    chat = writer(usage=True)
    assert events(chat.events(Piece("a")))[0]["usage"] is None
    told, done = events(chat.last(3, 2))
    assert (told["choices"], told["usage"]) == ([], {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
    assert done == "[DONE]"


def test_an_answer_of_nothing_is_one_all_the_same() -> None:
    (only,) = events(writer().events(Piece(finish="stop")))
    assert only["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_calls_are_told_whole_and_counted() -> None:
    chat = writer()
    (one,) = events(chat.events(Piece(calls=[PARIS])))
    two, last = events(chat.events(Piece(calls=[PARIS], finish="tool_calls")))
    (call,) = one["choices"][0]["delta"]["tool_calls"]
    assert re.fullmatch("call_[0-9a-f]{24}", call.pop("id"))
    function = {"name": "weather", "arguments": '{"city":"Paris"}'}
    assert call == {"index": 0, "type": "function", "function": function}
    assert two["choices"][0]["delta"]["tool_calls"][0]["index"] == 1
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    short = json.loads(writer(written="mistral").whole(Piece(calls=[PARIS], finish="tool_calls"), 1, 1))
    message = short["choices"][0]["message"]
    assert re.fullmatch("[A-Za-z0-9]{9}", message["tool_calls"][0].pop("id"))
    assert message == {
        "role": "assistant", "content": None, "refusal": None,
        "tool_calls": [{"type": "function", "function": function}],
    }  # fmt: skip


def test_logprobs_go_with_their_tokens_also_where_the_text_comes_later() -> None:
    chat = writer(logprobs=True)
    tokens = [TokenTold(1, -0.5), TokenTold(2, -1.5), TokenTold(3, -2.5)]
    (held,) = events(chat.events(Piece("", tokens=tokens)))
    told = held["choices"][0]["logprobs"]["content"]
    assert told == [
        {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []},
        {"token": "\ufffd", "logprob": -1.5, "bytes": None, "top_logprobs": []},
        {"token": "é", "logprob": -2.5, "bytes": [195, 169], "top_logprobs": []},
    ]
    whole = json.loads(chat.whole(Piece("Hi", tokens=tokens, finish="stop"), 1, 3))
    assert whole["choices"][0]["logprobs"] == {"content": told, "refusal": None}


def test_completions() -> None:
    text = CompletionWriter("cmpl-1", 5, "m")
    assert text.events(Piece()) == b""
    (event,) = events(text.events(Piece("a", finish="stop")))
    choice = {"text": "a", "index": 0, "logprobs": None, "finish_reason": "stop"}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "m"}
    assert event == {**head, "choices": [choice]}
    usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    assert json.loads(text.whole(Piece("a", finish="stop"), 2, 1)) == {**head, "choices": [choice], "usage": usage}
