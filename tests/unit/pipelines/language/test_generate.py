"""The task of a language model: limits that hold before the gate, and texts in and out."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import ContextLengthExceeded, InvalidInput, ModelLoadError, UnsupportedParameter
from appliance.models.spec import Generation, GenerationOptions, ModelSpec
from appliance.pipelines.base import Item, PipelineContext, Told
from appliance.pipelines.build import build
from appliance.pipelines.language.generate import Generate, Sampling
from tests.support import speech


class Speaker:
    """Says a text."""

    def __init__(self, says: str = "") -> None:
        self.says = speech.ids(says)
        self.asked: tuple[list[int], GenerationOptions] | None = None
        self.offloaded = 0
        self.closed = False

    async def speak(self, prompt: Sequence[int], options: GenerationOptions) -> AsyncGenerator[Told, None]:
        self.asked = list(prompt), options
        try:
            for token in self.says[: options.max_tokens]:
                yield Told([token])
            yield Told([], [], "length" if len(self.says) > options.max_tokens else "stop")
        finally:
            self.closed = True

    async def offload(self, work: Callable[..., Any], *args: Any) -> Any:
        self.offloaded += 1
        return work(*args)


def model(folder: Path, options: Any = None, template: str | None = speech.TEMPLATE, **generation: Any) -> Generate:
    speech.beside(folder, template)
    told = {"context": 200, "streams": 1, "token_bytes": 0, "vocabulary": speech.VOCABULARY, **generation}
    spec = ModelSpec("m", "1", "", "fake", (), (), generation=Generation(**told))
    made = build(PipelineContext("m", options or {"task": "generate"}, spec, folders=(folder,)))
    assert isinstance(made, Generate)
    return made


def encode(model: Generate, text: str, special: bool = False) -> list[int]:
    return asyncio.run(model.encode(text, Speaker().offload, special=special, field="prompt"))


def test_the_longest_answer_is_what_the_context_leaves_and_the_default_at_most(tmp_path: Path) -> None:
    made = model(tmp_path)
    assert made.sampling(Sampling(), 10).max_tokens == 190
    assert made.sampling(Sampling(max_tokens=190), 10).max_tokens == 190
    assert model(tmp_path, {"task": "generate", "max_tokens": 50}).sampling(Sampling(), 10).max_tokens == 50
    for wish, prompt, words in (
        (Sampling(), 200, "200 tokens; there are 200 of the prompt$"),
        (Sampling(max_tokens=191), 10, r"10 of the prompt and 191 of the answer \('most'\)"),
    ):
        with pytest.raises(ContextLengthExceeded, match=words) as caught:
            made.sampling(wish, prompt, "most")
        assert caught.value.param == "most"


def test_a_request_s_wishes_go_before_the_model_s(tmp_path: Path) -> None:
    made = model(tmp_path, {"task": "generate", "temperature": 0.5, "top_p": 0.9, "top_k": 7})
    told = made.sampling(Sampling(), 1)
    assert (told.temperature, told.top_p, told.top_k) == (0.5, 0.9, 7)
    told = made.sampling(Sampling(temperature=0, top_p=1, top_k=0), 1)
    assert (told.temperature, told.top_p, told.top_k) == (0, 1, 0)


@pytest.mark.parametrize(
    "wish",
    [
        {"seed": 1},
        {"logprobs": True},
        {"frequency_penalty": 0.5},
        {"presence_penalty": -1},
        {"repetition_penalty": 1.1},
    ],
)  # fmt: skip
def test_what_the_backend_cannot_is_refused_by_name(tmp_path: Path, wish: dict[str, Any]) -> None:
    (name,) = wish
    with pytest.raises(UnsupportedParameter, match=f"'{name}'") as caught:
        model(tmp_path).sampling(Sampling(**wish), 1)
    assert caught.value.param == name
    assert getattr(model(tmp_path, can=(name,)).sampling(Sampling(**wish), 1), name) == wish[name]


def test_values_that_ask_for_nothing_are_no_wish(tmp_path: Path) -> None:
    nothing = Sampling(frequency_penalty=0, presence_penalty=0, repetition_penalty=1, logprobs=False)
    assert model(tmp_path).sampling(nothing, 1).frequency_penalty == 0


def test_prompts_are_bounded_before_they_are_counted(tmp_path: Path) -> None:
    made = model(tmp_path)
    with pytest.raises(ContextLengthExceeded, match="over 3200 characters"):
        encode(made, "x" * 3201)
    assert encode(made, "ab", special=True) == [speech.BEGIN, *speech.ids("ab")]
    long = "x" * 3000
    caller = Speaker()
    ids = asyncio.run(made.encode(long, caller.offload, special=True, field="prompt"))
    assert ids == [speech.BEGIN, *speech.ids(long)] and caller.offloaded == 1
    with pytest.raises(ContextLengthExceeded):
        made.prompt([{"role": "user", "content": "x" * 3200}])
    for text in ("\ud800", "\ud800" * 3000):
        with pytest.raises(InvalidInput, match="'prompt' cannot be made into tokens; it must be valid Unicode"):
            encode(made, text)
    with pytest.raises(InvalidInput, match="'prompt' has no tokens"):
        encode(made, "")
    for ids in ([-1], [speech.VOCABULARY]):
        with pytest.raises(InvalidInput, match=f"ids are 0 to {speech.VOCABULARY - 1}"):
            made.checked(ids, "prompt")


def test_what_the_template_does_not_take_is_refused_by_name(tmp_path: Path) -> None:
    plain = "{{ messages[0].content }}"
    for more, name in (({"think": True}, "think"), ({"bos_token": "x"}, "bos_token"), ({"messages": []}, "messages")):
        with pytest.raises(UnsupportedParameter, match=f"'{name}'") as caught:
            model(tmp_path, template=plain).prompt([{"content": "a"}], None, more)
        assert caught.value.param == name
    with pytest.raises(UnsupportedParameter, match="'tools'"):
        model(tmp_path, template=plain).prompt([{"content": "a"}], [{}])
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(UnsupportedParameter, match="no chat template"):
        model(tmp_path, template=None).prompt([])


def test_how_tools_are_called_is_told_by_the_template_or_the_operator(tmp_path: Path) -> None:
    assert model(tmp_path).tools == "hermes"
    assert model(tmp_path, {"task": "generate", "tools": "llama"}).tools == "llama"
    assert model(tmp_path, {"task": "generate", "tools": "none"}).tools is None


def test_files_and_options_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"\[pipeline\].*temprature"):
        model(tmp_path, {"task": "generate", "temprature": 1})
    (tmp_path / "tokenizer.json").unlink()
    spec = ModelSpec("m", "1", "", "fake", (), ())
    with pytest.raises(ModelLoadError, match="it is none"):
        build(PipelineContext("m", {"task": "generate"}, spec, folders=(tmp_path,)))
    spec = ModelSpec("m", "1", "", "fake", (), (), generation=Generation(9, 1, 0, 9))
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        build(PipelineContext("m", {"task": "generate"}, spec, folders=(tmp_path,)))


def run(made: Generate, caller: Speaker, text: str | None = "Hi", **wishes: Any) -> dict[str, Any]:
    item = Item("text", text=text, file=None if text else b"x", parameters=wishes)
    result: dict[str, Any] = asyncio.run(made.run(item, caller, None)).result
    return result


def test_a_task_request_is_a_message_where_there_is_a_template(tmp_path: Path) -> None:
    caller = Speaker("Hello! And on.")
    answer = run(model(tmp_path), caller, max_tokens="9", temperature="0", stop="!")
    told = speech.ids("<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert caller.asked == (told, GenerationOptions(max_tokens=9, temperature=0))
    assert answer == {
        "text": "Hello", "finish_reason": "stop", "prompt_tokens": len(told), "completion_tokens": 6,
    }  # fmt: skip
    assert caller.closed
    answer = run(model(tmp_path), caller, max_tokens=3, chat=False)
    assert caller.asked == ([speech.BEGIN, *speech.ids("Hi")], GenerationOptions(max_tokens=3))
    assert (answer["text"], answer["finish_reason"]) == ("Hel", "length")


def test_task_requests_that_are_wrong(tmp_path: Path) -> None:
    for text, wishes, words in (
        (None, {}, "takes a text"),
        ("a", {"temperature": 3}, "'temperature'"),
        ("a", {"max": 3}, "no parameter 'max'"),
        ("a", {"stop": [""]}, "'stop"),
        ("a", {"max_tokens": 999}, "context is 200 tokens"),
    ):
        with pytest.raises(InvalidInput, match=words):
            run(model(tmp_path), Speaker(), text, **wishes)  # type: ignore[arg-type]
