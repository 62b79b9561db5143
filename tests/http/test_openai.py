"""OpenAI's API as its own client, sync and async, and a plain one see it. The models are fake ones."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.http.conftest import watched
from tests.support import nets, speech
from tests.support.server import Server

SAYS = "The capital é🙂 is Paris."
TOKENS = len(SAYS.encode())
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
HI: Any = [{"role": "user", "content": "Hi"}]
HI_TOKENS = len(speech.ids("<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"))
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "Tells it", "parameters": {}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("openai"), max_body_bytes=1 << 20)
    speech.fake_model(server.models / "paris", SAYS, context=2000)
    speech.fake_model(server.models / "echo", context=400, toml="[pipeline]\ntask = 'generate'\nmax_tokens = 30")
    speech.fake_model(server.models / "caller", f"Look: {CALL}\n{CALL}")
    speech.fake_model(server.models / "plain", SAYS, template=None)
    speech.fake_model(server.models / "poor", SAYS, can=[])
    speech.fake_model(server.models / "lazy", SAYS, toml="load = 'lazy'\n[pipeline]\ntask = 'generate'")
    nets.scale(server.models / "scale.onnx")
    with watched(server):
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def ask(server: Server, path: str = "chat/completions", **fields: Any) -> httpx.Response:
    given = {"messages": HI} if path == "chat/completions" else {"prompt": "Hi"}
    return server.client.post(f"/v1/{path}", json={"model": "paris", **given, **fields})


def refused(answer: httpx.Response, status: int, code: str, param: str | None, *words: str) -> None:
    """In OpenAI's form."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    for word in words:
        assert word in error["message"]


# --- with OpenAI's client --------------------------------------------------------------------------------------


def test_a_chat(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="paris", messages=HI)
    answer = raw.parse()
    assert answer.choices[0].message.content == SAYS
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (HI_TOKENS, TOKENS)
    assert answer.id == f"chatcmpl-{raw.headers['x-request-id']}"
    assert raw.headers["x-device"] == "cpu" and raw.headers["x-queue-position"] == "0"
    assert {part.split(";")[0] for part in raw.headers["server-timing"].split(", ")} == {"queue", "infer", "total"}


