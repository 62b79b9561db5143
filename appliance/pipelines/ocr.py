"""Reading text in pictures with three models: find the text, turn it upright, read it (the PP-OCR family)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from PIL import Image

from appliance.errors import InvalidOutput, ModelLoadError
from appliance.models.tensors import Array
from appliance.pipelines import images, text_boxes, text_read
from appliance.pipelines.base import Answer, Caller, Item, PipelineContext
from appliance.pipelines.options import Positive, Share, file_of, parse, wishes
from appliance.pipelines.outputs import finite
from appliance.pipelines.text_order import reading_order

_WINDOWS = 3
_GRID = 32  # the detector's sides must be multiples of this


class Models(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the part models. Without ``orient``, upside-down text is not noticed."""

    detect: str
    read: str
    orient: str | None = None


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[pipeline]`` of a reader of text. Sides, widths and heights are in pixels."""

    models: Models
    task: Literal["ocr"] = "ocr"
    input: str = "x"
    min_side: Positive = 736
    max_side: Annotated[int, msgspec.Meta(ge=_GRID)] = 1280
    threshold: Share = 0.3
    box_threshold: Share = 0.5
    unclip: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.6
    max_lines: Positive = 1000
    orient_size: Annotated[list[Positive], msgspec.Meta(min_length=2, max_length=2)] = msgspec.field(
        default_factory=lambda: [192, 48]
    )
    orient_threshold: Share = 0.5
    read_height: Positive = 48
    read_step: Positive = 64
    read_min_width: Positive = 320
    read_max_width: Positive = 3200
    batch: Positive = 8
    min_score: Share = 0.5


class Wishes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one request may ask for."""

    min_score: Share | None = None
    box_threshold: Share | None = None


class _Piece(NamedTuple):
    """A piece of text: its outline in the page's pixels, clockwise from where its text begins, and its picture."""

    quad: Array
    picture: Image.Image


