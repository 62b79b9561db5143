"""A request's messages and tools as a chat template takes them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from appliance.api.openai.requests import Message, Tool, refuse
from appliance.errors import InvalidInput

Told = dict[str, Any]


def told(messages: list[Message]) -> list[Told]:
    """InvalidInput, UnsupportedParameter, naming the message and its part."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def tools(offered: Sequence[Tool]) -> list[Told]:
    """The tools as they were sent."""
    found: list[Told] = msgspec.to_builtins(list(offered))
    return found


def _message(message: Message, field: str) -> Told:
    for name in ("refusal", "audio", "function_call", "annotations"):
        if getattr(message, name):
            refuse(f"{field}.{name}", "models are told texts and calls of tools only")
    # To models that came before it, what a developer says is what the system says.
    role = "system" if message.role == "developer" else message.role
    found: Told = {"role": role, "content": _text(message.content, f"{field}.content")}
    if message.name is not None:
        found["name"] = message.name
    if message.tool_calls and role == "assistant":
        calls = enumerate(message.tool_calls)
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments, at, field)},
            }
            for at, call in calls
        ]
    elif message.tool_calls:
        raise InvalidInput(f"'{field}.tool_calls' is for the assistant's messages", param=f"{field}.tool_calls")
    elif message.content is None:
        raise InvalidInput(f"'{field}.content' is missing", param=f"{field}.content")
    if role == "tool":
        if message.tool_call_id is None:
            raise InvalidInput(f"'{field}.tool_call_id' is missing", param=f"{field}.tool_call_id")
        found["tool_call_id"] = message.tool_call_id
    elif message.tool_call_id is not None:
        raise InvalidInput(f"'{field}.tool_call_id' is for messages of tools", param=f"{field}.tool_call_id")
    return found


def _text(content: str | list[dict[str, Any]] | None, field: str) -> str:
    """Parts are joined by line ends."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for index, part in enumerate(content):
        kind, text = part.get("type"), part.get("text")
        if kind != "text":
            refuse(f"{field}[{index}].type", f"{str(kind)[:32]!r}; models here take texts only")
        if not isinstance(text, str):
            raise InvalidInput(f"'{field}[{index}].text' must be a text", param=f"{field}[{index}].text")
        texts.append(text)
    return "\n".join(texts)


def _arguments(text: str, at: int, field: str) -> Any:
    """Templates take the arguments of a call as an object."""
    name = f"{field}.tool_calls[{at}].function.arguments"
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(f"'{name}' must be a JSON object, as a text", param=name)
    return value
