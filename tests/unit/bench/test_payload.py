"""What the clients send."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from appliance.api.oip_codec import parse
from appliance.bench.faults import BenchError
from appliance.bench.options import Options
from appliance.bench.payload import VARIANTS, chosen, picture, read_shapes, specs, tensors
from appliance.models.folder import ModelFolder
from appliance.models.spec import ModelConfig, ModelSpec, TensorSpec, Warmup
from appliance.models.tensors import to_array


def about(task: str | None = None, *inputs: tuple[str, str, list[int]]) -> dict[str, Any]:
    """A model's metadata."""
    listed = [{"name": name, "datatype": kind, "shape": shape} for name, kind, shape in inputs]
    return {"inputs": listed, "parameters": {"task": task}}


def test_shapes() -> None:
    assert read_shapes(["x=1,3,640,640", "a=b=2x4"]) == {"x": [1, 3, 640, 640], "a=b": [2, 4]}
    for wrong in ("x", "=1", "x=", "x=1,-1", "x=0", "x=1.5"):
        with pytest.raises(BenchError, match="NAME=") as caught:
            read_shapes([wrong])
        assert caught.value.exit_code == 2


def test_bodies_are_what_the_server_takes() -> None:
    inputs = (TensorSpec("x", "FP32", (-1, 2, -1)), TensorSpec("n", "INT64", (-1,)), TensorSpec("t", "BYTES", (2,)))
    sent = tensors("m", inputs, {"x": [1, 2, 3]}, {})
    assert sent.path == "/v2/models/m/infer"
    assert len(set(sent.bodies)) == VARIANTS
    assert len({len(body) for body in sent.bodies}) == 1
    assert sent.about == "random tensors x FP32[1,2,3], n INT64[1], t BYTES[2]"
    assert sent.notes == ()
    length = sent.headers["Inference-Header-Content-Length"]
    spec = ModelSpec("m", "1", "", "onnx", inputs, (TensorSpec("y", "FP32", (-1, 2)),))
    for body in sent.bodies:
        request = parse(body, length.encode(), spec, 1000)
        x, n, t = map(to_array, request.inputs)
        assert x.shape == (1, 2, 3) and x.min() >= 0 and x.max() < 1
        assert n.shape == (1,) and n[0] in (0, 1)
        assert all(value in [b"%d" % digit for digit in range(10)] for value in t)
        assert [wish.binary for wish in request.outputs] == [True]


def test_half_floats_travel_as_their_bits() -> None:
    (body, *_) = tensors("m", [TensorSpec("x", "BF16", (1,))], {}, {}).bodies
    header, _, raw = body.rpartition(b"}")
    assert json.loads(header + b"}")["inputs"][0]["parameters"] == {"binary_data_size": 2}
    (bits,) = struct.unpack("<H", raw)
    assert 0 <= struct.unpack("<f", struct.pack("<I", bits << 16))[0] < 1


def test_free_axes() -> None:
    image = TensorSpec("x", "UINT8", (-1, 3, -1, -1))
    guessed = tensors("m", [image], {}, {})
    assert "[1,3,1,1]" in guessed.about
    assert guessed.notes == ("'x' UINT8[-1,3,-1,-1]: size 1 on its free axes 2, 3; set it with --shape",)
    assert "[4,3,8,9]" in tensors("m", [image], {"x": [1, 3, 2, 2]}, {"x": [4, 3, 8, 9]}).about
    with pytest.raises(BenchError, match="no input 'y'"):
        tensors("m", [image], {}, {"y": [1]})
    for wrong in ([1, 3, 8], [1, 4, 8, 8]):
        with pytest.raises(BenchError, match="does not fit"):
            tensors("m", [image], {}, {"x": wrong})
    with pytest.raises(BenchError, match="too large"):
        tensors("m", [image], {}, {"x": [100, 3, 10_000, 10_000]})


def test_pictures(tmp_path: Path) -> None:
    assert picture("m", "ocr", None).headers == {"Content-Type": "image/png"}
    assert picture("m", "classify", None).headers == {"Content-Type": "image/jpeg"}
    file = tmp_path / "mine.webp"
    file.write_bytes(b"12345")
    sent = picture("m", "detect", file)
    assert (sent.path, sent.bodies, sent.about) == ("/predict/m", (b"12345",), "mine.webp (5 bytes)")
    with pytest.raises(BenchError, match=r"missing\.png: cannot be read"):
        picture("m", "detect", tmp_path / "missing.png")


def test_what_is_sent_suits_the_model() -> None:
    image = ("x", "FP32", [-1, 3, -1, -1])
    plain = Options(model="m")
    assert chosen(about("detect", image), None, plain).path == "/predict/m"
    assert chosen(about("tensors", image), None, plain).path == "/v2/models/m/infer"
    assert chosen(about("detect", image), None, Options(model="m", tensors=True)).path == "/v2/models/m/infer"
    assert "[1,3,5,6]" in chosen(about("detect", image), None, Options(model="m", shapes=("x=1,3,5,6",))).about
    config = ModelConfig(warmup=Warmup(shapes={"x": [2, 3, 7, 7]}))
    assert "[1,3,7,7]" in chosen(about(None, image), ModelFolder("m", Path("m"), config), plain).about
    with pytest.raises(BenchError, match="no task"):
        chosen(about(None, image), None, Options(model="m", picture=Path("a.png")))
    with pytest.raises(BenchError, match="no tensors"):
        chosen(about("ocr"), None, Options(model="m", tensors=True))
    assert specs(about(None, image)) == [TensorSpec("x", "FP32", (-1, 3, -1, -1))]