class Ocr:
    """Result: ``{"text", "lines": [{"text", "score", "quad"}], "width", "height"}``.

    ``lines`` are in reading order; ``quad`` is [[x, y] * 4] in pixels of the original (upright) picture, clockwise
    from the top left of the text as it is read. ``text``: pieces of one row joined by spaces, rows by newlines.
    The labels are the reader's characters, in the order of its classes, without blank and space.
    """

    task = "ocr"
    pictures: tuple[str, ...] = ()

    def __init__(self, context: PipelineContext) -> None:
        self._options = options = parse(context, Options)
        models = options.models
        self.parts: tuple[str, ...] = tuple(m for m in (models.detect, models.orient, models.read) if m)
        self._max_pixels = context.max_pixels
        if not context.labels:
            raise ModelLoadError(f"model '{context.name}': labels.txt must list the reader's characters")
        if options.read_max_width < options.read_min_width:
            raise ModelLoadError(
                f"model.toml of '{context.name}', [pipeline] read_max_width: is less than read_min_width"
            )
        self._alphabet = text_read.characters(context.labels)

    async def run(self, item: Item, call: Caller, accept: str | None) -> Answer:
        asked, options = wishes(item, Wishes), self._options
        box_threshold = options.box_threshold if asked.box_threshold is None else asked.box_threshold
        min_score = options.min_score if asked.min_score is None else asked.min_score
        page, tensor = await call.offload(self._start, file_of(item), item.field)
        found = await call.infer({options.input: tensor}, model=options.models.detect)
        pieces = await call.offload(self._cut, page, _only(found), box_threshold)
        if options.models.orient:
            pieces = await self._upright(pieces, call, options.models.orient)
        texts = await self._read(pieces, call)
        return Answer(await call.offload(_assemble, page.size, pieces, texts, min_score))

    def _start(self, data: bytes, field: str) -> tuple[Image.Image, Array]:
        """The page, and the detector's input [1,3,H,W]."""
        page = images.load(data, field=field, max_pixels=self._max_pixels).image
        size = detector_size(page.size, self._options.min_side, self._options.max_side)
        resized = page.resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0)
        return page, text_read.batch([resized], size[0])

    def _cut(self, page: Image.Image, output: Array, box_threshold: float) -> list[_Piece]:
        if output.ndim != 4 or output.shape[:2] != (1, 1):
            raise InvalidOutput(f"the text detector's output {list(output.shape)} is not one probability map")
        probability, options = finite(output[0, 0], "detect"), self._options
        quads, _ = text_boxes.find(
            probability,
            threshold=options.threshold,
            box_threshold=box_threshold,
            unclip=options.unclip,
            most=options.max_lines,
        )
        factor = np.array(page.size) / probability.shape[::-1]
        pieces = []
        for quad in np.clip(quads * factor, 0, page.size):
            turned = text_read.lengthwise(quad)
            if min(text_read.side_lengths(turned)) >= 1:
                pieces.append(_Piece(turned, text_read.cut(page, turned)))
        return pieces

    async def _upright(self, pieces: list[_Piece], call: Caller, model: str) -> list[_Piece]:
        """The pieces, those turned that are upside down."""
        windows = await call.offload(self._windows, pieces)
        sure: list[float] = []
        for start in range(0, len(windows), self._options.batch):
            some = [picture for _, picture in windows[start : start + self._options.batch]]
            tensor = await call.offload(text_read.batch, some, self._options.orient_size[0])
            output = _only(await call.infer({self._options.input: tensor}, model=model))
            if output.shape != (len(some), 2):
                raise InvalidOutput(f"the orientation model's output {list(output.shape)} is not one pair a piece")
            sure += finite(output, "orient")[:, 1].tolist()
        owners = [owner for owner, _ in windows]
        mean = np.bincount(owners, sure, len(pieces)) / np.bincount(owners, minlength=len(pieces))
        over = (mean > self._options.orient_threshold).tolist()
        return [_turned(piece) if flip else piece for piece, flip in zip(pieces, over, strict=True)]

    def _windows(self, pieces: list[_Piece]) -> list[tuple[int, Image.Image]]:
        """What the orientation model looks at: up to three windows of each piece (its index is given with them).

        A whole line squeezed into one window is taken for upside down too often.
        """
        width, height = self._options.orient_size
        return [
            (index, window)
            for index, piece in enumerate(pieces)
            for window in text_read.windows(piece.picture, (width, height), _WINDOWS)
        ]

    async def _read(self, pieces: list[_Piece], call: Caller) -> list[text_read.Text]:
        texts = [text_read.Text("", 0.0)] * len(pieces)
        for chosen, width in self._batches(pieces):
            tensor = await call.offload(self._read_input, [pieces[i] for i in chosen], width)
            output = _only(await call.infer({self._options.input: tensor}, model=self._options.models.read))
            if output.shape[:1] != (len(chosen),):
                raise InvalidOutput(f"the reader's output {list(output.shape)} is not one row a piece")
            for index, text in zip(chosen, await call.offload(text_read.decode, output, self._alphabet), strict=True):
                texts[index] = text
        return texts

    def _batches(self, pieces: Sequence[_Piece]) -> Iterator[tuple[list[int], int]]:
        """Indices that are read together, and the width they are filled up to.

        The width follows from the piece alone, never from its neighbours: the fill changes the answer slightly, and
        a piece must read the same in any company.
        """
        options = self._options
        wanted = [math.ceil(options.read_height * p.picture.width / p.picture.height) for p in pieces]
        stepped = [math.ceil(w / options.read_step) * options.read_step for w in wanted]
        widths = [min(max(w, options.read_min_width), options.read_max_width) for w in stepped]
        for width, group in groupby(sorted(range(len(pieces)), key=widths.__getitem__), key=widths.__getitem__):
            indices = list(group)
            for start in range(0, len(indices), options.batch):
                yield indices[start : start + options.batch], width

    def _read_input(self, pieces: list[_Piece], width: int) -> Array:
        return text_read.batch([text_read.strip(p.picture, self._options.read_height, width) for p in pieces], width)


def detector_size(size: tuple[int, int], min_side: int, max_side: int) -> tuple[int, int]:
    """(width, height) for the detector: enlarged to ``min_side`` on the shorter side, but never over ``max_side`` on
    the longer one; each a multiple of 32."""
    ratio = min(max(1.0, min_side / min(size)), max_side / max(size))
    width, height = (max(_GRID, round(side * ratio / _GRID) * _GRID) for side in size)
    return min(width, max_side // _GRID * _GRID), min(height, max_side // _GRID * _GRID)


def _only(outputs: Mapping[str, Array]) -> Array:
    return next(iter(outputs.values()))


def _turned(piece: _Piece) -> _Piece:
    return _Piece(np.roll(piece.quad, 2, axis=0), piece.picture.transpose(Image.Transpose.ROTATE_180))


def _assemble(
    size: tuple[int, int], pieces: list[_Piece], texts: list[text_read.Text], min_score: float
) -> dict[str, Any]:
    good = [i for i, text in enumerate(texts) if text.text.strip() and text.score >= min_score]
    rows = reading_order(np.array([pieces[i].quad for i in good]).reshape(-1, 4, 2))
    return {
        "text": "\n".join(" ".join(texts[good[i]].text for i in row) for row in rows),
        "lines": [
            {
                "text": texts[good[i]].text,
                "score": round(texts[good[i]].score, 6),
                "quad": [[round(x, 1), round(y, 1)] for x, y in pieces[good[i]].quad.tolist()],
            }
            for row in rows
            for i in row
        ],
        "width": size[0],
        "height": size[1],
    }
