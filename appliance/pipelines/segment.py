"""Segmentation: a picture in; out comes the mask of its subject, or the subject cut out."""

import base64
import math
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from PIL import Image

from appliance.errors import InvalidOutput, ModelLoadError
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Array
from appliance.pipelines import images
from appliance.pipelines.base import Answer, Caller, Item, Picture, PipelineContext
from appliance.pipelines.options import Share, file_of, own_spec, parse, wishes
from appliance.pipelines.outputs import finite, pick, sigmoid, softmax
from appliance.pipelines.preprocess import Geometry, ImageOptions, Preprocessor


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[pipeline]`` of a model whose output is a mask."""

    task: Literal["segment"] = "segment"
    image: ImageOptions = ImageOptions()
    output: str | None = None
    activation: Literal["none", "sigmoid", "softmax"] = "none"
    channel: Annotated[int, msgspec.Meta(ge=0)] | None = None
    threshold: Share = 0.5


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one request may ask for."""

    threshold: Share | None = None


class Segment:
    """Result: ``{"width", "height", "coverage", "threshold", "mask"}``.

    ``mask``: base64 of an 8-bit grey PNG of the original's size, 255 where the model is sure of the subject.
    ``coverage``: the share of pixels whose mask is at or over ``threshold``. As a picture: ``image/png``, the
    subject with the mask as its transparency; ``image/jpeg``, the same over white.
    """

    task = "segment"
    parts: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ("image/png", "image/jpeg")

    def __init__(self, context: PipelineContext) -> None:
        spec = own_spec(context)
        self._options = parse(context, Options)
        self._image = Preprocessor(spec, self._options.image, context.max_pixels)
        self._output = pick(spec, self._options.output).name
        self._check_channel(spec)
        self._max_pixels = context.max_pixels

    async def run(self, item: Item, call: Caller, accept: str | None) -> Answer:
        asked = wishes(item, Wishes).threshold
        threshold = self._options.threshold if asked is None else asked
        data = file_of(item)
        loaded, tensor, geometry = await call.offload(self._start, data, item.field, accept is not None)
        outputs = await call.infer({self._image.input: tensor})
        return await call.offload(self._finish, outputs[self._output], loaded, geometry, threshold, accept)

    def _start(self, data: bytes, field: str, whole: bool) -> tuple[images.Loaded | None, Array, Geometry]:
        """The pixels are kept only where they are part of the answer."""
        if not whole:
            return None, *self._image.load(data, field)
        loaded = images.load(data, field=field, max_pixels=self._max_pixels, keep_alpha=True)
        return loaded, *self._image.apply(_over_white(loaded))

    def _finish(
        self, output: Array, loaded: images.Loaded | None, geometry: Geometry, threshold: float, accept: str | None
    ) -> Answer:
        mask = _to_original(self._mask(finite(output, self._output)), geometry)
        values = np.asarray(mask)
        result: dict[str, Any] = {
            "width": geometry.width,
            "height": geometry.height,
            "coverage": round(float((values >= max(1, round(threshold * 255))).mean()), 6),
            "threshold": threshold,
        }
        if loaded is None or accept is None:
            result["mask"] = base64.b64encode(images.encode(mask, "image/png")).decode()
            return Answer(result)
        if accept == "image/jpeg":
            white = Image.new("RGB", mask.size, (255, 255, 255))
            white.paste(loaded.image, mask=_and(mask, loaded.alpha))
            return Answer(result, Picture(accept, images.encode(white, "image/jpeg")))
        # Colours under full transparency are dropped: they would still be in the file for anybody to see.
        alpha = _and(mask, loaded.alpha)
        cut = Image.new("RGB", mask.size)
        cut.paste(loaded.image, mask=alpha.point([0, *[255] * 255]))
        cut.putalpha(alpha)
        return Answer(result, Picture("image/png", images.encode(cut, "image/png")))

    def _mask(self, output: Array) -> Array:
        """The subject's mask, float [h,w], 0–1."""
        maps = _channels_last(output)
        channel = self._options.channel or 0
        if channel >= maps.shape[2]:
            raise InvalidOutput(f"the mask has {maps.shape[2]} channels, channel {channel} is asked for")
        if self._options.activation == "softmax":
            return softmax(maps)[:, :, channel]
        mask = maps[:, :, channel]
        return sigmoid(mask) if self._options.activation == "sigmoid" else mask

    def _check_channel(self, spec: ModelSpec) -> None:
        shape = pick(spec, self._options.output).shape
        if len(shape) not in (3, 4):
            raise ModelLoadError(f"model '{spec.name}': a mask has 3 or 4 dimensions, its output has {list(shape)}")
        count = 1 if len(shape) == 3 else min((d for d in (shape[1], shape[3]) if d > 0), default=-1)
        if self._options.channel is None and count != 1:
            raise ModelLoadError(
                f"model.toml of '{spec.name}', [pipeline] channel: the output {list(shape)} has several channels, "
                "say which is the subject"
            )


def _channels_last(output: Array) -> Array:
    """[1,h,w], [1,C,h,w] or [1,h,w,C] → [h,w,C]. Of the outer axes, the shorter one is C."""
    if output.ndim not in (3, 4) or output.shape[0] != 1:
        raise InvalidOutput(f"the output {list(output.shape)} is not one picture's mask")
    if output.ndim == 3:
        output = output[:, None]
    last = output.shape[3] <= output.shape[1]
    maps: Array = output[0] if last else output[0].transpose(1, 2, 0)
    return maps


def _to_original(mask: Array, geometry: Geometry) -> Image.Image:
    """A mask of the model's picture → mode L, of the original's size; 0 where the model saw nothing."""
    small = Image.fromarray(np.rint(np.clip(mask, 0, 1) * 255).astype(np.uint8))
    size = geometry.width, geometry.height
    # The mask's pixels may be coarser than the model's.
    x, y = small.width / geometry.size[0], small.height / geometry.size[1]
    scale, offset = (geometry.scale[0] * x, geometry.scale[1] * y), (geometry.offset[0] * x, geometry.offset[1] * y)
    # Padding is cut off first, or it would bleed into the edges of the picture.
    left, top = (max(0, math.floor(o + 1e-6)) for o in offset)
    right = min(small.width, math.ceil(offset[0] + scale[0] * size[0] - 1e-6))
    bottom = min(small.height, math.ceil(offset[1] + scale[1] * size[1] - 1e-6))
    small = small.crop((left, top, right, bottom))
    inverse = (scale[0], 0, offset[0] - left, 0, scale[1], offset[1] - top)
    return small.transform(size, Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR)


def _over_white(loaded: images.Loaded) -> images.Loaded:
    if loaded.alpha is None:
        return loaded
    white = Image.new("RGB", loaded.image.size, (255, 255, 255))
    white.paste(loaded.image, mask=loaded.alpha)
    return loaded._replace(image=white)


def _and(mask: Image.Image, alpha: Image.Image | None) -> Image.Image:
    return mask if alpha is None else Image.fromarray(np.minimum(np.asarray(mask), np.asarray(alpha)))
