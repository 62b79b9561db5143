"""A real language model, asked by OpenAI's client and, where it is installed, by LangChain's classes.

The model is not part of the project: the folder that ``APPLIANCE_TEST_MODELS`` names has it, or these are skipped.
"""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.models import at_hand
from tests.support.server import Server

pytest.importorskip("onnxruntime_genai")
FOLDER = at_hand("llm/smollm2-135m-int4")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="APPLIANCE_TEST_MODELS has no llm/smollm2-135m-int4")

ASKED: Any = [{"role": "user", "content": "What is the capital of France?"}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}\n"
    "Answer with <tool_call>JSON</tool_call><|im_end|>\n{% endif %}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert FOLDER is not None
    server = Server(tmp_path_factory.mktemp("real"))
    for name in ("smollm2", "tools"):
        folder = server.models / name
        folder.mkdir()
        for file in FOLDER.iterdir():
            shutil.copyfile(file, folder / file.name)
    template = server.models / "tools" / "chat_template.jinja"
    template.write_text(TOOLS + template.read_text())
    with server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        yield client


def test_the_capital_of_france(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smollm2",
        messages=ASKED,
        temperature=0,
        stream=True,
        max_tokens=12,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text.startswith("The capital of France is Paris")
    assert last.usage is not None and (last.usage.prompt_tokens, last.usage.completion_tokens) == (37, 12)
    whole = client.chat.completions.create(model="smollm2", messages=ASKED, temperature=0, max_tokens=12)
    assert whole.choices[0].message.content == text


def test_a_stop_string(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(
        model="smollm2", messages=ASKED, temperature=0, max_tokens=60, stop=" Paris"
    )
    assert told.choices[0].message.content == "The capital of France is"
    assert told.choices[0].finish_reason == "stop"


def test_json_by_a_schema(client: openai.OpenAI) -> None:
    wish: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    messages: Any = [{"role": "user", "content": "Ann is 30 years old. Answer as JSON."}]
    told = client.chat.completions.create(
        model="smollm2", messages=messages, temperature=0, max_tokens=80, response_format=wish
    )
    found = json.loads(told.choices[0].message.content or "")
    assert set(found) == {"name", "age"} and isinstance(found["age"], int)


def test_a_call_that_has_to_be_made(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": {**schema, "additionalProperties": False}}}
        for name in ("weather", "time")
    ]
    messages: Any = [{"role": "user", "content": "Weather in Paris?"}]
    told = client.chat.completions.create(
        model="tools", messages=messages, temperature=0, max_tokens=60, tools=tools, tool_choice="required"
    )
    calls: Any = told.choices[0].message.tool_calls
    assert told.choices[0].finish_reason == "tool_calls" and len(calls) == 1
    assert calls[0].function.name in ("weather", "time")
    assert list(json.loads(calls[0].function.arguments)) == ["city"]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smollm2", messages=messages, tools=tools)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")


def test_langchain_s_classes(server: Server) -> None:
    langchain = pytest.importorskip("langchain_openai")
    about = {"model": "smollm2", "base_url": f"{server.url}/v1", "api_key": "x", "temperature": 0, "max_tokens": 12}
    chat = langchain.ChatOpenAI(**about)
    told = chat.invoke("What is the capital of France?")
    assert told.content.startswith("The capital of France is Paris")
    assert told.usage_metadata["output_tokens"] == 12
    assert "".join(part.content for part in chat.stream("What is the capital of France?")) == told.content
    text = langchain.OpenAI(**about)
    assert text.invoke("Once upon a time") == "".join(text.stream("Once upon a time"))
