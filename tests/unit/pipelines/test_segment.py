import base64
import io

import numpy as np
import pytest
from PIL import Image
from pipeline_helpers import PHOTOS, Canned, ask, ask_embedded, model_spec

from appliance.errors import ModelLoadError
from appliance.models.spec import TensorSpec
from appliance.pipelines.base import Answer, Item, PipelineContext
from appliance.pipelines.build import build


def photo(mode: str = "RGB", color=(10, 20, 30)) -> bytes:
    out = io.BytesIO()
    Image.new(mode, (80, 40), color).save(out, "PNG")
    return out.getvalue()


def segment(mask: np.ndarray, data: bytes, accept: str | None = None, parameters=None, **options) -> Answer:
    """A model that sees 16×16 and gives ``mask``."""
    spec = model_spec([TensorSpec("x", "FP32", (-1, 3, 16, 16))], [TensorSpec("m", "FP32", (-1, *mask.shape[1:]))])
    pipeline = build(PipelineContext("m", {"task": "segment", **options}, spec))
    call = Canned({"m": mask.astype(np.float32)})
    return ask(pipeline, Item("file", file=data, parameters=parameters or {}), call, accept)


def mask_of(answer: Answer) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(answer.result["mask"]))))


def left_half(size: int = 16) -> np.ndarray:
    mask = np.zeros((1, size, size, 1))
    mask[:, :, : size // 2] = 1
    return mask


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)])
@pytest.mark.parametrize("size", [16, 8, 64])
def test_the_mask_comes_back_in_the_originals_size(axes: tuple[int, ...], size: int) -> None:
    answer = segment(left_half(size).transpose(axes), photo())
    mask = mask_of(answer)
    assert mask.shape == (40, 80)
    assert set(mask[:, :34].reshape(-1).tolist()) == {255}
    assert set(mask[:, 46:].reshape(-1).tolist()) == {0}
    assert answer.result["coverage"] == pytest.approx(0.5, abs=0.02)
    assert (answer.result["width"], answer.result["height"]) == (80, 40)
    assert answer.picture is None


def test_letterbox_padding_is_no_part_of_the_mask() -> None:
    mask = np.zeros((1, 16, 16))
    mask[:, 4:12] = 1  # 80×40 takes the middle 8 rows
    answer = segment(mask, photo(), image={"resize": "letterbox"})
    assert set(mask_of(answer).reshape(-1).tolist()) == {255}


def test_crop_saw_only_the_middle() -> None:
    mask = mask_of(segment(np.ones((1, 16, 16)), photo(), image={"resize": "crop"}))
    assert set(mask[:, 20:60].reshape(-1).tolist()) == {255}
    assert mask[:, :19].max() == 0
    assert mask[:, 61:].max() == 0


def test_threshold() -> None:
    half = np.full((1, 16, 16), 0.4)
    assert segment(half, photo()).result["coverage"] == 0
    assert segment(half, photo(), parameters={"threshold": "0.3"}).result["coverage"] == 1
    assert segment(half, photo(), threshold=0.3).result["coverage"] == 1


def test_activations_and_channels() -> None:
    logits = np.zeros((1, 3, 16, 16))
    logits[:, 2] = np.log(2)
    assert set(mask_of(segment(logits, photo(), channel=2, activation="softmax")).reshape(-1).tolist()) == {128}
    assert set(mask_of(segment(np.zeros((1, 16, 16)), photo(), activation="sigmoid")).reshape(-1).tolist()) == {128}
    with pytest.raises(ModelLoadError, match="channel"):
        segment(logits, photo())


def test_cut_out() -> None:
    answer = segment(left_half(), photo(), "image/png")
    assert answer.picture is not None
    assert answer.picture.media_type == "image/png"
    cut = np.asarray(Image.open(io.BytesIO(answer.picture.data)))
    assert cut[20, 10].tolist() == [10, 20, 30, 255]
    assert cut[20, 70].tolist() == [0, 0, 0, 0]


def test_cut_out_keeps_the_pictures_own_transparency() -> None:
    answer = segment(left_half(), photo("RGBA", (10, 20, 30, 100)), "image/png")
    cut = np.asarray(Image.open(io.BytesIO(answer.picture.data)))
    assert cut[20, 10].tolist() == [10, 20, 30, 100]
    assert cut[20, 70].tolist() == [0, 0, 0, 0]


def test_over_white() -> None:
    answer = segment(left_half(), photo(), "image/jpeg")
    cut = np.asarray(Image.open(io.BytesIO(answer.picture.data))).astype(int)
    assert np.abs(cut[20, 10] - [10, 20, 30]).max() <= 3
    assert np.abs(cut[20, 70] - 255).max() <= 3


def test_embedded_finds_the_astronaut() -> None:
    answer = ask_embedded("segment", "astronaut.png", "image/png")
    cut = np.asarray(Image.open(io.BytesIO(answer.picture.data)))
    original = np.asarray(Image.open(PHOTOS / "astronaut.png"))
    assert cut.shape == (512, 512, 4)
    assert cut[110, 225, 3] > 250  # the face
    assert cut[300, 200, 3] > 250  # the suit
    assert cut[60, 60, 3] < 5  # the flag behind
    assert cut[60, 450, 3] < 5  # the shuttle behind
    assert np.array_equal(cut[110, 225, :3], original[110, 225])
    assert 0.4 < answer.result["coverage"] < 0.6
    mask = mask_of(ask_embedded("segment", "astronaut.png"))
    assert np.array_equal(mask, cut[:, :, 3])
