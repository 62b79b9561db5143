"""From a picture to a model's image input, as the table ``[pipeline.image]`` of ``model.toml`` declares it.

For every pixel value x (0–255) of channel c, after resizing::

    y = (x * scale - mean[c]) / std[c]

``mean`` and ``std`` are in the order of ``color``. Rounded and clipped to 0–255 for a UINT8 input.
"""

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from PIL import Image

from appliance.errors import ModelLoadError
from appliance.models.spec import ModelSpec, TensorSpec
from appliance.models.tensors import Array, numpy_dtype
from appliance.pipelines import images
from appliance.pipelines.options import Positive

Resize = Literal["stretch", "letterbox", "crop"]
Numbers = float | Annotated[list[float], msgspec.Meta(min_length=1, max_length=4)]

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_DATATYPES = ("FP32", "FP16", "UINT8")


class ImageOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[pipeline.image]``. None: the task's default, or found out from the model (see docs/pipelines.md)."""

    input: str | None = None
    size: Annotated[list[Positive], msgspec.Meta(min_length=2, max_length=2)] | None = None
    resize: Resize | None = None
    crop: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    align: Literal["center", "start"] | None = None
    pad: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    resample: Literal["nearest", "box", "bilinear", "bicubic", "lanczos"] = "bilinear"
    scale: float | None = None
    mean: Numbers | None = None
    std: Numbers | None = None
    layout: Literal["nchw", "nhwc"] | None = None
    color: Literal["rgb", "bgr", "gray"] | None = None

    def filled(self, **defaults: Any) -> "ImageOptions":
        """These options, with ``defaults`` where a key was not given."""
        missing = {k: v for k, v in defaults.items() if getattr(self, k) is None}
        return msgspec.structs.replace(self, **missing)


class Geometry(msgspec.Struct, frozen=True):
    """Where the original's pixels went: model = original * scale + offset, on each axis.

    ``width``, ``height``: the original, in pixels. ``size``: the model's picture (width, height).
    """

    width: int
    height: int
    size: tuple[int, int]
    scale: tuple[float, float]
    offset: tuple[float, float] = (0.0, 0.0)

    def to_original(self, boxes: Array) -> Array:
        """Boxes [N,4] (x1,y1,x2,y2) in the model's pixels → in the original's, clipped to it."""
        shift = np.array(self.offset * 2)
        factor = np.array(self.scale * 2)
        limit = np.array((self.width, self.height) * 2)
        original: Array = np.clip((boxes - shift) / factor, 0, limit)
        return original


