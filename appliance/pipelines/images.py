"""Encoded images in, 8-bit RGB pixels out, with Pillow; and back.

Safe by construction: the kind of file is told by its first bytes from a short list of formats, the pixel
limit is compared with the header before any pixel is decoded, and whatever a broken file makes the decoder
raise becomes ``UnsupportedMedia``. Pillow's process-wide settings are left alone.
"""

import io
import struct
import zlib
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from appliance.errors import InputTooLarge, InvalidInput, UnsupportedMedia
from appliance.models.tensors import Array

FORMATS: tuple[str, ...] = ("PNG", "JPEG", "WebP", "GIF", "BMP", "TIFF")
"""What can be read, for messages. Formats that run other programs (EPS, WMF) or that Pillow decodes in
Python, holding the interpreter (PPM, run-length coded BMP), are left out on purpose."""

_SIGNATURES: tuple[tuple[bytes, type[ImageFile.ImageFile]], ...] = (
    (b"\x89PNG\r\n\x1a\n", PngImageFile),
    (b"\xff\xd8\xff", JpegImageFile),
    (b"GIF87a", GifImageFile),
    (b"GIF89a", GifImageFile),
    (b"II*\0", TiffImageFile),
    (b"MM\0*", TiffImageFile),
    (b"II+\0", TiffImageFile),
    (b"MM\0+", TiffImageFile),
    (b"BM", BmpImageFile),
)

# What Pillow's readers let out on a broken file, found by fuzzing them. Warning: only where warnings are errors.
_BROKEN = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    Warning,
    struct.error,
    zlib.error,
)

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Loaded(NamedTuple):
    """A decoded picture, upright.

    ``image``: Pillow image of mode RGB. ``width``, ``height``: of the original after EXIF orientation; the
    image itself is smaller if a reduced decoding was allowed. ``alpha``: mode L, of the same size, or None.
    """

    image: Image.Image
    width: int
    height: int
    alpha: Image.Image | None = None

    def array(self) -> Array:
        """The pixels, uint8 [height, width, 3], RGB."""
        return np.asarray(self.image)


