"""What a chat's answer may be: JSON by a schema, calls of tools. What the model cannot is refused by its name."""

from typing import Any, NamedTuple

import msgspec

from appliance.api.openai.requests import MOST_SCHEMA, ChatRequest, Tool, fault_of, refuse
from appliance.errors import InputTooLarge, InvalidInput
from appliance.pipelines.language.generate import Generate
from appliance.pipelines.language.tools import ToolFormat


class ToolWish(NamedTuple):
    """``offered``: what the prompt names. ``written``: how calls are found in the answer, which ``guidance`` makes
    one."""

    offered: tuple[Tool, ...] = ()
    written: ToolFormat | None = None
    guidance: tuple[str, str] | None = None


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _Choice(msgspec.Struct, forbid_unknown_fields=True):
    """``tool_choice`` as an object."""

    type: str
    function: _Named


class _Schema(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class _Format(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    json_schema: _Schema | None = None


def guidance_of(request: ChatRequest, model: Generate) -> tuple[str, str] | None:
    """``response_format`` as guidance. InvalidInput, InputTooLarge, UnsupportedParameter."""
    if request.response_format is None:
        return None
    wish = _convert(request.response_format, _Format, "response_format")
    if wish.type == "text":
        return None
    if wish.type not in ("json_object", "json_schema"):
        refuse("response_format.type", f"{wish.type[:32]!r}; there are text, json_object and json_schema")
    model.need("guidance", "response_format")
    schema: dict[str, Any] = {"type": "object"}
    if wish.type == "json_schema":
        if wish.json_schema is None or wish.json_schema.schema is None:
            words = "'response_format.json_schema.schema' is missing"
            raise InvalidInput(words, param="response_format.json_schema.schema")
        schema = wish.json_schema.schema
    return _guided(schema, "response_format")


def tools_of(request: ChatRequest, model: Generate) -> ToolWish:
    """``tools`` and ``tool_choice``. InvalidInput, InputTooLarge, UnsupportedParameter."""
    choice, tools = request.tool_choice, request.tools or []
    name = None
    if isinstance(choice, dict):
        chosen = _convert(choice, _Choice, "tool_choice")
        if chosen.type != "function":
            refuse("tool_choice.type", f"{chosen.type[:32]!r}; there is 'function'")
        name, choice = chosen.function.name, "required"
    if choice not in (None, "auto", "none", "required"):
        raise InvalidInput("'tool_choice' is 'auto', 'none', 'required' or names a function", param="tool_choice")
    if not tools:
        if choice not in (None, "auto", "none"):
            raise InvalidInput("'tool_choice' needs 'tools'", param="tool_choice")
        return ToolWish()
    names = [tool.function.name for tool in tools]
    if len(set(names)) != len(names):
        raise InvalidInput("'tools' has two of one name", param="tools")
    if name is not None and name not in names:
        raise InvalidInput(f"'tool_choice' names '{name[:64]}', which is not in 'tools'", param="tool_choice")
    if choice == "none":
        return ToolWish()
    if request.response_format is not None and request.response_format.get("type") != "text":
        refuse("response_format", "an answer may be JSON or call tools; with 'tool_choice': 'none' it is JSON")
    if choice == "required":
        model.need("guidance", "tool_choice")
        return ToolWish(tuple(tools), "json", _guided(_forced(tools, name), "tools"))
    for index, tool in enumerate(tools):
        if tool.function.strict:
            refuse(f"tools[{index}].function.strict", "it is where 'tool_choice' asks for a call")
    if model.tools is None:
        refuse("tools", f"how model '{model.model}' writes its calls is not known here")
    return ToolWish(tuple(tools), model.tools)


def _forced(tools: list[Tool], name: str | None) -> dict[str, Any]:
    """The schema of a call of one of the tools, or of that one."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": tool.function.parameters or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
        if name is None or tool.function.name == name
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _guided(schema: dict[str, Any], field: str) -> tuple[str, str]:
    text = msgspec.json.encode(schema).decode()
    if len(text) > MOST_SCHEMA:
        raise InputTooLarge(f"'{field}': a schema of {len(text)} bytes, the limit is {MOST_SCHEMA}", param=field)
    return "json_schema", text


def _convert(value: dict[str, Any], form: Any, field: str) -> Any:
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise fault_of(error, field) from None
