"""Triton's generate extension: ``POST /v2/models/{m}[/versions/{v}]/generate`` and ``…/generate_stream``.

What stands in ``parameters`` and what stands beside them counts alike. The names are those of Triton's backends for
language models, where they mean the same.
"""

from typing import Annotated, Any

import msgspec

from appliance.api.body import Receive, Scope, Send
from appliance.api.context import Context
from appliance.api.generation import speaker
from appliance.api.oip import wake
from appliance.api.openai.requests import Tokens, fault_of, refuse
from appliance.api.openai.writers import event
from appliance.api.respond import Headers
from appliance.api.telling import Plan, tell
from appliance.errors import InvalidInput
from appliance.pipelines.language.answer import Piece
from appliance.pipelines.language.generate import Penalty, Repetition, Sampling, Seed, Stops, Temperature, TopK, TopP

_encode = msgspec.json.Encoder().encode
_NUMBERS = (
    "max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "frequency_penalty", "presence_penalty",
)  # fmt: skip


Word = Annotated[str, msgspec.Meta(max_length=256)]


class Generation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """``stop_words``, ``random_seed``: other names of ``stop`` and ``seed``. Texts that are empty do not count in
    lists of them: some clients send one for none."""

    text_input: str
    id: str = ""
    max_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    random_seed: Seed | None = None
    repetition_penalty: Repetition | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    ignore_eos: bool = False
    stop: Stops | Word | None = None
    stop_words: list[Word] | Word | None = None
    bad_words: list[str] | str | None = None
    stream: bool | None = None
    exclude_input_in_output: bool | None = None

    @property
    def stops(self) -> list[str]:
        told = [*_texts(self.stop), *_texts(self.stop_words)]
        return [text for text in told if text]

    def sampling(self) -> Sampling:
        seed = self.seed if self.seed is not None else self.random_seed
        return Sampling(**{name: getattr(self, name) for name in _NUMBERS}, seed=seed, ignore_end=self.ignore_eos)


class TritonGenerate:
    """The endpoint. Raises ApplianceError for the caller to answer, or to count."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __call__(
        self,
        model: str,
        version: str | None,
        stream: bool,
        scope: Scope,
        headers: dict[bytes, bytes],
        request_id: str,
        receive: Receive,
        send: Send,
        extra: Headers,
    ) -> None:
        context = self._context
        async with context.body(headers, receive) as body:
            request = decode(body, stream)
        await wake(context, model, headers)
        served, speaks = speaker(context, model, version)
        prompt = await speaks.encode(request.text_input, context.offload, special=True, field="text_input")
        options = speaks.sampling(
            request.sampling(), len(prompt), "max_tokens" if request.max_tokens else "text_input"
        )
        answer = speaks.answer(request.stops, before=prompt)
        plan = Plan(served, prompt, options, answer, _Writer(model, served.file.version, request.id), stream)
        await tell(context, plan, scope, headers, request_id, receive, send, extra)


class _Writer:
    def __init__(self, model: str, version: str, id: str) -> None:
        self._head = {"id": id} if id else {}
        self._head |= {"model_name": model, "model_version": version}

    def events(self, piece: Piece) -> bytes:
        return event({**self._head, "text_output": piece.text}) if piece.text else b""

    def last(self, prompt: int, count: int) -> bytes:
        return b""

    def whole(self, piece: Piece, prompt: int, count: int) -> bytes:
        return _encode({**self._head, "text_output": piece.text})


def decode(body: bytes | bytearray, stream: bool) -> Generation:
    """A request to ``generate_stream``, or to ``generate``. InvalidInput naming the field; UnsupportedParameter."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        inner = fields.pop("parameters", None)
        inner = {} if inner is None else inner
        if not isinstance(inner, dict):
            raise InvalidInput("'parameters' must be an object", param="parameters")
        if twice := fields.keys() & inner.keys():
            raise InvalidInput(f"'{min(twice)}' stands in 'parameters' and beside them", param=min(twice))
        request = msgspec.convert({**fields, **inner}, Generation)
    except msgspec.ValidationError as error:
        raise fault_of(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not valid JSON: {error}", param="body") from None
    if request.stream and not stream:
        refuse("stream", "generate answers once; generate_stream streams")
    if any(_texts(request.bad_words)):
        refuse("bad_words", "no words are kept out of answers here")
    if request.exclude_input_in_output is False:
        refuse("exclude_input_in_output", "an answer is told without its prompt")
    if None not in (request.seed, request.random_seed):
        raise InvalidInput("'seed' and 'random_seed' are two names of one thing", param="random_seed")
    if len(request.stops) > 16:
        raise InvalidInput("'stop_words': at most 16", param="stop_words")
    return request


def _texts(told: list[str] | str | None) -> list[str]:
    return [told] if isinstance(told, str) else told or []
