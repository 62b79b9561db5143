"""Image classification: a picture in, the likeliest classes out."""

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from appliance.errors import InvalidOutput
from appliance.models.tensors import Array
from appliance.pipelines.base import Answer, Caller, Item, PipelineContext
from appliance.pipelines.options import Positive, file_of, own_spec, parse, wishes
from appliance.pipelines.outputs import check_labels, finite, label_of, pick, sigmoid, softmax
from appliance.pipelines.preprocess import ImageOptions, Preprocessor


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[pipeline]`` of a classifier."""

    task: Literal["classify"] = "classify"
    image: ImageOptions = ImageOptions()
    output: str | None = None
    activation: Literal["auto", "softmax", "sigmoid", "none"] = "auto"
    top_k: Positive = 5


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one request may ask for."""

    top_k: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None


class Classify:
    """Result: ``{"labels": [{"label", "index", "score"}]}``, best first."""

    task = "classify"
    parts: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()

    def __init__(self, context: PipelineContext) -> None:
        spec = own_spec(context)
        self._options = parse(context, Options)
        self._image = Preprocessor(spec, self._options.image, context.max_pixels)
        output = pick(spec, self._options.output)
        self._output, self._labels = output.name, context.labels
        check_labels(spec, context.labels, output.shape[-1] if len(output.shape) == 2 else -1)

    async def run(self, item: Item, call: Caller, accept: str | None) -> Answer:
        top_k = wishes(item, Wishes).top_k or self._options.top_k
        tensor, _ = await call.offload(self._image.load, file_of(item), item.field)
        outputs = await call.infer({self._image.input: tensor})
        # Microseconds for a thousand classes: not worth a trip to the thread pool.
        return Answer(self._finish(outputs[self._output], top_k))

    def _finish(self, output: Array, top_k: int) -> dict[str, Any]:
        scores = self._activate(finite(output, self._output).reshape(-1))
        if self._labels and len(self._labels) != scores.size:
            raise InvalidOutput(f"the model gave {scores.size} classes, there are {len(self._labels)} labels")
        best = np.argsort(-scores, kind="stable")[:top_k].tolist()
        return {
            "labels": [
                {"label": label_of(self._labels, i), "index": i, "score": round(float(scores[i]), 6)} for i in best
            ]
        }

    def _activate(self, values: Array) -> Array:
        activation = self._options.activation
        if activation == "auto":
            # Probabilities add up to 1 already; logits do so only by a coincidence we accept.
            ready = values.min() >= 0 and abs(float(values.sum()) - 1) < 1e-3
            activation = "none" if ready else "softmax" if values.size > 1 else "sigmoid"
        if activation == "softmax":
            return softmax(values)
        return sigmoid(values) if activation == "sigmoid" else values
