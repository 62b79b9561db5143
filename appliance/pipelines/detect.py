"""Object detection: a picture in, boxes in its pixels out."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np

from appliance.errors import InvalidOutput
from appliance.models.tensors import Array
from appliance.pipelines import boxes as families
from appliance.pipelines.base import Answer, Caller, Item, PipelineContext
from appliance.pipelines.nms import suppress
from appliance.pipelines.options import Share, file_of, own_spec, parse, wishes
from appliance.pipelines.outputs import check_labels, label_of
from appliance.pipelines.preprocess import Geometry, ImageOptions, Preprocessor

Most = Annotated[int, msgspec.Meta(ge=1, le=10_000)]

_MAX_CANDIDATES = 10_000  # of the best scores, before suppression; bounds its work at a threshold of 0
_IMAGE_DEFAULTS: dict[families.Format, dict[str, Any]] = {
    "boxes-scores": {},
    "yolov5": {"resize": "letterbox", "pad": 114},
    "yolov8": {"resize": "letterbox", "pad": 114},
    "yolov10": {"resize": "letterbox", "pad": 114},
    "yolox": {"resize": "letterbox", "pad": 114, "align": "start", "color": "bgr", "scale": 1.0},
    "detr": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    "rtdetr": {},
}
"""How each family's authors feed their models, where ``[pipeline.image]`` does not say otherwise."""
_SUPPRESSED: tuple[families.Format, ...] = ("yolov10", "detr", "rtdetr")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[pipeline]`` of a detector. ``iou`` None: 0.45, or 1 (no suppression) for families that need none."""

    task: Literal["detect"] = "detect"
    image: ImageOptions = ImageOptions()
    format: families.Format | None = None
    threshold: Share = 0.4
    iou: Share | None = None
    max_detections: Most = 100


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one request may ask for."""

    threshold: Share | None = None
    iou: Share | None = None
    max_detections: Most | None = None


class _Limits(NamedTuple):
    threshold: float
    iou: float
    most: int


class Detect:
    """Result: ``{"detections": [{"label", "index", "score", "box": [x1, y1, x2, y2]}], "width", "height"}``,
    best first, in pixels of the original (upright) picture."""

    task = "detect"
    parts: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()

    def __init__(self, context: PipelineContext) -> None:
        spec = own_spec(context)
        self._options = parse(context, Options)
        self._labels = context.labels
        self._layout = families.recognise(spec, self._options.format, len(context.labels))
        family = self._layout.format
        # DETR's label lists often count the class "nothing" too.
        check_labels(spec, context.labels, self._layout.classes, *([self._layout.classes + 1] * (family == "detr")))
        image = self._options.image.filled(**_IMAGE_DEFAULTS[family])
        self._image = Preprocessor(spec, image, context.max_pixels)
        self._iou = (1.0 if family in _SUPPRESSED else 0.45) if self._options.iou is None else self._options.iou

    async def run(self, item: Item, call: Caller, accept: str | None) -> Answer:
        limits = self._limits(wishes(item, Wishes))
        tensor, geometry = await call.offload(self._image.load, file_of(item), item.field)
        outputs = await call.infer({self._image.input: tensor})
        return Answer(await call.offload(self._finish, outputs, geometry, limits))

    def _limits(self, asked: Wishes) -> _Limits:
        options = self._options
        return _Limits(
            threshold=options.threshold if asked.threshold is None else asked.threshold,
            iou=self._iou if asked.iou is None else asked.iou,
            most=asked.max_detections or options.max_detections,
        )

    def _finish(self, outputs: Mapping[str, Array], geometry: Geometry, limits: _Limits) -> dict[str, Any]:
        found = families.read(self._layout, outputs, self._image.size, limits.threshold)
        if found.classes.size:
            low, high = int(found.classes.min()), int(found.classes.max())
            if low < 0 or (self._labels and high >= len(self._labels)):
                wrong = low if low < 0 else high
                raise InvalidOutput(f"the model gave class {wrong}; there are {len(self._labels)} labels")
        if found.scores.size > _MAX_CANDIDATES:
            best = np.argsort(-found.scores, kind="stable")[:_MAX_CANDIDATES]
            found = families.Candidates(found.boxes[best], found.scores[best], found.classes[best])
        # In the original's pixels and clipped first: what lies outside the picture does not count as shared.
        boxes = geometry.to_original(found.boxes)
        kept = suppress(boxes, found.scores, found.classes, limits.iou, limits.most)
        rows = zip(boxes[kept].tolist(), found.scores[kept].tolist(), found.classes[kept].tolist(), strict=True)
        return {
            "detections": [
                {
                    "label": label_of(self._labels, index),
                    "index": index,
                    "score": round(score, 6),
                    "box": [round(edge, 2) for edge in box],
                }
                for box, score, index in rows
            ],
            "width": geometry.width,
            "height": geometry.height,
        }
