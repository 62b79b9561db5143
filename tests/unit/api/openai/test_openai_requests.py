"""OpenAI's fields: honoured, or refused by name."""

import json
from typing import Any

import pytest

from appliance.api.openai import messages
from appliance.api.openai.choices import guidance_of, tools_of
from appliance.api.openai.requests import ChatRequest, CompletionRequest, decode
from appliance.errors import InvalidInput, UnsupportedParameter
from appliance.models.spec import Generation
from appliance.pipelines.language.generate import Sampling

HI = [{"role": "user", "content": "Hi"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
STRICT = {"type": "function", "function": {"name": "a", "strict": True}}
TIME = {"type": "function", "function": {"name": "time"}}


def chat(**fields: Any) -> ChatRequest:
    return decode(ChatRequest, json.dumps({"model": "m", "messages": HI, **fields}).encode())


def completion(**fields: Any) -> CompletionRequest:
    return decode(CompletionRequest, json.dumps({"model": "m", "prompt": "a", **fields}).encode())


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("n", [2, 0]),
        ("logit_bias", [{"5": 1}]),
        ("top_logprobs", [1]),
        ("service_tier", ["flex", "priority"]),
        ("store", [True]),
        ("modalities", [["text", "audio"]]),
        ("audio", [{"voice": "x"}]),
        ("prediction", [{}]),
        ("web_search_options", [{}]),
        ("moderation", [{}]),
        ("functions", [[]]),
        ("function_call", ["auto"]),
        ("verbosity", ["low"]),
        ("best_of", [1]),
        ("suffix", ["x"]),
        ("min_p", [0.1]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UnsupportedParameter, match=f"'{field}'") as caught:
            chat(**{field: value})
        assert caught.value.param == field


@pytest.mark.parametrize("field", ["best_of", "echo", "suffix", "logprobs", "n", "tools", "max_completion_tokens"])
def test_what_a_completion_cannot(field: str) -> None:
    values = {
        "best_of": 2,
        "echo": True,
        "suffix": "x",
        "logprobs": 0,
        "n": 3,
        "tools": [],
        "max_completion_tokens": 1,
    }
    with pytest.raises(UnsupportedParameter, match=f"'{field}'") as caught:
        completion(**{field: values[field]})
    assert caught.value.param == field


def test_what_changes_no_answer_is_taken() -> None:
    chat(user="u", metadata={"a": "b"}, store=False, service_tier="auto", safety_identifier="s", prompt_cache_key="k",
         prompt_cache_retention="24h", prompt_cache_options={}, n=1, logit_bias={}, modalities=["text"],
         top_logprobs=0, logprobs=True)  # fmt: skip
    completion(best_of=1, echo=False, suffix="", n=1, user="u", logit_bias={})
    everything = {
        name: None for name in ChatRequest.__struct_fields__ if name not in ("model", "messages", "ignore_eos")
    }
    chat(**everything)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": None}, "model", "expected str"),
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is missing"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "function"),
        ({"messages": HI * 2049}, "messages", "length <= 2048"),
        ({"tools": [TIME] * 129}, "tools", "length <= 128"),
        ({"temperature": 2.1}, "temperature", "<= 2"),
        ({"temperature": "hot"}, "temperature", "float"),
        ({"top_p": 0}, "top_p", "> 0"),
        ({"top_k": -1}, "top_k", ">= 0"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"seed": -1}, "seed", ">= 0"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "differ"),
        ({"stop": ""}, "stop", "length >= 1"),
        ({"stop": "x" * 257}, "stop", "length <= 256"),
        ({"stop": [""]}, "stop[...]", "length >= 1"),
        ({"stop": ["x"] * 17}, "stop", "length <= 16"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "'stream': true"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "hidden",
        ),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "no parameter"),
        ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, "messages[...].weight", "no parameter"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[...].function.name", "regex"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[...].type", "custom"),
    ],
)  # fmt: skip
def test_what_is_wrong_names_its_field(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        chat(**fields)
    assert (caught.value.param or "").replace("[0]", "[...]") == param.replace("[0]", "[...]")


def test_a_body_that_is_no_json() -> None:
    for body in (b"", b"{", b"[]", b'{"model": "m"', b'"x"', b'{"model":"m","messages":' + b"[" * 9999):
        with pytest.raises(InvalidInput):
            decode(ChatRequest, body)


def test_the_wishes_of_a_request() -> None:
    asked = chat(temperature=0.5, top_p=0.9, top_k=3, seed=7, frequency_penalty=0.1, presence_penalty=0.2,
                 repetition_penalty=1.2, ignore_eos=True, stop="x")  # fmt: skip
    assert asked.sampling(9, True) == Sampling(9, 0.5, 0.9, 3, 7, 1.2, 0.1, 0.2, True, None, (), True)
    assert (asked.stops, chat().stops, chat(stop=["a", "b"]).stops) == (["x"], [], ["a", "b"])
    assert not asked.usage and chat(stream=True, stream_options={"include_usage": True}).usage


def test_a_completion_has_one_prompt() -> None:
    assert completion(prompt="a").one_prompt == completion(prompt=["a"]).one_prompt == "a"
    assert completion(prompt=[1, 2]).one_prompt == completion(prompt=[[1, 2]]).one_prompt == [1, 2]
    assert completion(prompt=[1]).one_prompt == [1]
    for several in (["a", "b"], [[1], [2]], [], ["a", 1]):
        with pytest.raises(UnsupportedParameter, match="'prompt'"):
            _ = completion(prompt=several).one_prompt


# --- messages --------------------------------------------------------------------------------------------------


def told(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return messages.told(chat(messages=list(given)).messages)


def test_messages_as_templates_take_them() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    assert told(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb", "name": "Ann"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    ]  # fmt: skip


def called(arguments: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "assistant"}, "messages[0].content"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, "messages[0].tool_call_id"),
        ({**called("{}"), "role": "user"}, "messages[0].tool_calls"),
        (called("no"), "messages[0].tool_calls[0].function.arguments"),
        (called("[]"), "messages[0].tool_calls[0].function.arguments"),
        ({"role": "assistant", "content": "x", "refusal": "no"}, "messages[0].refusal"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "messages[0].audio"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be_told(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        told(message)
    assert caught.value.param == param


# --- what an answer may be -------------------------------------------------------------------------------------


class Model:
    """What is asked of a model here."""

    model = "m"

    def __init__(self, tools: str | None = "hermes", *can: str) -> None:
        self.tools = tools
        self.generation = Generation(100, 1, 0, 300, can=can)

    def need(self, ability: str, param: str) -> None:
        if ability not in self.generation.can:
            raise UnsupportedParameter(f"'{param}'", param=param)


ABLE: Any = Model("hermes", "guidance")
UNABLE: Any = Model(None)


def test_json_is_guided() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert guidance_of(chat(), UNABLE) is guidance_of(chat(response_format={"type": "text"}), UNABLE) is None
    assert guidance_of(chat(response_format={"type": "json_object"}), ABLE) == ("json_schema", '{"type":"object"}')
    wish = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    found = guidance_of(chat(response_format=wish), ABLE)
    assert found is not None and json.loads(found[1]) == schema
    for refused in ({"type": "json_object"}, wish):
        with pytest.raises(UnsupportedParameter, match="'response_format'"):
            guidance_of(chat(response_format=refused), UNABLE)


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({"type": "grammar"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_object", "x": 1}, "response_format.x"),
        ({}, "response_format.type"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": "x" * 70_000}}}, "response_format"),
    ],
)
def test_formats_that_are_wrong(wish: dict[str, Any], param: str) -> None:
    with pytest.raises(Exception, match="response_format") as caught:
        guidance_of(chat(response_format=wish), ABLE)
    assert caught.value.param == param  # type: ignore[attr-defined]


def test_tools_are_offered_as_the_choice_says() -> None:
    none = tools_of(chat(), UNABLE)
    assert (none.offered, none.written) == ((), None)
    assert tools_of(chat(tools=[TIME], tool_choice="none"), UNABLE) == none
    auto = tools_of(chat(tools=[TIME, WEATHER]), ABLE)
    assert ([t.function.name for t in auto.offered], auto.written, auto.guidance) == (
        ["time", "weather"],
        "hermes",
        None,
    )
    assert messages.tools(auto.offered) == [TIME, WEATHER]
    forced = tools_of(
        chat(tools=[TIME, WEATHER], tool_choice={"type": "function", "function": {"name": "time"}}), ABLE
    )
    assert forced.written == "json" and forced.guidance is not None
    schema = json.loads(forced.guidance[1])
    assert schema["properties"] == {"name": {"const": "time"}, "arguments": {"type": "object"}}
    required = tools_of(chat(tools=[TIME, WEATHER], tool_choice="required"), ABLE)
    assert required.guidance is not None and len(json.loads(required.guidance[1])["anyOf"]) == 2


@pytest.mark.parametrize(
    ("fields", "model", "param"),
    [
        ({"tools": [TIME]}, UNABLE, "tools"),
        ({"tools": [TIME, TIME]}, ABLE, "tools"),
        ({"tools": [TIME], "tool_choice": "required"}, UNABLE, "tool_choice"),
        ({"tools": [TIME], "tool_choice": "any"}, ABLE, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "x"}}}, ABLE, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "x", "function": {"name": "x"}}}, ABLE, "tool_choice.type"),
        ({"tools": [TIME], "tool_choice": {"type": "function"}}, ABLE, "tool_choice.function"),
        ({"tool_choice": "required"}, ABLE, "tool_choice"),
        ({"tools": [TIME], "response_format": {"type": "json_object"}}, ABLE, "response_format"),
        ({"tools": [STRICT]}, ABLE, "tools[0].function.strict"),
    ],
)  # fmt: skip
def test_tools_that_cannot_be_had(fields: dict[str, Any], model: Any, param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        tools_of(chat(**fields), model)
    assert caught.value.param == param
