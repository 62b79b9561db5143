"""What OpenAI's clients send. Unknown fields are refused, and so is every known one that cannot be honoured."""

from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec

from appliance.errors import InvalidInput, UnsupportedParameter
from appliance.pipelines.language.generate import (
    Penalty,
    Repetition,
    Sampling,
    Seed,
    Stop,
    Stops,
    Temperature,
    TopK,
    TopP,
)

MOST_MESSAGES = 2048
MOST_TOOLS = 128
MOST_SCHEMA = 64 << 10

Tokens = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
S = TypeVar("S", bound="Asked")

_NOT_OFFERED = (
    "audio", "prediction", "web_search_options", "moderation", "functions", "function_call", "verbosity",
)  # fmt: skip


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """``include_usage``: one more event before the end tells the tokens."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Function(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A tool's description; ``parameters``: a JSON schema."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: Function


class Called(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class Call(msgspec.Struct, forbid_unknown_fields=True):
    """A call of a tool in an assistant's message. ``index``: as it was in the stream."""

    id: str
    function: Called
    type: Literal["function"] = "function"
    index: int | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One of the conversation; ``content`` in parts is looked at later, to refuse what is no text by its name."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    audio: Any = None
    function_call: Any = None
    annotations: Any = None


class Asked(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both kinds of request have. The last three are no fields of OpenAI's."""

    model: str
    max_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    n: int | None = None
    stop: Stops | Stop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    top_k: TopK | None = None
    repetition_penalty: Repetition | None = None
    ignore_eos: bool = False

    def check(self) -> None:
        """Raises UnsupportedParameter for what cannot be honoured."""
        _only(self, n=(1,), logit_bias=({},))
        if self.stream_options is not None:
            if not self.stream:
                raise InvalidInput("'stream_options' is for 'stream': true", param="stream_options")
            if self.stream_options.include_obfuscation:
                refuse("stream_options.include_obfuscation", "nothing is hidden here")

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def usage(self) -> bool:
        """Whether a stream is to tell its tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_tokens: int | None, logprobs: bool, guidance: tuple[str, str] | None = None) -> Sampling:
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logprobs=logprobs,
            guidance=guidance,
            ignore_end=self.ignore_eos,
        )


class ChatRequest(Asked, kw_only=True):
    """``POST /v1/chat/completions``. ``chat_template_kwargs`` is no field of OpenAI's."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: Annotated[list[Tool], msgspec.Meta(max_length=MOST_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    service_tier: str | None = None
    store: bool | None = None
    verbosity: str | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    moderation: Any = None
    functions: Any = None
    function_call: Any = None
    metadata: Any = None  # these do not change an answer, on OpenAI's side either
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    chat_template_kwargs: dict[str, str | int | float | bool | None] | None = None

    def check(self) -> None:
        super().check()
        _only(self, modalities=(["text"],), service_tier=("auto", "default"), store=(False,), top_logprobs=(0,))
        _only(self, **dict.fromkeys(_NOT_OFFERED, ()))
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            words = "'max_tokens' and 'max_completion_tokens' are two names of one thing, and differ"
            raise InvalidInput(words, param="max_tokens")


class CompletionRequest(Asked, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    logprobs: int | None = None

    def check(self) -> None:
        super().check()
        _only(self, best_of=(1,), echo=(False,), suffix=("",))
        if self.logprobs is not None:
            refuse("logprobs", "/v1/chat/completions tells them")

    @property
    def one_prompt(self) -> str | list[int]:
        """UnsupportedParameter for several."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return prompt
        tokens = [token for token in prompt if isinstance(token, int)]
        if tokens and len(tokens) == len(prompt):
            return tokens
        if len(prompt) != 1:
            refuse("prompt", f"it has {len(prompt)} texts, one request is for one")
        only = prompt[0]
        return only if isinstance(only, str) else list(only) if isinstance(only, list) else [only]


def decode(form: type[S], body: bytes | bytearray) -> S:
    """A request, checked. InvalidInput naming the field; UnsupportedParameter for an unknown one."""
    try:
        request = msgspec.json.decode(body, type=form)
    except msgspec.ValidationError as error:
        raise fault_of(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not valid JSON: {error}", param="body") from None
    request.check()
    return request


def fault_of(error: msgspec.ValidationError, field: str = "") -> InvalidInput:
    """The error for a body, or a ``field`` of it, of the wrong form."""
    text, _, path = str(error).partition(" - at ")
    where = f"{field}{path.strip('`').removeprefix('$')}".removeprefix(".")
    if "unknown field" in text:
        name = text.split("`")[1]
        where = f"{where}.{name}" if where else name
        return UnsupportedParameter(f"there is no parameter '{where[:128]}' here", param=where[:128])
    if "missing required field" in text:
        name = text.split("`")[1]
        where = f"{where}.{name}" if where else name
        return InvalidInput(f"'{where}' is missing", param=where)
    text = text.replace("`", "")
    return InvalidInput(f"'{where or 'body'}': {text[:1].lower()}{text[1:]}", param=where or "body")


def refuse(field: str, why: str) -> NoReturn:
    """Raises UnsupportedParameter."""
    raise UnsupportedParameter(f"'{field}' cannot be honoured: {why}", param=field)


def _only(request: Asked, **allowed: tuple[Any, ...]) -> None:
    """Of each field nothing but null and the values ``allowed``."""
    for name, values in allowed.items():
        value = getattr(request, name)
        if value is not None and value not in values:
            known = " or ".join(msgspec.json.encode(v).decode() for v in values)
            refuse(name, f"here it may only be {known}" if known else "it is not offered here")
