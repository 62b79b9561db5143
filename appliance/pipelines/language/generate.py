"""A language model's task: text in, text out. What is said here of tokens and templates the HTTP surfaces share."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec

from appliance.errors import ContextLengthExceeded, InvalidInput, ModelLoadError, UnsupportedParameter
from appliance.models.spec import GenerationOptions
from appliance.pipelines import base
from appliance.pipelines.base import Caller, Item, PipelineContext
from appliance.pipelines.language.answer import Answer
from appliance.pipelines.language.chat_template import template_beside
from appliance.pipelines.language.tokenizer import TextTokenizer
from appliance.pipelines.language.tools import TAGS, ToolFormat, known_format, reader
from appliance.pipelines.options import Positive, own_spec, parse, wishes

Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
TopK = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Repetition = Annotated[float, msgspec.Meta(gt=0, le=10)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Stops = Annotated[list[Stop], msgspec.Meta(max_length=16)]

_INLINE = 2048  # characters: with more a trip to the thread pool costs less than others would wait
_LONGEST = 16  # characters of a token, as a mean over a text: far more than any language has


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[pipeline]`` of a language model: what counts where a request says nothing.

    ``max_tokens``: of an answer, where the context has so many left. ``tools``: how the model writes its calls.
    """

    task: Literal["generate"] = "generate"
    max_tokens: Positive = 1024
    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    tools: Literal["auto", "none", "hermes", "llama", "mistral"] = "auto"


class Sampling(msgspec.Struct, frozen=True):
    """What a request asks for; None: the model's own."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logprobs: bool = False
    guidance: tuple[str, str] | None = None
    stop_ids: tuple[int, ...] = ()
    ignore_end: bool = False


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of a task request. ``chat``: the text is a message to an assistant, else the model goes on with
    it; None: where there is a chat template."""

    max_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    repetition_penalty: Repetition | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    stop: Stops | Stop | None = None
    chat: bool | None = None


