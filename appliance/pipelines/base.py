"""The one protocol of this folder: a pipeline turns a request's item into an answer through its model(s).

A pipeline holds no state but its parameters. It never touches a device: every run of a model goes through
``Caller.infer`` (the gate), every slow piece of Python or Pillow through ``Caller.offload`` (the thread pool).
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from appliance.models.spec import GenerationOptions, ModelSpec
from appliance.models.tensors import Array

T = TypeVar("T")


class Item(msgspec.Struct, frozen=True):
    """One thing to be answered. Exactly one of ``file``, ``text``, ``inputs`` is set.

    ``field`` names it in error messages (``file``, ``file[2]``, ``image``). ``inputs``: input name → nested
    lists. ``parameters``: the request's own wishes (``top_k``, ``threshold`` …), as text or JSON values.
    """

    field: str
    file: bytes | None = None
    text: str | None = None
    inputs: Mapping[str, Any] | None = None
    parameters: Mapping[str, Any] = {}


class Picture(msgspec.Struct, frozen=True):
    """An encoded image."""

    media_type: str
    data: bytes


class Answer(msgspec.Struct, frozen=True):
    """``result`` is JSON-ready. ``picture`` is there when the request's ``accept`` asked for an image."""

    result: dict[str, Any]
    picture: Picture | None = None


class Told(msgspec.Struct, frozen=True):
    """A part of a language model's answer. ``logprobs``: one for each id, or none. ``finish``: of the last part."""

    ids: list[int]
    logprobs: list[float] = []
    finish: Literal["stop", "length"] | None = None


class Caller(Protocol):
    """What a pipeline may use of the rest of the appliance."""

    async def infer(self, inputs: Mapping[str, Array], *, model: str | None = None) -> dict[str, Array]:
        """Outputs by name. ``model`` is one of the pipeline's part models; None is its own."""
        ...

    def speak(self, prompt: Sequence[int], options: GenerationOptions) -> AsyncGenerator[Told, None]:
        """The answer of the pipeline's own language model, in parts as they come. What is not read to its end is to
        be closed (``aclosing``), which ends the run."""
        ...

    async def offload(self, work: Callable[..., T], *args: Any) -> T:
        """``work(*args)`` in the pipelines' thread pool."""
        ...


class Pipeline(Protocol):
    """``task`` names it in ``model.toml``; ``parts`` are the names of other models it calls; ``pictures`` the
    image media types it can answer with (``image/png``), most preferred first, or ()."""

    task: str
    parts: tuple[str, ...]
    pictures: tuple[str, ...]

    async def run(self, item: Item, call: Caller, accept: str | None) -> Answer:
        """Answer one item. ``accept``: one of ``pictures``, or None for JSON.

        Raises InvalidInput, InputTooLarge, UnsupportedMedia for a bad item and whatever ``call`` raises.
        """
        ...


class PipelineContext(msgspec.Struct, frozen=True):
    """What a pipeline is built from: its own model's spec (None for one made of parts only), the ``[pipeline]``
    table, labels, the image limit, and the ``folders`` in which files beside the model (a tokenizer) may lie: the
    version's own first."""

    name: str
    options: Mapping[str, Any]
    spec: ModelSpec | None
    labels: tuple[str, ...] = ()
    max_pixels: int = 50_000_000
    folders: tuple[Path, ...] = ()
