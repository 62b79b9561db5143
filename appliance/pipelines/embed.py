"""Embeddings: a text in, a vector out, whose direction tells what the text is about."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from appliance.errors import InvalidInput, ModelLoadError
from appliance.models.spec import ModelSpec, TensorSpec
from appliance.models.tensors import FLOATS, Array
from appliance.pipelines.base import Answer, Caller, Item, PipelineContext
from appliance.pipelines.language.tokenizer import Encoded, TextTokenizer, read_beside
from appliance.pipelines.options import Positive, own_spec, parse, wishes
from appliance.pipelines.outputs import finite, pick
from appliance.pipelines.text_runs import IDS, MASK, PLACES, TYPES, TextLimits, TextRuns, nth, rows_of

POOLING_CONFIG = "1_Pooling/config.json"
_TOKENS = ("last_hidden_state", "token_embeddings")  # names of outputs with a vector for each token
_WHOLE = "sentence_embedding"  # and of one with a vector for each text

Text = str | Sequence[int]
Pooling = Literal["mean", "cls", "last", "max"]


class Options(TextLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[pipeline]`` of an embedder. ``pooling``: None: from the files beside the model. ``dimensions``: lengths that
    a request may have vectors cut to, beside the whole one."""

    task: Literal["embed"] = "embed"
    output: str | None = None
    pooling: Pooling | None = None
    normalize: bool = True
    dimensions: tuple[Positive, ...] = ()


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one request may ask for."""

    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    truncate: bool | None = None


class Embedded(NamedTuple):
    """``vectors``: FP32 [texts, dimensions]. ``texts``: the tokens that were run, in the order asked."""

    vectors: Array
    texts: list[Encoded]

    @property
    def tokens(self) -> int:
        """All that were run."""
        return sum(len(text.ids) for text in self.texts)


class _PoolingConfig(msgspec.Struct):
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_lasttoken: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False


class Embed:
    """Result: ``{"embedding": [...], "tokens"}``, and ``truncated_from``, its tokens before, if the text was cut."""

    task = "embed"
    parts: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()

    def __init__(self, context: PipelineContext) -> None:
        spec = own_spec(context)
        self._options = options = parse(context, Options)
        self._tokenizer = TextTokenizer.beside(context.folders, context.name)
        self._runs = TextRuns(spec, options, context.folders, self._tokenizer.pad_id, self._tokenizer.length)
        self._output = _output(spec, options.output)
        self._rank = len(self._output.shape)
        if self._rank not in (2, 3):
            described = f"'{self._output.name}' {self._output.describe()}"
            raise ModelLoadError(f"model '{context.name}': output {described} has no vector for a token or a text")
        self._pooling = options.pooling or _said_pooling(context)
        self._size = self._output.shape[-1]
        if self._size > 0 and max(options.dimensions, default=0) > self._size:
            told = f"dimensions: {max(options.dimensions)} is over the model's {self._size}"
            raise ModelLoadError(f"model.toml of '{context.name}', [pipeline] {told}")

    async def run(self, item: Item, call: Caller, accept: str | None) -> Answer:
        if item.text is None:
            raise InvalidInput(f"'{item.field}': this model takes a text", param=item.field)
        wish = wishes(item, Wishes)
        found = await self.embed([item.text], call, wish.dimensions, wish.truncate, item.field)
        (text,) = found.texts
        result: dict[str, Any] = {"embedding": found.vectors[0].tolist(), "tokens": len(text.ids)}
        if text.whole > len(text.ids):
            result["truncated_from"] = text.whole
        return Answer(result)

    async def embed(
        self,
        texts: Sequence[Text],
        call: Caller,
        dimensions: int | None = None,
        truncate: bool | None = None,
        field: str = "input",
    ) -> Embedded:
        """A vector for each text. One of ids is run as it is: with the special tokens that it has.

        ``truncate``: None: as the model's options say. Raises InvalidInput, InputTooLarge, what ``call`` raises.
        """
        self._check_dimensions(dimensions)
        self._runs.check_texts(texts, field)
        encoded = await self._runs.encode(
            [len(text) for text in texts],
            lambda index: self._encode(texts[index], nth(field, index, len(texts))),
            call,
            truncate,
            field,
        )
        pooled = await self._runs.run(encoded, call, self._pool)
        if dimensions is not None:
            pooled = pooled[:, :dimensions]
        if self._options.normalize:
            pooled = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        return Embedded(np.ascontiguousarray(pooled, np.float32), encoded)

    def _check_dimensions(self, wanted: int | None) -> None:
        allowed = self._options.dimensions
        if wanted is None or wanted in allowed or wanted == self._size:
            return
        sizes = ", ".join(str(size) for size in sorted({*allowed, self._size} - {-1})) or "none"
        raise InvalidInput(
            f"'dimensions': {wanted} is not one that this model has; it has {sizes}", param="dimensions"
        )

    def _encode(self, text: Text, field: str) -> Encoded:
        limit = self._runs.max_tokens
        if isinstance(text, str):
            return self._tokenizer.encode(text, limit=limit, field=field)
        most = self._tokenizer.vocabulary
        if any(not 0 <= token < most for token in text):
            told = f"'{field}' has an id that is not below {most}; ids must be those of the model's own tokenizer"
            raise InvalidInput(told, param=field)
        ids = list(text[:limit])
        return Encoded(ids, [0] * len(ids), len(text))

    def _pool(self, outputs: Mapping[str, Array], mask: Array) -> Array:
        """FP32 [texts, size]. Where the output is of texts already there is nothing to pool."""
        output = rows_of(outputs, self._output.name, mask, self._rank)
        return finite(output if self._rank == 2 else pool(output, mask, self._pooling), self._output.name)


def pool(tokens: Array, mask: Array, pooling: Pooling) -> Array:
    """The vectors [texts, tokens, size] of each text's tokens as one, FP32 [texts, size]; only those of the mask,
    bool [texts, tokens], which begins with True in each row.

    ``mean``: their mean; ``cls``: the first; ``last``: the last; ``max``: the largest of each component.
    """
    found: Array
    if pooling == "cls":
        found = tokens[:, 0]
    elif pooling == "last":
        found = tokens[np.arange(len(tokens)), mask.sum(axis=1) - 1]
    elif pooling == "max":
        found = np.where(mask[..., None], tokens, -np.inf).max(axis=1)
    else:
        shares = (mask / mask.sum(axis=1, keepdims=True)).astype(np.float32)
        numbers = np.where(mask[..., None], tokens, 0).astype(np.float32, copy=False)  # those filled up may be NaN
        found = np.matmul(shares[:, None, :], numbers)[:, 0]
    return found.astype(np.float32, copy=False)


def looks_like(context: PipelineContext) -> bool:
    """Whether a model without ``[pipeline] task`` is surely an embedder: it takes tokens alone, its output has a name
    that only such models have, and its tokenizer lies beside it."""
    spec = context.spec
    if spec is None or spec.generation is not None or spec.input(IDS) is None:
        return False
    if any(tensor.name not in (IDS, MASK, TYPES, PLACES) for tensor in spec.inputs):
        return False
    named = any(spec.output(name) is not None for name in (*_TOKENS, _WHOLE))
    return named and any((folder / "tokenizer.json").is_file() for folder in context.folders)


def _output(spec: ModelSpec, wanted: str | None) -> TensorSpec:
    usual = next((n for n in (_WHOLE, *_TOKENS) if (t := spec.output(n)) and t.datatype in FLOATS - {"BF16"}), None)
    return pick(spec, wanted or usual)


def _said_pooling(context: PipelineContext) -> Pooling:
    text = read_beside(context.folders, POOLING_CONFIG)
    if text is None:
        return "mean"
    try:
        said = msgspec.json.decode(text, type=_PoolingConfig)
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"{POOLING_CONFIG}: {error}") from None
    ways: dict[Pooling, bool] = {
        "mean": said.pooling_mode_mean_tokens,
        "cls": said.pooling_mode_cls_token,
        "last": said.pooling_mode_lasttoken,
        "max": said.pooling_mode_max_tokens,
    }
    asked = [way for way, on in ways.items() if on]
    if len(asked) != 1 or said.pooling_mode_mean_sqrt_len_tokens or said.pooling_mode_weightedmean_tokens:
        raise ModelLoadError(f"{POOLING_CONFIG}: a pooling that is not known; name one of {', '.join(ways)}")
    return asked[0]
