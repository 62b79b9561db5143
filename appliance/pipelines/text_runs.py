"""Texts → tokens → a model's runs, for the tasks that answer each text with one row: ``embed`` and ``rerank``."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from appliance.errors import InputTooLarge, InvalidInput, InvalidOutput, ModelLoadError
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Array, numpy_dtype
from appliance.pipelines.base import Caller
from appliance.pipelines.language.tokenizer import Encoded, read_beside
from appliance.pipelines.options import Positive

IDS, MASK, TYPES, PLACES = "input_ids", "attention_mask", "token_type_ids", "position_ids"
SENTENCE_CONFIG = "sentence_bert_config.json"
_USUAL_TOKENS = 512
_IN_FLIGHT = 2  # one is computed while the other's answer is read
_SLICE = 1 << 18  # characters that are made into tokens at a time; between two slices a caller who left is noticed
_INLINE = 1 << 16  # numbers that are read faster than a trip to the thread pool takes

Outputs = Mapping[str, Array]


class TextLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of ``[pipeline]`` about sizes.

    ``max_tokens``: of one text; None: what the files beside the model say. ``truncate``: a longer one is cut, else
    refused. ``batch_tokens``: of one run, with what texts are filled up with. ``max_texts``: of one request;
    ``max_characters``: of one text.
    """

    max_tokens: Positive | None = None
    truncate: bool = True
    batch_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = 8192
    max_texts: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)] = 2048
    max_characters: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = 200_000


class _SentenceConfig(msgspec.Struct):
    max_seq_length: int | None = None


