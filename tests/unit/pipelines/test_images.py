import io
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from appliance.errors import ApplianceError, InputTooLarge, InvalidInput, UnsupportedMedia
from appliance.pipelines import images

MANY = 50_000_000


def load(data: bytes, **options):
    return images.load(data, field="file", max_pixels=options.pop("max_pixels", MANY), **options)


def saved(image: Image.Image, form: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def png(width: int, height: int, depth: int, kind: int, rows: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG made by hand; ``rows`` with a filter byte before each row."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    parts = [chunk(b"IHDR", header), *(chunk(*e) for e in extra), chunk(b"IDAT", zlib.compress(rows))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def marked() -> Image.Image:
    """48×32: red top left, green top right, blue bottom left, white bottom right, in 16-pixel blocks on black."""
    pixels = np.zeros((32, 48, 3), np.uint8)
    pixels[:16, :16] = 255, 0, 0
    pixels[:16, 32:] = 0, 255, 0
    pixels[16:, :16] = 0, 0, 255
    pixels[16:, 32:] = 255, 255, 255
    return Image.fromarray(pixels)


# What the EXIF standard says of tag 274: which side of the scene the stored rows and columns begin at.
STORED = {
    1: lambda u: u,
    2: lambda u: u[:, ::-1],
    3: lambda u: u[::-1, ::-1],
    4: lambda u: u[::-1],
    5: lambda u: u.transpose(1, 0, 2),
    6: lambda u: u.transpose(1, 0, 2)[::-1],
    7: lambda u: u.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda u: u.transpose(1, 0, 2)[:, ::-1],
}


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_comes_out_upright(orientation: int, form: str) -> None:
    upright = np.asarray(marked())
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    lossless = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(form, {})
    loaded = load(saved(stored, form, exif=exif, **lossless))
    assert (loaded.width, loaded.height) == (48, 32)
    assert loaded.array().shape == (32, 48, 3)
    assert np.abs(loaded.array().astype(int) - upright).max() <= (12 if form == "JPEG" else 0)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_broken_exif_block_does_not_make_the_picture_unreadable() -> None:
    assert load(saved(marked(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")).width == 48


def test_16_bit_grey_is_scaled_not_clipped() -> None:
    values = [0, 128 * 257, 65535, 2670, 257, 128]
    data = png(6, 1, 16, 0, b"\0" + struct.pack(">6H", *values))
    assert load(data).array()[0, :, 0].tolist() == [0, 128, 255, 10, 1, 0]
    tiff = saved(Image.fromarray(np.array([values], np.uint16)), "TIFF")
    assert load(tiff).array()[0, :, 2].tolist() == [0, 128, 255, 10, 1, 0]


def test_16_bit_colour_and_grey_with_a_clear_value() -> None:
    rgb = png(1, 1, 16, 2, b"\0" + struct.pack(">3H", 65535, 32896, 0))
    assert load(rgb).array().tolist() == [[[255, 128, 0]]]
    clear = png(2, 1, 16, 0, b"\0" + struct.pack(">2H", 500, 0), (b"tRNS", struct.pack(">H", 500)))
    assert load(clear).array()[0, :, 0].tolist() == [255, 0]


def test_one_bit_grey_and_palette() -> None:
    assert load(png(8, 1, 1, 0, b"\0\xa5")).array()[0, :, 0].tolist() == [255, 0, 255, 0, 0, 255, 0, 255]
    palette = (b"PLTE", bytes([10, 20, 30, 200, 100, 50]))
    assert load(png(2, 1, 8, 3, b"\0\0\1", palette)).array().tolist() == [[[10, 20, 30], [200, 100, 50]]]
    assert load(saved(Image.new("L", (2, 2), 77), "PNG")).array().tolist() == [[[77] * 3] * 2] * 2


def test_palette_with_transparency_is_laid_over_white() -> None:
    palette = (b"PLTE", bytes([10, 20, 30, 200, 100, 50])), (b"tRNS", bytes([0]))
    data = png(2, 1, 8, 3, b"\0\0\1", *palette)
    assert load(data).array().tolist() == [[[255, 255, 255], [200, 100, 50]]]


@pytest.mark.parametrize(
    ("mode", "pixel", "over_white"),
    [("RGBA", (200, 100, 0, 255), (200, 100, 0)), ("RGBA", (0, 0, 0, 0), (255,) * 3), ("LA", (0, 51), (204,) * 3)],
)
def test_alpha_is_laid_over_white(mode: str, pixel: tuple[int, ...], over_white: tuple[int, ...]) -> None:
    data = saved(Image.new(mode, (1, 1), pixel), "PNG")
    assert load(data).array()[0, 0].tolist() == list(over_white)
    kept = load(data, keep_alpha=True)
    assert kept.alpha is not None
    assert kept.alpha.getpixel((0, 0)) == pixel[-1]


def test_opaque_pictures_have_no_alpha() -> None:
    assert load(saved(marked(), "PNG"), keep_alpha=True).alpha is None


def test_colour_key_transparency() -> None:
    key = (b"tRNS", struct.pack(">3H", 1, 2, 3))
    data = png(2, 1, 8, 2, b"\0" + bytes([1, 2, 3, 9, 9, 9]), key)
    assert load(data).array().tolist() == [[[255, 255, 255], [9, 9, 9]]]


@pytest.mark.parametrize(
    ("ink", "seen"),
    [
        ((255, 0, 0, 0), (0, 255, 255)),
        ((0, 255, 0, 0), (255, 0, 255)),
        ((0, 0, 0, 255), (0, 0, 0)),
        ((0,) * 4, (255,) * 3),
    ],
)
def test_cmyk_jpeg_with_and_without_adobes_mark(ink: tuple[int, ...], seen: tuple[int, ...]) -> None:
    adobe = saved(Image.new("CMYK", (16, 16), ink), "JPEG", quality=100)
    assert b"Adobe" in adobe  # stored inverted, as Adobe's programs do
    assert np.abs(load(adobe).array()[8, 8].astype(int) - seen).max() <= 3
    as_is = saved(Image.new("CMYK", (16, 16), tuple(255 - v for v in ink)), "JPEG", quality=100)
    at = as_is.index(b"\xff\xee")
    plain = as_is[:at] + as_is[at + 2 + int.from_bytes(as_is[at + 2 : at + 4]) :]
    assert b"Adobe" not in plain
    assert np.abs(load(plain).array()[8, 8].astype(int) - seen).max() <= 3


def test_cmyk_tiff() -> None:
    data = saved(Image.new("CMYK", (2, 2), (0, 255, 255, 0)), "TIFF")
    assert load(data).array()[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_frame_counts(form: str) -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in ((255, 0, 0), (0, 255, 0))]
    extra = {"lossless": True} if form == "WEBP" else {}
    data = saved(frames[0], form, save_all=True, append_images=frames[1:], **extra)
    assert load(data).array()[2, 2].tolist() == [255, 0, 0]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_format_is_read_and_every_cut_is_noticed(form: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8)
    data = saved(Image.fromarray(noise), form)
    assert load(data).array().shape == (40, 50, 3)
    for cut in (len(data) // 2, 30, 12):
        with pytest.raises((UnsupportedMedia, InputTooLarge)):
            load(data[:cut])


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_damaged_files_never_let_another_error_out(form: str) -> None:
    chance = random.Random(form)  # noqa: S311 - repeatable on purpose
    exif = Image.Exif()
    exif[0x0112] = 6
    extra = {} if form in ("GIF", "BMP") else {"exif": exif}
    whole = saved(marked(), form, **extra)
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            load(bytes(data[: chance.choice((len(data), chance.randrange(1, len(data))))]), max_pixels=10_000)
        except ApplianceError as error:
            assert isinstance(error, UnsupportedMedia | InputTooLarge)
            assert error.param == "file"


def test_the_pixel_limit_is_checked_before_anything_is_decoded() -> None:
    bomb = png(20_000, 10_000, 1, 0, bytes(10_000 * 2501))
    assert len(bomb) < 40_000
    with pytest.raises(InputTooLarge) as caught:
        load(bomb)
    for part in ("'file'", "200,000,000", "20000×10000", "50,000,000"):
        assert part in caught.value.message
    assert caught.value.param == "file"


def test_the_pixel_limit_is_the_servers_not_pillows() -> None:
    bomb = png(20_000, 10_000, 1, 0, bytes(10_000 * 2501))
    with pytest.raises(InputTooLarge):
        load(bomb, max_pixels=199_999_999)
    before = Image.MAX_IMAGE_PIXELS
    cut = images._open(bomb, "file", 200_000_000)
    assert cut.size == (20_000, 10_000)
    assert before == Image.MAX_IMAGE_PIXELS


def test_the_canvas_of_a_webp_is_checked_before_it_is_made() -> None:
    size = (16_000 - 1).to_bytes(3, "little")
    data = b"RIFF" + struct.pack("<I", 1000) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + size * 2 + bytes(900)
    with pytest.raises(InputTooLarge, match="256,000,000"):
        load(data)


def test_limit_in_small() -> None:
    data = saved(Image.new("RGB", (10, 10)), "PNG")
    assert load(data, max_pixels=100).width == 10
    with pytest.raises(InputTooLarge):
        load(data, max_pixels=99)


def test_what_is_not_an_image() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        load(b"")
    for data in (
        b"hello, I am a text file called .jpg",
        b"%!PS-Adobe-3.0 EPSF-3.0",
        b"P6 1 1 255 abc",
        b"\xff\xd8\xff",
    ):
        with pytest.raises(UnsupportedMedia):
            load(data)


def test_what_is_left_out_on_purpose() -> None:
    with pytest.raises(UnsupportedMedia, match="32-bit"):
        load(saved(Image.new("F", (2, 2), 0.5), "TIFF"))
    rle = bytearray(saved(Image.new("P", (4, 4)), "BMP"))
    rle[30:34] = struct.pack("<I", 1)
    with pytest.raises(UnsupportedMedia, match="run-length"):
        load(bytes(rle))


def test_bombs_in_text_chunks_and_profiles() -> None:
    many = zlib.compress(bytes(100_000_000), 9)
    for name, head in ((b"zTXt", b"key\0\0"), (b"iCCP", b"name\0\0")):
        data = png(1, 1, 8, 0, b"\0\0", (name, head + many))
        with pytest.raises(UnsupportedMedia):
            load(data)


def test_reduced_decoding_keeps_enough_and_tells_the_original_size() -> None:
    data = saved(marked().resize((1600, 1200), Image.Resampling.NEAREST), "JPEG")
    loaded = load(data, enough=224)
    assert (loaded.width, loaded.height) == (1600, 1200)
    assert loaded.image.size == (400, 300)
    assert load(data).image.size == (1600, 1200)
    assert load(data, enough=700).image.size == (1600, 1200)


def test_reduced_decoding_of_a_turned_picture() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(marked().resize((1600, 1200), Image.Resampling.NEAREST), "JPEG", exif=exif)
    loaded = load(data, enough=100)
    assert (loaded.width, loaded.height) == (1200, 1600)
    assert loaded.image.size == (150, 200)


def test_encode_and_decode() -> None:
    picture = marked()
    again = images.decode(images.encode(picture, "image/png"), field="file", max_pixels=MANY)
    assert np.array_equal(again, np.asarray(picture))
    assert images.encode(picture, "image/jpeg").startswith(b"\xff\xd8\xff")
