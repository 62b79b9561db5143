import io

import msgspec
import numpy as np
import pytest
from PIL import Image
from pipeline_helpers import model_spec

from appliance.errors import ModelLoadError
from appliance.models.spec import TensorSpec
from appliance.pipelines.images import Loaded
from appliance.pipelines.preprocess import ImageOptions, Preprocessor


def prepare(shape=(-1, 3, 4, 4), datatype="FP32", extra=(), **options) -> Preprocessor:
    spec = model_spec([TensorSpec("x", datatype, shape), *extra], [TensorSpec("y", "FP32", (-1, 10))])
    return Preprocessor(spec, msgspec.convert(options, ImageOptions), 2_000_000)


def picture(width: int, height: int, color=(255, 0, 51)) -> Loaded:
    return Loaded(Image.new("RGB", (width, height), color), width, height)


def test_the_formula_per_channel() -> None:
    x, _ = prepare(mean=[0.5, 0.25, 0.2], std=[0.5, 0.5, 0.1]).apply(picture(8, 8))
    assert x.shape == (1, 3, 4, 4)
    assert x.dtype == np.float32
    # (255/255-0.5)/0.5, (0-0.25)/0.5, (51/255-0.2)/0.1
    assert x[0, :, 0, 0] == pytest.approx([1.0, -0.5, 0.0], abs=1e-6)


def test_one_number_for_all_channels_and_another_scale() -> None:
    x, _ = prepare(scale=1.0, mean=127.0, std=128.0).apply(picture(4, 4))
    assert x[0, :, 3, 3] == pytest.approx([1.0, -127 / 128, -76 / 128])


def test_mean_is_in_the_order_of_color() -> None:
    x, _ = prepare(scale=1.0, mean=[51, 0, 255], color="bgr").apply(picture(4, 4))
    assert x[0, :, 0, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((-1, 3, 4, 4), "nchw"), ((-1, 4, 4, 3), "nhwc"), ((-1, 4, 4, 1), "nhwc"), ((-1, 3, 4, 3), "nchw")],
)
def test_layout_is_guessed_from_the_channels(shape: tuple[int, ...], layout: str) -> None:
    prepared = prepare(shape)
    assert prepared.layout == layout
    assert prepared.apply(picture(5, 5))[0].shape == (1, *shape[1:])


def test_layout_can_be_said() -> None:
    x, _ = prepare((-1, -1, -1, -1), layout="nhwc", size=[6, 2]).apply(picture(5, 5))
    assert x.shape == (1, 2, 6, 3)


def test_gray() -> None:
    x, _ = prepare((-1, 1, 4, 4), scale=1.0).apply(picture(4, 4, (100, 100, 100)))
    assert x.shape == (1, 1, 4, 4)
    assert set(x.reshape(-1).tolist()) == {100.0}


@pytest.mark.parametrize(("datatype", "value"), [("UINT8", 51), ("FP16", 0.2)])
def test_other_datatypes(datatype: str, value: float) -> None:
    x, _ = prepare(datatype=datatype).apply(picture(4, 4))
    assert x.dtype == {"UINT8": np.uint8, "FP16": np.float16}[datatype]
    assert float(x[0, 2, 0, 0]) == pytest.approx(value, abs=1e-3)


def test_stretch_and_back() -> None:
    _, geometry = prepare((-1, 3, 40, 20)).apply(picture(100, 50))
    boxes = geometry.to_original(np.array([[0.0, 0, 20, 40], [10, 10, 15, 20], [-5, -5, 99, 99]]))
    assert boxes.tolist() == [[0, 0, 100, 50], [50, 12.5, 75, 25], [0, 0, 100, 50]]


def test_letterbox_and_back() -> None:
    x, geometry = prepare((-1, 3, 40, 40), resize="letterbox", pad=114, scale=1.0).apply(picture(100, 50))
    assert x[0, 0, 9, 5] == 114  # 40×20 in the middle: rows 10 to 29
    assert x[0, 0, 10, 5] == 255
    assert x[0, 0, 29, 5] == 255
    assert x[0, 0, 30, 5] == 114
    assert geometry.to_original(np.array([[0.0, 10, 40, 30], [20, 20, 30, 25]])).tolist() == [
        [0, 0, 100, 50],
        [50, 25, 75, 37.5],
    ]


def test_letterbox_from_the_start() -> None:
    options = {"resize": "letterbox", "align": "start", "scale": 1.0}
    x, geometry = prepare((-1, 3, 40, 40), **options).apply(picture(50, 100))
    assert x[0, 0, 5, 19] == 255
    assert x[0, 0, 5, 20] == 0
    assert geometry.to_original(np.array([[0.0, 0, 20, 40]])).tolist() == [[0, 0, 50, 100]]


def test_crop_takes_the_middle() -> None:
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200
    loaded = Loaded(Image.fromarray(pixels), 30, 10)
    x, geometry = prepare((-1, 3, 10, 10), resize="crop", scale=1.0).apply(loaded)
    assert set(x.reshape(-1).tolist()) == {200.0}
    assert geometry.to_original(np.array([[0.0, 0, 10, 10], [5, 5, 6, 6]])).tolist() == [
        [10, 0, 20, 10],
        [15, 5, 16, 6],
    ]


def test_crop_of_a_share() -> None:
    _, geometry = prepare((-1, 3, 7, 7), resize="crop", crop=0.875).apply(picture(8, 8))
    assert geometry.to_original(np.array([[0.0, 0, 7, 7]])) == pytest.approx(np.array([[0.5, 0.5, 7.5, 7.5]]))


def test_reduced_decoding_gives_nearly_the_same() -> None:
    noise = np.random.default_rng(3).integers(0, 256, (15, 20, 3), np.uint8)
    big = Image.fromarray(noise).resize((1600, 1200), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    big.save(out, "JPEG", quality=95)
    for resize in ("stretch", "letterbox", "crop"):
        prepared = prepare((-1, 3, 64, 64), resize=resize, scale=1.0)
        fast, geometry = prepared.load(out.getvalue(), "file")
        slow, same = prepared.apply(Loaded(Image.open(io.BytesIO(out.getvalue())).convert("RGB"), 1600, 1200))
        assert np.abs(fast - slow).mean() < 1
        assert geometry == same


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shape": (-1, 3, -1, -1)}, "size"),
        ({"size": [5, 4]}, "size"),
        ({"mean": [1.0, 2.0]}, "mean"),
        ({"std": 0.0}, "std"),
        ({"color": "gray"}, "color"),
        ({"shape": (-1, 7, 4, 4)}, "color"),
        ({"input": "z"}, "input: .*'z'"),
        ({"datatype": "INT64"}, "INT64"),
        ({"shape": (-1, 10)}, "input"),
        ({"shape": (8, 3, 4, 4)}, "8 images"),
        ({"extra": (TensorSpec("other", "FP32", (1,)),)}, "other"),
    ],
)
def test_what_does_not_fit_names_the_key(options: dict, words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        prepare(**options)


def test_an_optional_further_input_is_no_hindrance() -> None:
    assert prepare(extra=(TensorSpec("other", "FP32", (1,), optional=True),)).input == "x"