def test_a_chat_in_a_stream(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    raw = client.chat.completions.with_raw_response.create(
        model="paris", messages=HI, stream=True, stream_options=options
    )
    assert raw.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert raw.headers["x-device"] == "cpu" and "x-request-id" in raw.headers
    *chunks, last = list(raw.parse())
    assert [c.choices[0].delta.role for c in chunks][:2] == ["assistant", None]
    texts = [c.choices[0].delta.content or "" for c in chunks]
    assert "".join(texts) == SAYS and "\ufffd" not in "".join(texts)
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert all(c.usage is None for c in chunks)
    assert last.choices == [] and last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (HI_TOKENS, TOKENS)


def test_the_asynchronous_client(server: Server) -> None:
    async def talk() -> tuple[str | None, str, list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            whole, stream = await asyncio.gather(
                client.chat.completions.create(model="paris", messages=HI),
                client.chat.completions.create(model="paris", messages=HI, stream=True),
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return whole.choices[0].message.content, text, [model.id async for model in client.models.list()]

    assert asyncio.run(talk()) == (SAYS, SAYS, ["caller", "echo", "lazy", "paris", "plain", "poor"])


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="paris", prompt="Hi", max_tokens=11)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("The capital", "length")
    assert answer.usage is not None and answer.usage.prompt_tokens == 3  # <s>Hi
    stream = client.completions.create(model="paris", prompt=["Hi"], stream=True, stop="é")
    assert "".join(chunk.choices[0].text for chunk in stream) == "The capital "
    told = client.completions.create(model="echo", prompt=speech.ids("abc"), max_tokens=4)
    assert told.choices[0].text == "abca"  # tokens are taken as they are: nothing is put in front


def test_models(client: openai.OpenAI, server: Server) -> None:
    about = client.models.retrieve("paris")
    assert (about.id, about.object, about.owned_by) == ("paris", "model", "inference-appliance")
    assert about.model_extra is not None and about.model_extra["context_length"] == 2000
    for name in ("nothing", "scale"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve(name)
        assert caught.value.code == "model_not_found"


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="paris", messages=HI, n=2)
    assert (bad.value.code, bad.value.param, bad.value.type) == (
        "unsupported_parameter",
        "n",
        "invalid_request_error",
    )
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nothing", messages=HI)


def test_calls_of_tools(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="caller", messages=HI, tools=[WEATHER])
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.content == "Look: " and message.tool_calls is not None
    calls: Any = message.tool_calls
    assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        ("weather", {"city": "Paris"})
    ] * 2
    assert calls[0].id != calls[1].id
    one = client.chat.completions.create(model="caller", messages=HI, tools=[WEATHER], parallel_tool_calls=False)
    assert len(one.choices[0].message.tool_calls or []) == 1
    off = client.chat.completions.create(model="caller", messages=HI, tools=[WEATHER], tool_choice="none")
    assert off.choices[0].message.content == f"Look: {CALL}\n{CALL}"
    # The answer goes back to the model as the client has it.
    back: Any = [*HI, message, *({"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in calls)]
    assert client.chat.completions.create(model="caller", messages=back, tools=[WEATHER]).choices


def test_calls_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="caller", messages=HI, tools=[WEATHER]) as stream:
        final = stream.get_final_completion()
    calls: Any = final.choices[0].message.tool_calls
    assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        ("weather", {"city": "Paris"})
    ] * 2
    assert final.choices[0].message.content == "Look: " and final.choices[0].finish_reason == "tool_calls"


def test_the_prompt_is_what_the_template_makes_of_it(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(
        model="echo",
        max_tokens=200,
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
    )
    # The echo says the prompt's special tokens too, which are not told.
    assert (told.choices[0].message.content or "").startswith("system\nBe brief.\nuser\na\nb\nassistant\nsystem")


def test_logprobs(client: openai.OpenAI) -> None:
    told = client.chat.completions.create(model="paris", messages=HI, logprobs=True, max_tokens=3).choices[0].logprobs
    assert told is not None and told.content is not None
    assert [(t.token, t.logprob, t.bytes) for t in told.content] == [(c, -0.5, [ord(c)]) for c in "The"]


# --- limits and fields -----------------------------------------------------------------------------------------


def test_without_max_tokens_an_answer_has_the_default_at_most(server: Server) -> None:
    assert ask(server, model="echo").json()["usage"]["completion_tokens"] == 30
    long = "x" * 380
    told = ask(server, "completions", model="echo", prompt=long).json()
    assert (told["usage"]["completion_tokens"], told["choices"][0]["finish_reason"]) == (400 - 381, "length")


def test_over_the_context(server: Server) -> None:
    code = "context_length_exceeded"
    words = ("2000 tokens", f"{HI_TOKENS} of the prompt")
    refused(ask(server, max_tokens=1999), 400, code, "max_tokens", *words, "1999 of the answer")
    refused(ask(server, max_completion_tokens=1999), 400, code, "max_completion_tokens", *words)
    messages = [{"role": "user", "content": "x" * 2000}]
    refused(ask(server, messages=messages), 400, code, "messages", "2000 tokens", str(HI_TOKENS + 1998))
    refused(ask(server, messages=[{"role": "user", "content": "x" * 40_000}]), 400, code, "messages", "32000")
    refused(ask(server, "completions", prompt="x" * 2000), 400, code, "prompt", "there are 2001 of the prompt")
    refused(ask(server, "completions", prompt=[5] * 2001), 400, code, "prompt")
    refused(ask(server, messages=[{"role": "user", "content": "x" * (1 << 20)}]), 413, "input_too_large", "body")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "scale"}, "invalid_input", "model"),
        ({"model": "plain"}, "unsupported_parameter", "messages"),
        ({"model": "poor", "seed": 1}, "unsupported_parameter", "seed"),
        ({"model": "poor", "logprobs": True}, "unsupported_parameter", "logprobs"),
        ({"frequency_penalty": 1}, "unsupported_parameter", "frequency_penalty"),
        ({"model": "poor", "response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
        ({"model": "poor", "tools": [WEATHER], "tool_choice": "required"}, "unsupported_parameter", "tool_choice"),
        ({"reasoning_effort": "low"}, "unsupported_parameter", "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "unsupported_parameter", "enable_thinking"),
        ({"messages": [{"role": "user", "content": "\x00"}], "foo": 1}, "unsupported_parameter", "foo"),
        ({"top_logprobs": 0}, "unsupported_parameter", "top_logprobs"),
    ],
)
def test_what_a_model_cannot_is_refused_by_name(server: Server, fields: Any, code: str, param: str) -> None:
    refused(ask(server, **fields), 400, code, param)


def test_a_model_that_is_not_there(server: Server) -> None:
    refused(ask(server, model="nothing"), 404, "model_not_found", "model", "nothing")
    refused(server.client.get("/v1/chat/completions"), 405, "method_not_allowed", None)
    refused(server.client.get("/v1/nothing"), 404, "not_found", None)


def test_a_sleeping_model_wakes(server: Server) -> None:
    assert server.client.get("/v1/models/lazy").json()["ready"] is False
    assert ask(server, model="lazy").json()["choices"][0]["message"]["content"] == SAYS
    assert server.client.get("/v1/models/lazy").json()["ready"] is True


def test_a_stop_string_ends_the_run_and_counts_as_well_ended(server: Server) -> None:
    before = counted(server, "echo")
    told = ask(server, "completions", model="echo", prompt="abcSTOP", max_tokens=300, stop=["STOP"]).json()
    assert (told["choices"][0]["text"], told["choices"][0]["finish_reason"]) == ("abc", "stop")
    assert told["usage"]["completion_tokens"] == 8  # with the mark that begins the prompt
    server.wait_for(lambda: server.status()["queue"]["running"] == 0, 5)
    assert counted(server, "echo") == before + 1


def counted(server: Server, model: str) -> float:
    page = server.client.get("/metrics").text
    name = f'appliance_requests_total{{code="ok",model="{model}",version="1"}} '
    return sum(float(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name))


def test_tokens_are_counted(server: Server) -> None:
    def of(name: str) -> float:
        page = server.client.get("/metrics").text
        start = f'appliance_{name}{{model="paris",version="1"}} '
        return sum(float(line.removeprefix(start)) for line in page.splitlines() if line.startswith(start))

    names = (
        "prompt_tokens_total",
        "generated_tokens_total",
        "first_token_seconds_count",
        "inter_token_seconds_count",
    )
    ask(server)
    before = [of(name) for name in names]
    ask(server, stream=True)
    assert [of(name) - was for name, was in zip(names, before, strict=True)] == [HI_TOKENS, TOKENS, 1, TOKENS - 1]
    figures = next(m for m in server.status()["models"] if m["name"] == "paris")["versions"][0]
    assert figures["tokens_in_per_s"] > 0 and figures["tokens_out_per_s"] > 0
    assert (
        next(m for m in server.status()["models"] if m["name"] == "scale")["versions"][0]["tokens_in_per_s"] is None
    )


def test_an_idempotency_key_gives_the_same_answer(server: Server) -> None:
    body = {"model": "paris", "messages": HI}
    ids = {
        server.client.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "k1"}).json()["id"]
        for _ in range(2)
    }
    assert len(ids) == 1


