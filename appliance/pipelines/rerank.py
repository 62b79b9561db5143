"""Reranking: a question and documents in, how well each of them answers it out (a cross-encoder)."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from appliance.errors import InvalidInput, InvalidOutput, ModelLoadError
from appliance.models.tensors import Array
from appliance.pipelines.base import Answer, Caller, Item, PipelineContext
from appliance.pipelines.language.tokenizer import Encoded, TextTokenizer
from appliance.pipelines.options import own_spec, parse, wishes
from appliance.pipelines.outputs import finite, pick, sigmoid, softmax
from appliance.pipelines.text_runs import Outputs, TextLimits, TextRuns, nth, rows_of


class Options(TextLimits, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[pipeline]`` of a reranker. ``activation``: how its numbers become a score; ``auto``: sigmoid of one number,
    of two the second's share by softmax."""

    task: Literal["rerank"] = "rerank"
    output: str | None = None
    activation: Literal["auto", "sigmoid", "none"] = "auto"


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one request may ask for; ``query`` is needed."""

    query: str
    truncate: bool | None = None


class Ranked(NamedTuple):
    """``scores``: of each document, in the order given. ``texts``: the pairs that were run."""

    scores: list[float]
    texts: list[Encoded]

    @property
    def tokens(self) -> int:
        """All that were run."""
        return sum(len(text.ids) for text in self.texts)


class Rerank:
    """Result: ``{"score", "tokens"}`` of a document (the item's text) for the parameter ``query``, and
    ``truncated_from``, the tokens of both before, if they were cut."""

    task = "rerank"
    parts: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()

    def __init__(self, context: PipelineContext) -> None:
        spec = own_spec(context)
        self._options = options = parse(context, Options)
        self._tokenizer = TextTokenizer.beside(context.folders, context.name)
        self._runs = TextRuns(spec, options, context.folders, self._tokenizer.pad_id, self._tokenizer.length)
        self._output = pick(spec, options.output)
        shape = self._output.shape
        self._rank = len(shape)
        size = shape[1] if self._rank == 2 else 1
        if self._rank not in (1, 2) or size not in (-1, 1, 2) or (size == 2 and options.activation != "auto"):
            raise ModelLoadError(
                f"model '{context.name}': output '{self._output.name}' {self._output.describe()} is no score; "
                "one number a text is, or two with activation 'auto'"
            )

    async def run(self, item: Item, call: Caller, accept: str | None) -> Answer:
        if item.text is None:
            raise InvalidInput(
                f"'{item.field}': this model takes a text, and the parameter 'query'", param=item.field
            )
        wish = wishes(item, Wishes)
        found = await self.rank(wish.query, [item.text], call, wish.truncate, item.field)
        (text,) = found.texts
        result = {"score": found.scores[0], "tokens": len(text.ids)}
        if text.whole > len(text.ids):
            result["truncated_from"] = text.whole
        return Answer(result)

    async def rank(
        self,
        query: str,
        documents: Sequence[str],
        call: Caller,
        truncate: bool | None = None,
        field: str = "documents",
    ) -> Ranked:
        """A score for each document. Raises InvalidInput, InputTooLarge, what ``call`` raises."""
        self._runs.check_texts([query], "query")
        self._runs.check_texts(documents, field)
        limit = self._runs.max_tokens

        def encode(index: int) -> Encoded:
            name = nth(field, index, len(documents))
            return self._tokenizer.pair(query, documents[index], limit=limit, field=name)

        sizes = [len(query) + len(document) for document in documents]
        encoded = await self._runs.encode(sizes, encode, call, truncate, field)
        scores = await self._runs.run(encoded, call, self._scores)
        return Ranked([round(float(score), 6) for score in scores], encoded)

    def _scores(self, outputs: Outputs, mask: Array) -> Array:
        name = self._output.name
        numbers = finite(rows_of(outputs, name, mask, self._rank), name).reshape(len(mask), -1)
        if numbers.shape[1] == 2 and self._options.activation == "auto":
            return softmax(numbers)[:, 1]
        if numbers.shape[1] != 1:
            raise InvalidOutput(f"the model's output '{name}' has {numbers.shape[1]} numbers a text, not one")
        return numbers[:, 0] if self._options.activation == "none" else sigmoid(numbers[:, 0])
