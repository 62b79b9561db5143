"""The JSON of OpenAI's answers, whole and in chunks."""

import secrets
import string
from collections.abc import Callable
from typing import Any

import msgspec

from appliance.pipelines.language.answer import Piece, TokenTold
from appliance.pipelines.language.tools import ToolCall, ToolFormat

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode
_LETTERS = string.ascii_letters + string.digits


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(value) + b"\n\n"


def usage_of(prompt: int, count: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}


class _Chunks:
    """What the chunks of both kinds have. ``usage``: a last chunk tells the tokens."""

    def __init__(self, kind: str, chunk: str, id: str, created: int, model: str, usage: bool) -> None:
        self._kind = kind
        self._usage = usage
        self._head: dict[str, Any] = {"id": id, "object": chunk, "created": created, "model": model}

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        chunk = {**self._head, "choices": [choice]}
        if self._usage:
            chunk["usage"] = None
        return event(chunk)

    def last(self, prompt: int, count: int) -> bytes:
        if not self._usage:
            return DONE
        return event({**self._head, "choices": [], "usage": usage_of(prompt, count)}) + DONE

    def _whole(self, choice: dict[str, Any], prompt: int, count: int) -> bytes:
        return _encode(
            {**self._head, "object": self._kind, "choices": [choice], "usage": usage_of(prompt, count)},
        )


class ChatWriter(_Chunks):
    """``written``: how the model writes its calls, for their ids. ``logprobs``: whether tokens are told, each by its
    text as ``decode`` has it."""

    def __init__(
        self,
        id: str,
        created: int,
        model: str,
        usage: bool = False,
        logprobs: bool = False,
        written: ToolFormat | None = None,
        decode: Callable[[list[int]], str] | None = None,
    ) -> None:
        super().__init__("chat.completion", "chat.completion.chunk", id, created, model, usage)
        self._logprobs = logprobs
        self._written = written
        self._decode = decode
        self._calls = 0
        self._first = True

    def events(self, piece: Piece) -> bytes:
        data = b""
        if piece.text or piece.tokens:
            data += self._delta({"content": piece.text}, piece.tokens)
        if piece.calls:
            data += self._delta({"tool_calls": [self._call(call, index=True) for call in piece.calls]}, [])
        if piece.finish:
            data += self._delta({}, [], piece.finish)
        return data

    def whole(self, piece: Piece, prompt: int, count: int) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
        if piece.calls:
            message["content"] = piece.text or None
            message["tool_calls"] = [self._call(call, index=False) for call in piece.calls]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._told(piece.tokens) if self._logprobs else None,
            "finish_reason": piece.finish,
        }
        return self._whole(choice, prompt, count)

    def _delta(self, delta: dict[str, Any], tokens: list[TokenTold], finish: str | None = None) -> bytes:
        if self._first:
            delta, self._first = {"role": "assistant", "content": "", **delta}, False
        return self._chunk(
            {
                "index": 0,
                "delta": delta,
                "logprobs": self._told(tokens) if tokens else None,
                "finish_reason": finish,
            }
        )

    def _call(self, call: ToolCall, index: bool) -> dict[str, Any]:
        told: dict[str, Any] = {
            "id": self._new_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        if index:
            told = {"index": self._calls, **told}
        self._calls += 1
        return told

    def _new_id(self) -> str:
        if self._written == "mistral":  # its template takes ids of this form only, when they come back
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

    def _told(self, tokens: list[TokenTold]) -> dict[str, Any]:
        return {"content": [self._token(token) for token in tokens], "refusal": None}

    def _token(self, told: TokenTold) -> dict[str, Any]:
        text = self._decode([told.id]) if self._decode is not None else ""
        # A part of a character has no text of its own, and what its bytes are its tokenizer does not tell.
        raw = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": told.logprob, "bytes": raw, "top_logprobs": []}


class CompletionWriter(_Chunks):
    """Texts that go on from a prompt."""

    def __init__(self, id: str, created: int, model: str, usage: bool = False) -> None:
        super().__init__("text_completion", "text_completion", id, created, model, usage)

    def events(self, piece: Piece) -> bytes:
        return self._chunk(_choice(piece)) if piece.text or piece.finish else b""

    def whole(self, piece: Piece, prompt: int, count: int) -> bytes:
        return self._whole(_choice(piece), prompt, count)


def _choice(piece: Piece) -> dict[str, Any]:
    return {"text": piece.text, "index": 0, "logprobs": None, "finish_reason": piece.finish}