# --- Triton's generate, and the task route ---------------------------------------------------------------------


def test_triton_s_generate(server: Server) -> None:
    body = {"text_input": "Hi", "parameters": {"max_tokens": 3}, "stop_words": ["x"]}
    for path in ("/v2/models/paris/generate", "/v2/models/paris/versions/1/generate"):
        answer = server.client.post(path, json=body)
        assert answer.json() == {"model_name": "paris", "model_version": "1", "text_output": "The"}
        assert answer.headers["x-device"] == "cpu" and "server-timing" in answer.headers
    stream = server.client.post("/v2/models/paris/generate_stream", json=body)
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [json.loads(line.removeprefix("data: ")) for line in stream.text.split("\n\n")[:-1]]
    assert [event["text_output"] for event in events] == ["T", "h", "e"]
    bad = server.client.post("/v2/models/paris/generate", json={**body, "beam_width": 2})
    assert (bad.status_code, bad.json()["code"]) == (400, "unsupported_parameter")
    assert "'beam_width'" in bad.json()["error"]
    for model, status in (("scale", 400), ("nothing", 404)):
        assert server.client.post(f"/v2/models/{model}/generate", json=body).status_code == status


def test_a_text_to_the_task_route(server: Server) -> None:
    answer = server.client.post("/predict/paris?max_tokens=3", content="Hi", headers={"Content-Type": "text/plain"})
    assert answer.json() == {
        "model": "paris", "version": "1", "text": "The", "finish_reason": "length",
        "prompt_tokens": HI_TOKENS, "completion_tokens": 3,
    }  # fmt: skip
    assert "server-timing" in answer.headers