class TextRuns:
    """How one model's texts are run. ``max_tokens``: of one text.

    Texts share a run only where the warm-up proved that none changes with its neighbours (``ModelSpec.max_batch``).
    """

    def __init__(
        self, spec: ModelSpec, limits: TextLimits, folders: Sequence[Path], pad_id: int, length: int | None
    ) -> None:
        """``length``: the most tokens that the tokenizer's file cuts to. ModelLoadError if it takes no texts."""
        _check_inputs(spec)
        self._spec = spec
        self.limits = limits
        self._pad_id = pad_id
        ids = spec.input(IDS)
        assert ids is not None
        self._fixed = ids.shape[1] if ids.shape[1] > 0 else None
        self._rows = spec.max_batch if spec.max_batch > 1 else 1
        self._mixes = spec.input(MASK) is not None  # without a mask nothing can be filled up
        self.max_tokens = limits.max_tokens or _said_length(folders) or length or _USUAL_TOKENS
        if self._fixed is not None:
            self.max_tokens = min(self.max_tokens, self._fixed)

    def check_texts(self, texts: Sequence[str | Sequence[int]], field: str) -> None:
        """InvalidInput for none; InputTooLarge, naming it, for too many texts, or one of too many characters."""
        if not texts:
            raise InvalidInput(f"'{field}' is empty", param=field)
        if len(texts) > self.limits.max_texts:
            told = f"'{field}' has {len(texts)} texts, the limit is {self.limits.max_texts}"
            raise InputTooLarge(told, param=field)
        for index, text in enumerate(texts):
            if isinstance(text, str) and len(text) > self.limits.max_characters:
                name = nth(field, index, len(texts))
                told = f"'{name}' has {len(text)} characters, the limit is {self.limits.max_characters}"
                raise InputTooLarge(told, param=name)

    async def encode(
        self, sizes: Sequence[int], encode: Callable[[int], Encoded], call: Caller, truncate: bool | None, field: str
    ) -> list[Encoded]:
        """``encode(index)`` of each text, in the thread pool. ``sizes``: their characters.

        InvalidInput for one without tokens, InputTooLarge for one that would have to be cut and may not be.
        """
        found: list[Encoded] = []
        for part in _slices(sizes):
            found += await call.offload(lambda part: [encode(index) for index in part], part)
        may = self.limits.truncate if truncate is None else truncate
        for index, text in enumerate(found):
            name = nth(field, index, len(sizes))
            if not text.ids:
                raise InvalidInput(f"'{name}' has no tokens", param=name)
            if text.whole > self.max_tokens and not may:
                told = f"'{name}' has {text.whole} tokens, the model's limit is {self.max_tokens}"
                raise InputTooLarge(told, param=name)
        return found

    async def run(self, texts: Sequence[Encoded], call: Caller, read: Callable[[Outputs, Array], Array]) -> Array:
        """One row for each text. ``read``: a run's outputs and its mask, bool [texts, tokens], to its rows."""
        rows: list[Array | None] = [None] * len(texts)
        todo = iter(self.groups([len(text.ids) for text in texts]))

        async def work() -> None:
            for chosen in todo:  # of all workers together
                inputs, mask = self.inputs([texts[index] for index in chosen])
                outputs = await call.infer(inputs)
                small = sum(array.size for array in outputs.values()) <= _INLINE
                found = read(outputs, mask) if small else await call.offload(read, outputs, mask)
                for index, row in zip(chosen, found, strict=True):
                    rows[index] = row

        tasks = [asyncio.ensure_future(work()) for _ in range(min(_IN_FLIGHT, len(texts)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return np.stack([row for row in rows if row is not None])

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """The texts of each run by their indices, the longest first: as many as may share a run and, filled up to the
        longest of them, are within ``batch_tokens``."""
        found: list[list[int]] = []
        for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
            group = found[-1] if found else []
            width = self._fixed or (lengths[group[0]] if group else 0)
            fits = len(group) < self._rows and (len(group) + 1) * width <= self.limits.batch_tokens
            if group and fits and (self._mixes or lengths[index] == lengths[group[0]]):
                group.append(index)
            else:
                found.append([index])
        return found

    def inputs(self, texts: Sequence[Encoded]) -> tuple[dict[str, Array], Array]:
        """A run's inputs, filled up at the end, and its mask, bool [texts, tokens]."""
        width = self._fixed or max(len(text.ids) for text in texts)
        shape = len(texts), width
        arrays = {name: np.zeros(shape, np.int64) for name in (IDS, MASK, TYPES)}
        arrays[IDS][:] = self._pad_id
        for row, text in enumerate(texts):
            size = len(text.ids)
            arrays[IDS][row, :size] = text.ids
            arrays[MASK][row, :size] = 1
            arrays[TYPES][row, :size] = text.types
        arrays[PLACES] = np.broadcast_to(np.arange(width), shape)
        wanted = [tensor for tensor in self._spec.inputs if tensor.name in arrays]
        return {t.name: arrays[t.name].astype(numpy_dtype(t.datatype)) for t in wanted}, arrays[MASK].astype(bool)


def nth(field: str, index: int, count: int) -> str:
    """How one of several texts is called in messages."""
    return field if count == 1 else f"{field}[{index}]"


def rows_of(outputs: Outputs, name: str, mask: Array, rank: int) -> Array:
    """An output with one row for each text of a run. InvalidOutput for one of another shape."""
    output = outputs[name]
    if output.ndim != rank or output.shape[0] != len(mask) or (rank == 3 and output.shape[1] != mask.shape[1]):
        raise InvalidOutput(f"the model's output '{name}' {list(output.shape)} is not one row a text")
    return output


def _check_inputs(spec: ModelSpec) -> None:
    known = (IDS, MASK, TYPES, PLACES)
    if spec.input(IDS) is None:
        raise ModelLoadError(f"model '{spec.name}' has no input '{IDS}', so it takes no texts")
    for tensor in spec.inputs:
        if tensor.name in known and tensor.datatype in ("INT64", "INT32") and len(tensor.shape) == 2:
            continue
        if tensor.name in known or not tensor.optional:
            raise ModelLoadError(
                f"model '{spec.name}': input '{tensor.name}' {tensor.describe()} cannot be made from a text; those "
                f"that can are {', '.join(known)}, of INT64 or INT32[-1,-1]"
            )


def _said_length(folders: Sequence[Path]) -> int | None:
    text = read_beside(folders, SENTENCE_CONFIG)
    if text is None:
        return None
    try:
        said = msgspec.json.decode(text, type=_SentenceConfig).max_seq_length
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"{SENTENCE_CONFIG}: {error}") from None
    return said if said is not None and said > 0 else None


def _slices(sizes: Sequence[int]) -> Iterator[range]:
    start = taken = 0
    for index, size in enumerate(sizes):
        if index > start and taken + size > _SLICE:
            yield range(start, index)
            start, taken = index, 0
        taken += size
    yield range(start, len(sizes))
