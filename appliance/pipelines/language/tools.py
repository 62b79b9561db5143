"""Calls of tools in a model's answer, where its way of writing them is known.

``hermes``   <tool_call>{"name": …, "arguments": {…}}</tool_call>, any number of them (Hermes, Qwen 2.5 and 3)
``llama``    the whole answer is {"name": …, "parameters": {…}}, several with ; between (Llama 3.1 and 3.2)
``mistral``  [TOOL_CALLS] [{"name": …, "arguments": {…}}, …] at the end (Mistral 7B v0.3, Nemo)
``json``     the whole answer is {"name": …, "arguments": {…}}, as guidance makes it

What looks like a call and is none, or names a tool that was not offered, stays text: nothing is lost.
"""

from collections.abc import Collection
from json import JSONDecodeError, JSONDecoder
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from appliance.pipelines.language.stops import overlap

ToolFormat = Literal["hermes", "llama", "mistral", "json"]

PYTHON_TAG, TOOL_CALLS = "<|python_tag|>", "[TOOL_CALLS]"
TAGS = (PYTHON_TAG, TOOL_CALLS, "<tool_call>", "</tool_call>")
"""Tokens that may be special ones, and have to be seen for all that."""

_read = JSONDecoder().raw_decode


class ToolCall(NamedTuple):
    """``arguments``: the text of a JSON object."""

    name: str
    arguments: str


class Spoken(NamedTuple):
    """A piece of an answer."""

    text: str
    calls: list[ToolCall]


class ToolReader(Protocol):
    """Text in pieces → text and calls. ``rest`` is what is left at the answer's end."""

    def feed(self, text: str) -> Spoken: ...

    def rest(self) -> Spoken: ...


def known_format(template: str) -> ToolFormat | None:
    """What a chat template tells of how its model calls tools; None for a way that is not known here."""
    if "<function=" in template or "[ARGS]" in template:
        return None
    if "<tool_call>" in template:
        return "hermes"
    if TOOL_CALLS in template:
        return "mistral"
    if "<|start_header_id|>" in template and '"parameters"' in template:
        return "llama"
    return None


def reader(kind: ToolFormat, names: Collection[str]) -> ToolReader:
    """For one answer; ``names``: of the tools that were offered."""
    match kind:
        case "hermes":
            return _Tagged("<tool_call>", "</tool_call>", names)
        case "mistral":
            return _Tagged(TOOL_CALLS, None, names)
        case _:
            return _Whole(names)


class _Tagged:
    """Calls between an opening mark and a closing one; without a closing one up to the answer's end."""

    def __init__(self, opening: str, closing: str | None, names: Collection[str]) -> None:
        self._opening = opening
        self._closing = closing
        self._names = names
        self._text = ""
        self._inside = False
        self._looked = 0  # no closing mark lies before this, as far as it was looked for
        self._called = False

    def feed(self, text: str) -> Spoken:
        self._text += text
        told, calls = "", list[ToolCall]()
        while True:
            if self._inside:
                found = self._close()
                if found is None:
                    break
                calls += found
                continue
            at = self._text.find(self._opening)
            if at < 0:
                told += self._outside()
                break
            told += self._plain(self._text[:at])
            self._text, self._inside, self._looked = self._text[at + len(self._opening) :], True, 0
        return Spoken(told, calls)

    def rest(self) -> Spoken:
        text, self._text = self._text, ""
        if not self._inside:
            return Spoken(self._plain(text), [])
        calls = _calls(text, self._names) if self._closing is None else None
        return Spoken("", calls) if calls else Spoken(self._opening + text, [])

    def _close(self) -> list[ToolCall] | None:
        """The calls up to the next closing mark behind which they are whole: one may stand in an argument."""
        if self._closing is None:
            return None
        while (at := self._text.find(self._closing, self._looked)) >= 0:
            calls = _calls(self._text[:at], self._names)
            self._looked = at + len(self._closing)
            if calls:
                self._text, self._inside, self._called = self._text[self._looked :], False, True
                return calls
        self._looked = max(self._looked, len(self._text) - len(self._closing) + 1)
        return None

    def _outside(self) -> str:
        keep = overlap(self._text, self._opening)
        if self._called and not self._text[: len(self._text) - keep].strip():
            return ""  # between two calls
        at = len(self._text) - keep
        told, self._text = self._text[:at], self._text[at:]
        return self._plain(told)

    def _plain(self, text: str) -> str:
        return "" if self._called and not text.strip() else text


class _Whole:
    """The answer is calls, or it is text: its first character tells."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._text = ""
        self._plain = False

    def feed(self, text: str) -> Spoken:
        if self._plain:
            return Spoken(text, [])
        self._text += text
        begun = self._text.lstrip()
        if not begun or begun.startswith(("{", PYTHON_TAG)) or PYTHON_TAG.startswith(begun):
            return Spoken("", [])
        self._plain, told, self._text = True, self._text, ""
        return Spoken(told, [])

    def rest(self) -> Spoken:
        text, self._text = self._text, ""
        calls = _calls(text.strip().removeprefix(PYTHON_TAG), self._names)
        return Spoken("", calls) if calls else Spoken(text, [])


def _calls(text: str, names: Collection[str]) -> list[ToolCall]:
    """All of ``text`` as calls; none if any part of it is something else."""
    found: list[ToolCall] = []
    text = text.strip()
    while text:
        try:
            value, at = _read(text)
        except (JSONDecodeError, RecursionError):
            return []
        for entry in value if isinstance(value, list) else [value]:
            call = _call(entry, names)
            if call is None:
                return []
            found.append(call)
        text = text[at:].lstrip().removeprefix(";").lstrip()
    return found


def _call(entry: Any, names: Collection[str]) -> ToolCall | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or entry["name"] not in names:
        return None
    arguments = entry.get("arguments", entry.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    return ToolCall(entry["name"], msgspec.json.encode(arguments).decode())
