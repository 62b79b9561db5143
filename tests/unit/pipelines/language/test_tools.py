"""Calls of tools, read out of what models write."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.pipelines.language.tools import ToolCall, ToolFormat, known_format, reader

NAMES = ["weather", "time"]
CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'
PARIS = ToolCall("weather", '{"city":"Paris"}')
TIME = ToolCall("time", "{}")


def read(kind: ToolFormat, pieces: list[str] | str) -> tuple[str, list[ToolCall]]:
    found = reader(kind, NAMES)
    told = [found.feed(piece) for piece in pieces]
    told.append(found.rest())
    return "".join(t.text for t in told), [call for t in told for call in t.calls]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", ("", [PARIS])),
        (
            "hermes",
            f'See: <tool_call>{CALL}</tool_call>\n<tool_call>{{"name": "time"}}</tool_call>\n',
            ("See: ", [PARIS, TIME]),
        ),
        ("hermes", f"<tool_call>{CALL}</tool_call> done", (" done", [PARIS])),
        ("hermes", "a < b and <tool", ("a < b and <tool", [])),
        ("hermes", f"<tool_call>{CALL}", (f"<tool_call>{CALL}", [])),
        ("hermes", "<tool_call>no JSON</tool_call> x", ("<tool_call>no JSON</tool_call> x", [])),
        ("hermes", '<tool_call>{"name": "rm"}</tool_call>', ('<tool_call>{"name": "rm"}</tool_call>', [])),
        (
            "hermes",
            '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call>',
            ("", [ToolCall("weather", '{"city":"</tool_call>"}')]),
        ),
        ("mistral", f'[TOOL_CALLS] [{CALL}, {{"name": "time", "arguments": {{}}}}]', ("", [PARIS, TIME])),
        ("mistral", f"Well.[TOOL_CALLS][{CALL}]", ("Well.", [PARIS])),
        ("mistral", "[TOOL_CALLS] what", ("[TOOL_CALLS] what", [])),
        ("mistral", "[TOOL", ("[TOOL", [])),
        ("llama", '{"name": "weather", "parameters": {"city": "Paris"}}', ("", [PARIS])),
        ("llama", '<|python_tag|>{"name": "time", "parameters": {}}', ("", [TIME])),
        ("llama", f'{CALL}; {{"name": "time"}}', ("", [PARIS, TIME])),
        ("llama", '\n {"name": "rm", "parameters": {}}', ('\n {"name": "rm", "parameters": {}}', [])),
        ("llama", "{ no JSON }", ("{ no JSON }", [])),
        ("llama", " Hello {", (" Hello {", [])),
        ("llama", "", ("", [])),
        ("json", '{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}', ("", [PARIS])),
        ("json", '{"name": "weather", "arguments": "no"}', ('{"name": "weather", "arguments": "no"}', [])),
        ("json", '{"name": "weather", "arguments": [1]}', ('{"name": "weather", "arguments": [1]}', [])),
        ("json", '["weather"]', ('["weather"]', [])),
    ],
)  # fmt: skip
def test_calls(kind: ToolFormat, text: str, expected: tuple[str, list[ToolCall]]) -> None:
    assert read(kind, text) == expected  # a character at a time
    assert read(kind, [text]) == expected


def test_what_cannot_be_a_call_is_told_at_once() -> None:
    hermes, llama = reader("hermes", NAMES), reader("llama", NAMES)
    assert [hermes.feed(p).text for p in ("Hi <", "b> ", "<tool_")] == ["Hi ", "<b> ", ""]
    assert [llama.feed(p).text for p in (" ", "S", "o {")] == ["", " S", "o {"]
    assert hermes.feed(f"call>{CALL}</tool_call>").calls == [PARIS]  # and not only at the end


@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", CALL, " ", "x", "<", "[TOOL_CALLS]", "{"]), max_size=8)
)
def test_no_text_is_lost_where_nothing_is_called(parts: list[str]) -> None:
    text = "".join(parts).replace(CALL, json.dumps({"name": "unknown"}))
    for kind in ("hermes", "mistral", "llama", "json"):
        assert read(kind, text) == (text, [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ('… <tool_call>\n{"name": <function-name>} …', "hermes"),
        ("… <tool_call><function=…", None),
        ("{{ '[TOOL_CALLS] [' }}", "mistral"),
        ("[TOOL_CALLS]name[ARGS]{…}", None),
        ('<|start_header_id|> … {"name": function name, "parameters": …}', "llama"),
        ("{{ message.content }}", None),
    ],
)
def test_the_template_tells_the_format(template: str, expected: str | None) -> None:
    assert known_format(template) == expected