def load(
    data: bytes,
    *,
    field: str,
    max_pixels: int,
    enough: int | None = None,
    keep_alpha: bool = False,
) -> Loaded:
    """Decode the first frame of an encoded image.

    ``enough``: a side length in pixels. A JPEG both of whose sides are at least twice that long may be decoded
    at 1/2, 1/4 or 1/8 of its size (still no side under ``enough``), which is several times faster.
    Transparent pixels are laid over white; with ``keep_alpha`` the alpha channel is handed out instead and the
    colours stay as they are.

    Raises InvalidInput (no bytes), InputTooLarge (more than ``max_pixels``), UnsupportedMedia (anything that is
    not a whole image of one of ``FORMATS``).
    """
    if not data:
        raise InvalidInput(f"'{field}' is empty; an image is expected", param=field)
    try:
        image = _open(data, field, max_pixels)
        width, height = image.size
        _check_size(width, height, field, max_pixels)
        _check_kind(image, field)
        if enough is not None and isinstance(image, JpegImageFile):
            image.draft(None, (enough, enough))
        image.load()
        rgb, alpha = _rgb(image)
        turn = _TURNS.get(_orientation(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputTooLarge(
            f"'{field}': the image has more pixels than can be read; the limit is {max_pixels:,}", param=field
        ) from error
    except _BROKEN as error:
        raise UnsupportedMedia(f"'{field}' is a damaged or unfinished image", param=field) from error
    if turn is not None:
        rgb = rgb.transpose(turn)
        alpha = alpha.transpose(turn) if alpha is not None else None
    if isinstance(image, TiffImageFile):
        width, height = rgb.size  # Pillow has turned it already
    elif turn is not None and turn.value >= Image.Transpose.ROTATE_90 and turn != Image.Transpose.ROTATE_180:
        width, height = height, width
    if alpha is not None and not keep_alpha:
        white = Image.new("RGB", rgb.size, (255, 255, 255))
        white.paste(rgb, mask=alpha)
        rgb, alpha = white, None
    return Loaded(rgb, width, height, alpha)


def decode(data: bytes, *, field: str, max_pixels: int) -> Array:
    """The pixels of an encoded image, uint8 [height, width, 3], RGB. Raises what ``load`` raises."""
    return load(data, field=field, max_pixels=max_pixels).array()


def encode(image: Image.Image, form: Literal["image/png", "image/jpeg"]) -> bytes:
    """The picture as a file. JPEG has no transparency: give it RGB."""
    out = io.BytesIO()
    if form == "image/png":
        image.save(out, "PNG", compress_level=1)  # for local callers: time counts more than size
    else:
        image.save(out, "JPEG", quality=92)
    return out.getvalue()


def _open(data: bytes, field: str, max_pixels: int) -> Image.Image:
    """Read the header. Not ``Image.open``: that has a pixel limit of its own, global to the process."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        # Its reader sets aside room for the whole canvas as soon as it is opened.
        _check_size(*_webp_size(data), field, max_pixels)
        return WebPImageFile(io.BytesIO(data))
    for signature, kind in _SIGNATURES:
        if data.startswith(signature):
            return kind(io.BytesIO(data))
    raise UnsupportedMedia(f"'{field}' is not an image that can be read ({', '.join(FORMATS)})", param=field)


def _webp_size(data: bytes) -> tuple[int, int]:
    """Canvas size from the first chunk, as the WebP container and bitstream specifications place it."""
    chunk = data[12:16]
    if chunk == b"VP8X":
        return (
            1 + int.from_bytes(data[24:27], "little"),
            1 + int.from_bytes(data[27:30], "little"),
        )
    if chunk == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError("unknown kind of WebP")


def _check_size(width: int, height: int, field: str, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise InputTooLarge(
            f"'{field}': the image has {width * height:,} pixels ({width}×{height}), the limit is {max_pixels:,}",
            param=field,
        )


def _check_kind(image: Image.Image, field: str) -> None:
    if isinstance(image, BmpImageFile) and image.info.get("compression") in (1, 2):
        raise UnsupportedMedia(f"'{field}' is a run-length coded BMP, which is not read", param=field)
    if image.mode in ("F", "I"):
        # 32-bit samples have no agreed white; any scaling would be a guess.
        raise UnsupportedMedia(f"'{field}' has 32-bit samples; 8 or 16 bits per channel are read", param=field)


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except _BROKEN:  # a broken EXIF block does not make the picture unreadable
        return 1
    return value if isinstance(value, int) else 1


def _rgb(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """The loaded image as RGB and, where it has transparency, an alpha channel of mode L."""
    mode = image.mode
    if mode == "RGB" and "transparency" not in image.info:
        return image, None
    if mode.startswith("I;16"):
        return _from_16_bit(image)
    if mode == "CMYK" and isinstance(image, JpegImageFile) and "adobe" not in image.info:
        # Pillow reads every CMYK JPEG the way Adobe's programs write it, inverted. Without their mark it is not.
        return Image.eval(image, _invert).convert("RGB"), None
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return rgba.convert("RGB"), rgba.getchannel("A")
    return image.convert("RGB"), None


def _invert(value: int) -> int:
    return 255 - value


def _from_16_bit(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """16-bit grey to 8 bits: round(v / 257), so that 65535 becomes 255 and 0 stays 0."""
    wide = np.asarray(image).astype(np.uint32)
    grey = Image.fromarray(((wide + 128) // 257).astype(np.uint8)).convert("RGB")
    clear = image.info.get("transparency")
    if not isinstance(clear, int):
        return grey, None
    return grey, Image.fromarray(np.where(wide == clear, 0, 255).astype(np.uint8))