class Preprocessor:
    """Turns files into the input tensor of one model."""

    def __init__(self, spec: ModelSpec, options: ImageOptions, max_pixels: int) -> None:
        """ModelLoadError, naming the key, where options and spec do not fit together."""
        self._name, self._options, self._max_pixels = spec.name, options, max_pixels
        tensor = self._find(spec)
        self.input = tensor.name
        self._dtype = numpy_dtype(tensor.datatype)
        self.layout = options.layout or _guess_layout(tensor.shape)
        height, width, channels = (tensor.shape[i] for i in ((2, 3, 1) if self.layout == "nchw" else (1, 2, 3)))
        self.size = self._size(width, height)
        self.color = self._color(channels)
        self._factor, self._shift = self._formula(tensor.datatype)
        self._filter = _FILTERS[options.resample]

    def load(self, data: bytes, field: str) -> tuple[Array, Geometry]:
        """An encoded image → the tensor [1,…] in the input's datatype, and how to get back to its pixels."""
        # Twice the size leaves the resampling filter enough to average, so that reduced decoding cannot be seen.
        enough = 2 * round(max(self.size) / self._options.crop)
        loaded = images.load(data, field=field, max_pixels=self._max_pixels, enough=enough)
        return self.apply(loaded)

    def apply(self, loaded: images.Loaded) -> tuple[Array, Geometry]:
        """As ``load``, for a picture that is decoded already."""
        resized, geometry = self._resize(loaded)
        return self._tensor(resized), geometry

    def _resize(self, loaded: images.Loaded) -> tuple[Image.Image, Geometry]:
        image, (width, height) = loaded.image, self.size
        wide, high = loaded.width, loaded.height
        # A reduced decoding has other pixels than the original; only the box to cut out is in them.
        shrunk = image.width / wide, image.height / high
        match self._options.resize or "stretch":
            case "stretch":
                done = image.resize((width, height), self._filter, reducing_gap=3.0)
                return done, Geometry(wide, high, self.size, (width / wide, height / high))
            case "letterbox":
                ratio = min(width / wide, height / high)
                inner = max(1, round(wide * ratio)), max(1, round(high * ratio))
                at = (0, 0)
                if self._options.align != "start":
                    at = (width - inner[0]) // 2, (height - inner[1]) // 2
                done = Image.new("RGB", (width, height), (self._options.pad or 0,) * 3)
                done.paste(image.resize(inner, self._filter, reducing_gap=3.0), at)
                scale = inner[0] / wide, inner[1] / high
                return done, Geometry(wide, high, self.size, scale, (float(at[0]), float(at[1])))
            case "crop":
                ratio = max(width / wide, height / high) / self._options.crop
                seen = width / ratio, height / ratio
                left, top = (wide - seen[0]) / 2, (high - seen[1]) / 2
                box = (
                    max(0.0, left * shrunk[0]),
                    max(0.0, top * shrunk[1]),
                    min(float(image.width), (left + seen[0]) * shrunk[0]),
                    min(float(image.height), (top + seen[1]) * shrunk[1]),
                )
                done = image.resize((width, height), self._filter, box=box, reducing_gap=3.0)
                return done, Geometry(wide, high, self.size, (ratio, ratio), (-left * ratio, -top * ratio))

    def _tensor(self, image: Image.Image) -> Array:
        pixels = np.asarray(image.convert("L") if self.color == "gray" else image)
        pixels = pixels[:, :, None] if self.color == "gray" else pixels
        if self.color == "bgr":
            pixels = pixels[:, :, ::-1]
        if self.layout == "nchw":
            pixels = pixels.transpose(2, 0, 1)
        out = np.empty((1, *pixels.shape), np.float32)
        per_channel = (-1, 1, 1) if self.layout == "nchw" else (1, 1, -1)
        np.multiply(pixels, self._factor.reshape(per_channel), out=out[0])
        out += self._shift.reshape(per_channel)
        if self._dtype == np.uint8:
            return np.clip(np.rint(out), 0, 255).astype(np.uint8)
        return out.astype(self._dtype, copy=False)

    def _find(self, spec: ModelSpec) -> TensorSpec:
        wanted = self._options.input
        tensor = spec.input(wanted) if wanted else next((t for t in spec.inputs if len(t.shape) == 4), None)
        if tensor is None or len(tensor.shape) != 4:
            have = ", ".join(f"{t.name} {t.describe()}" for t in spec.inputs)
            raise self._wrong("input", f"no 4-dimensional image input{f' {wanted!r}' if wanted else ''}; has {have}")
        if tensor.datatype not in _DATATYPES:
            raise self._wrong("input", f"'{tensor.name}' is {tensor.describe()}, images need {'/'.join(_DATATYPES)}")
        others = [t.name for t in spec.inputs if t is not tensor and not t.optional]
        if others:
            raise self._wrong("input", f"the model has further inputs that an image cannot fill: {', '.join(others)}")
        if tensor.shape[0] not in (-1, 1):
            raise self._wrong("input", f"'{tensor.name}' takes {tensor.shape[0]} images at once, only 1 is supported")
        return tensor

    def _size(self, width: int, height: int) -> tuple[int, int]:
        given = self._options.size
        if given is None:
            if width < 1 or height < 1:
                raise self._wrong("size", "the model takes any size, so [width, height] must be given")
            return width, height
        if width not in (-1, given[0]) or height not in (-1, given[1]):
            raise self._wrong("size", f"{given} (width, height) does not fit the model's {[width, height]}")
        return given[0], given[1]

    def _color(self, channels: int) -> Literal["rgb", "bgr", "gray"]:
        color = self._options.color or ("gray" if channels == 1 else "rgb")
        if channels not in (-1, 1 if color == "gray" else 3):
            raise self._wrong("color", f"'{color}' does not fit an input of {channels} channels")
        return color

    def _formula(self, datatype: str) -> tuple[Array, Array]:
        """``factor`` and ``shift`` of y = x * factor + shift, float32 [channels]."""
        options, channels = self._options, 1 if self.color == "gray" else 3
        default = 1.0 if datatype == "UINT8" else 1 / 255
        scale = default if options.scale is None else options.scale
        mean = self._numbers("mean", 0.0 if options.mean is None else options.mean, channels)
        std = self._numbers("std", 1.0 if options.std is None else options.std, channels)
        if not std.all():
            raise self._wrong("std", "must not be 0")
        return (scale / std).astype(np.float32), (-mean / std).astype(np.float32)

    def _numbers(self, key: str, value: Numbers, channels: int) -> Array:
        numbers = np.array(value, np.float64).reshape(-1)
        if numbers.size not in (1, channels):
            raise self._wrong(key, f"has {numbers.size} numbers for {channels} channels")
        return np.broadcast_to(numbers, (channels,))

    def _wrong(self, key: str, text: str) -> ModelLoadError:
        return ModelLoadError(f"model.toml of '{self._name}', [pipeline.image] {key}: {text}")


def _guess_layout(shape: tuple[int, ...]) -> Literal["nchw", "nhwc"]:
    """By which axis has 1 or 3 channels; ``nchw`` where that does not tell."""
    return "nhwc" if shape[3] in (1, 3) and shape[1] not in (1, 3) else "nchw"