class Generate:
    """Result: ``{"text", "finish_reason", "prompt_tokens", "completion_tokens"}``.

    ``generation``: what its backend says of it. ``version``: whose tokenizer and template these are.
    """

    task = "generate"
    parts: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()

    def __init__(self, context: PipelineContext) -> None:
        spec = own_spec(context)
        if spec.generation is None:
            raise ModelLoadError(f"model '{spec.name}': task 'generate' is for language models, and it is none")
        self.options = parse(context, Options)
        self.model, self.version, self.generation = spec.name, spec.version, spec.generation
        self.tokenizer = TextTokenizer.beside(context.folders, spec.name)
        self.template = template_beside(context.folders)
        known = known_format(self.template.source) if self.template is not None else None
        self.tools: ToolFormat | None = known
        if self.options.tools != "auto":
            self.tools = None if self.options.tools == "none" else self.options.tools
        self.most_characters = self.generation.context * _LONGEST

    def need(self, ability: str, param: str) -> None:
        """UnsupportedParameter, naming ``param``, for what the backend cannot do with this model."""
        if ability not in self.generation.can:
            raise UnsupportedParameter(f"'{param}': model '{self.model}' cannot do this here", param=param)

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> str:
        """Messages as the model wants them. UnsupportedParameter, naming the field, where its template does not take
        them; InvalidInput, ContextLengthExceeded."""
        template = self.template
        if template is None:
            words = f"model '{self.model}' has no chat template; /v1/completions goes on with a text"
            raise UnsupportedParameter(words, param="messages")
        if tools and "tools" not in template.variables:
            raise UnsupportedParameter(f"'tools': the chat template of '{self.model}' takes none", param="tools")
        for name in more or ():
            if name not in template.variables or name in template.taken:
                words = f"'{name}': the chat template of '{self.model}' does not take it"
                raise UnsupportedParameter(words, param=name)
        text = template.render(messages, tools, more or {}, self.most_characters)
        if text is None:
            raise self._too_long("messages")
        return text

    async def encode(self, text: str, call: Any, *, special: bool, field: str) -> list[int]:
        """Token ids; a long text in the thread pool of ``call``. ``special``: with those that begin a text.

        InvalidInput for no tokens or no Unicode, ContextLengthExceeded for what cannot fit.
        """
        if len(text) > self.most_characters:
            raise self._too_long(field)
        if len(text) <= _INLINE:
            ids = self.tokenizer.encode(text, special=special, field=field).ids
        else:
            ids = await call(_ids, self.tokenizer, text, special, field)
        return self.checked(ids, field)

    def checked(self, ids: list[int], field: str) -> list[int]:
        """InvalidInput for ids that the model does not have, or none at all."""
        if not ids:
            raise InvalidInput(f"'{field}' has no tokens", param=field)
        if not 0 <= min(ids) <= max(ids) < self.generation.vocabulary:
            words = f"'{field}': the model's token ids are 0 to {self.generation.vocabulary - 1}"
            raise InvalidInput(words, param=field)
        return ids

    def sampling(self, wish: Sampling, prompt: int, field: str = "max_tokens") -> GenerationOptions:
        """For the backend. ``prompt``: its tokens. ContextLengthExceeded, UnsupportedParameter.

        Without ``max_tokens`` an answer has what is left of the context, and the model's default at most.
        """
        context, own = self.generation.context, self.options
        left = context - prompt
        if left < 1 or (wish.max_tokens or 0) > left:
            asked = f" and {wish.max_tokens} of the answer ('{field}')" if wish.max_tokens else ""
            raise ContextLengthExceeded(
                f"this model's context is {context} tokens; there are {prompt} of the prompt{asked}", param=field
            )
        for name, nothing in _ABILITIES.items():
            if getattr(wish, name) not in (None, nothing):
                self.need(name, name)
        penalties = {name: value for name in _PENALTIES if (value := getattr(wish, name)) is not None}
        return GenerationOptions(
            max_tokens=wish.max_tokens or min(left, own.max_tokens),
            temperature=own.temperature if wish.temperature is None else wish.temperature,
            top_p=own.top_p if wish.top_p is None else wish.top_p,
            top_k=own.top_k if wish.top_k is None else wish.top_k,
            seed=wish.seed,
            logprobs=wish.logprobs,
            guidance=wish.guidance,
            stop_ids=wish.stop_ids,
            ignore_end=wish.ignore_end,
            **penalties,
        )

    def answer(
        self,
        stops: Sequence[str] = (),
        *,
        tools: Sequence[str] = (),
        written: ToolFormat | None = None,
        one_call: bool = False,
        before: Sequence[int] = (),
    ) -> Answer:
        """What turns the answer's tokens into text. ``tools``: names of those that may be called, ``written`` in that
        form; ``before``: the prompt, where the text goes on from it."""
        calls = reader(written, tools) if written is not None else None
        return Answer(self.tokenizer.decoder(TAGS if calls else (), before), stops, calls, one_call)

    async def run(self, item: Item, call: Caller, accept: str | None) -> base.Answer:
        wish = wishes(item, Wishes)
        if item.text is None:
            raise InvalidInput(f"'{item.field}': this model takes a text", param=item.field)
        chat = self.template is not None if wish.chat is None else wish.chat
        text = self.prompt([{"role": "user", "content": item.text}]) if chat else item.text
        prompt = await self.encode(text, call.offload, special=not chat, field=item.field)
        values = msgspec.structs.asdict(wish)
        stops, _ = values.pop("stop"), values.pop("chat")
        options = self.sampling(Sampling(**values), len(prompt))
        answer = self.answer([stops] if isinstance(stops, str) else stops or (), before=() if chat else prompt)
        said: list[str] = []
        async with aclosing(call.speak(prompt, options)) as parts:
            async for part in parts:
                piece = answer.feed(part)
                said.append(piece.text)
                if piece.finish:
                    break
        return base.Answer(
            {
                "text": "".join(said),
                "finish_reason": piece.finish,
                "prompt_tokens": len(prompt),
                "completion_tokens": answer.count,
            }
        )

    def _too_long(self, field: str) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"this model's context is {self.generation.context} tokens; a prompt of over {self.most_characters} "
            "characters is not even counted",
            param=field,
        )


_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_ABILITIES: dict[str, Any] = {
    "seed": None,
    "logprobs": False,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
"""What not every backend can, and the value that asks for nothing."""


def _ids(tokenizer: TextTokenizer, text: str, special: bool, field: str) -> list[int]:
    return tokenizer.ids(text, special=special, field=field)
