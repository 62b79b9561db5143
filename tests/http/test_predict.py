"""The task route with real pictures: every way to send one, every form of answer, the four embedded models."""

import base64
import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.http.helpers import curl, entry, infer, outputs, refused
from tests.support.server import PHOTOS, Server

CAT = (PHOTOS / "chelsea.png").read_bytes()
COFFEE = (PHOTOS / "coffee.png").read_bytes()
ASTRONAUT = (PHOTOS / "astronaut.png").read_bytes()

# Typed from the photo. Some lines are cut off at the picture's edges.
PAGE = [
    "Region-based segmentation",
    "Let us first determine markers of the coins and the",
    "background. These markers are pixels that we can label",
    "unambiguously as either object or background. Here,",
    "the markers are found at the two extreme parts of the",
    "histogram of grey values:",
    ">>> markers = np.zeros_like(coins)",
]


def is_the_cat(answer: httpx.Response | dict[str, Any]) -> bool:
    """The known answer for the cat's photo."""
    if isinstance(answer, httpx.Response):
        assert answer.status_code == 200, answer.text
        answer = answer.json()
    first, second = answer["labels"][:2]
    assert first["label"] == "Egyptian cat" and first["index"] == 285
    assert first["score"] == pytest.approx(0.77, abs=0.02)
    assert second["label"] == "tiger cat" and second["score"] == pytest.approx(0.10, abs=0.02)
    return True


def jpeg(data: bytes) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(out, "JPEG", quality=95)
    return out.getvalue()


# --- ways to send a picture -------------------------------------------------------------------------------------


def test_multipart(pictures: Server) -> None:
    answer = pictures.client.post("/predict/classify", files={"file": ("cat.png", CAT, "image/png")})
    assert is_the_cat(answer)
    assert answer.json()["model"] == "classify" and answer.json()["version"] == "1"
    for name in ("x-request-id", "server-timing", "x-queue-position", "x-device"):
        assert answer.headers[name]
    assert answer.headers["x-device"] == "cpu"


def test_several_files(pictures: Server) -> None:
    files = [("file", ("a.png", CAT)), ("file", ("b.png", COFFEE)), ("file", ("c.png", CAT))]
    answer = pictures.client.post("/predict/classify", files=files).json()
    first, second, third = answer["results"]
    assert is_the_cat(first) and is_the_cat(third)
    assert second["labels"][0]["label"] == "espresso"
    assert second["labels"][0]["score"] == pytest.approx(0.90, abs=0.02)


def test_a_bad_one_among_several_is_named(pictures: Server) -> None:
    files = [("file", ("a.png", CAT)), ("file", ("b.png", b"not a picture"))]
    refused(pictures.client.post("/predict/classify", files=files), 415, "unsupported_media", "file[1]")


def test_wrong_field_names(pictures: Server) -> None:
    # A part with a file name is a file whatever the field is called; one without is a parameter.
    assert is_the_cat(pictures.client.post("/predict/classify", files={"picture": ("cat.png", CAT)}))
    answer = pictures.client.post("/predict/classify", files={"picture": (None, "cat.png")})
    refused(answer, 400, "invalid_input", "'file'")
    answer = pictures.client.post("/predict/classify", files={"picture": (None, CAT)})
    refused(answer, 400, "invalid_input", "picture")


def test_parameters(pictures: Server) -> None:
    as_field = pictures.client.post("/predict/classify", files={"file": CAT, "top_k": (None, "2")}).json()
    as_query = pictures.client.post("/predict/classify?top_k=2", files={"file": CAT}).json()
    as_json = {"image": base64.b64encode(CAT).decode(), "parameters": {"top_k": 2}}
    in_json = pictures.client.post("/predict/classify", json=as_json).json()
    raw = pictures.client.post("/predict/classify?top_k=2", content=CAT, headers={"Content-Type": "image/png"}).json()
    for answer in (as_field, as_query, in_json, raw):
        assert is_the_cat(answer) and len(answer["labels"]) == 2
    for bad in ("0", "-1", "many", "1.5"):
        answer = pictures.client.post(f"/predict/classify?top_k={bad}", files={"file": CAT})
        refused(answer, 400, "invalid_input", "top_k")
    answer = pictures.client.post("/predict/classify?topk=2", files={"file": CAT})
    refused(answer, 400, "invalid_input", "'topk'", "top_k")


@pytest.mark.parametrize(
    "kind", ["image/png", "application/octet-stream", "application/x-www-form-urlencoded", "image/png; a=b", None]
)
def test_raw_bodies(pictures: Server, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    assert is_the_cat(pictures.client.post("/predict/classify", content=CAT, headers=headers))


def test_other_media_types(pictures: Server) -> None:
    for kind in ("application/zip", "nonsense"):
        answer = pictures.client.post("/predict/classify", content=CAT, headers={"Content-Type": kind})
        refused(answer, 415, "unsupported_media", kind)


def test_json(pictures: Server) -> None:
    text = base64.b64encode(CAT).decode()
    for image in (text, f"data:image/png;base64,{text}", [text]):
        assert is_the_cat(pictures.client.post("/predict/classify", json={"image": image}))
    answer = pictures.client.post(
        "/predict/classify", json={"image": [text, base64.b64encode(COFFEE).decode()]}
    ).json()
    assert is_the_cat(answer["results"][0]) and answer["results"][1]["labels"][0]["label"] == "espresso"
    typed = {"Content-Type": "application/vnd.mine+json"}
    assert is_the_cat(pictures.client.post("/predict/classify", content=json.dumps({"image": text}), headers=typed))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"image": "%%%"}, "image"),
        ({"image": "data:image/png,plain"}, "image"),
        ({"image": ["QUJD", "%%%"]}, "image[1]"),
        ({"image": []}, "image"),
        ({"image": ""}, "image"),
        ({"image": 5}, "image"),
        ({"picture": "QUJD"}, "picture"),
        ({}, "inputs"),
        ({"image": "QUJD", "text": "a"}, "exactly one"),
        ({"text": "a"}, "text"),
        ({"inputs": {"image": [1]}}, "inputs"),
        ([], "body"),
    ],
)
def test_bad_json(pictures: Server, body: Any, words: str) -> None:
    refused(pictures.client.post("/predict/classify", json=body), 400, "invalid_input", words)


def test_text(tensors: Server, pictures: Server) -> None:
    """Text for a model that takes text, and for one that does not."""
    as_json = tensors.client.post("/predict/scale", json={"text": "hello"})
    refused(as_json, 400, "invalid_input", "text")
    plain = pictures.client.post("/predict/classify", content=b"hello", headers={"Content-Type": "text/plain"})
    refused(plain, 400, "invalid_input", "text")


def test_inputs_for_a_model_without_a_task(tensors: Server) -> None:
    answer = tensors.client.post("/predict/pair", json={"inputs": {"a": [[1.5, 2.5]], "b": [[3, 4]]}})
    assert answer.json() == {
        "model": "pair",
        "version": "1",
        "outputs": {
            "sum": {"datatype": "FP32", "shape": [1, 2], "data": [4.5, 6.5]},
            "minus": {"datatype": "INT32", "shape": [1, 2], "data": [-3, -4]},
        },
    }
    words = [["a", "b", "c"]]
    assert (
        tensors.client.post("/predict/same-bytes", json={"inputs": {"x": words}}).json()["outputs"]["y"]["data"]
        == words[0]
    )
    refused(tensors.client.post("/predict/pair", json={"inputs": {"a": [[1, 2]]}}), 400, "invalid_input", "'b'")
    refused(tensors.client.post("/predict/pair", json={"inputs": {"c": 1}}), 400, "invalid_input", "'c'")
    one_and_a_half = {"inputs": {"a": [[1, 2]], "b": [[1.5, 2]]}}
    refused(tensors.client.post("/predict/pair", json=one_and_a_half), 400, "invalid_input", "'b'", "whole")
    refused(tensors.client.post("/predict/pair", files={"file": CAT}), 400, "invalid_input", "file")


# --- forms of answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["application/json", "*/*", "application/*", "text/html, */*;q=0.8", ""])
def test_json_answers(pictures: Server, accept: str) -> None:
    answer = pictures.client.post("/predict/segment", files={"file": ASTRONAUT}, headers={"Accept": accept})
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert (found["width"], found["height"]) == (512, 512)
    assert found["coverage"] == pytest.approx(0.55, abs=0.03)
    mask = Image.open(io.BytesIO(base64.b64decode(found["mask"])))
    assert mask.size == (512, 512) and mask.mode == "L"


@pytest.mark.parametrize("accept", ["image/png", "image/*", "image/webp, image/png;q=0.5", "IMAGE/PNG"])
def test_png_answers(pictures: Server, accept: str) -> None:
    answer = pictures.client.post("/predict/segment", files={"file": ASTRONAUT}, headers={"Accept": accept})
    assert answer.headers["content-type"] == "image/png"
    cut = Image.open(io.BytesIO(answer.content))
    assert cut.format == "PNG" and cut.mode == "RGBA" and cut.size == (512, 512)
    face, corner = cut.getpixel((225, 110)), cut.getpixel((490, 20))
    assert face[3] > 240 and corner[3] < 15
    original = Image.open(io.BytesIO(ASTRONAUT)).convert("RGB")
    assert face[:3] == original.getpixel((225, 110))


def test_jpeg_answers(pictures: Server) -> None:
    answer = pictures.client.post("/predict/segment", files={"file": ASTRONAUT}, headers={"Accept": "image/jpeg"})
    assert answer.headers["content-type"] == "image/jpeg"
    cut = Image.open(io.BytesIO(answer.content))
    assert cut.format == "JPEG" and cut.size == (512, 512)
    assert min(cut.getpixel((490, 20))) > 235  # white where nobody is
    assert np.allclose(cut.getpixel((225, 110)), Image.open(io.BytesIO(ASTRONAUT)).getpixel((225, 110))[:3], atol=25)


def test_forms_that_are_not_made(pictures: Server) -> None:
    answer = pictures.client.post("/predict/classify", files={"file": CAT}, headers={"Accept": "image/png"})
    refused(answer, 406, "not_acceptable", "image/png", "application/json")
    answer = pictures.client.post("/predict/segment", files={"file": ASTRONAUT}, headers={"Accept": "video/mp4"})
    refused(answer, 406, "not_acceptable", "video/mp4", "image/png")
    files = [("file", ("a.png", ASTRONAUT)), ("file", ("b.png", ASTRONAUT))]
    answer = pictures.client.post("/predict/segment", files=files, headers={"Accept": "image/png"})
    refused(answer, 400, "invalid_input", "2 items")


# --- the known answers, with curl ---------------------------------------------------------------------------------


def test_classify_with_curl(pictures: Server) -> None:
    url = f"{pictures.url}/predict/classify"
    assert is_the_cat(json.loads(curl("-F", f"file=@{PHOTOS / 'chelsea.png'}", url)))
    # Without -H, curl calls any body a form.
    assert is_the_cat(json.loads(curl("--data-binary", f"@{PHOTOS / 'chelsea.png'}", url)))
    assert is_the_cat(
        json.loads(curl("-H", "Content-Type: image/png", "--data-binary", f"@{PHOTOS / 'chelsea.png'}", url))
    )
    assert is_the_cat(json.loads(curl("--compressed", "-F", f"file=@{PHOTOS / 'chelsea.png'}", url)))
    body = json.dumps({"image": base64.b64encode(CAT).decode()}).encode()
    assert is_the_cat(json.loads(curl("-H", "Content-Type: application/json", "--data-binary", "@-", url, send=body)))


def overlap(found: list[float], known: list[float]) -> float:
    """Intersection over union of (x1, y1, x2, y2)."""
    width = min(found[2], known[2]) - max(found[0], known[0])
    height = min(found[3], known[3]) - max(found[1], known[1])
    both = max(0.0, width) * max(0.0, height)
    areas = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (found, known))
    return both / (areas - both)


@pytest.mark.parametrize(
    ("photo", "label", "score", "box"),
    [
        ("chelsea", "Cat", 0.85, [0, 0, 451, 300]),
        ("coffee", "Coffee cup", 0.55, [174, 22, 420, 322]),
        ("astronaut", "Person", 0.59, [17, 15, 363, 509]),
    ],
)
def test_detect_with_curl(pictures: Server, photo: str, label: str, score: float, box: list[float]) -> None:
    answer = json.loads(curl("-F", f"file=@{PHOTOS / photo}.png", f"{pictures.url}/predict/detect"))
    best = answer["detections"][0]
    assert best["label"] == label
    assert best["score"] == pytest.approx(score, abs=0.03)
    assert overlap(best["box"], box) > (0.8 if photo == "chelsea" else 0.9), best
    x1, y1, x2, y2 = best["box"]
    assert 0 <= x1 < x2 <= answer["width"] and 0 <= y1 < y2 <= answer["height"]


def test_segment_with_curl(pictures: Server) -> None:
    made = curl(
        "-H", "Accept: image/png", "-F", f"file=@{PHOTOS / 'astronaut.png'}", f"{pictures.url}/predict/segment"
    )
    alpha = np.asarray(Image.open(io.BytesIO(made)))[:, :, 3]
    assert (alpha >= 128).mean() == pytest.approx(0.55, abs=0.03)


def edits(one: str, other: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def test_ocr_with_curl(pictures: Server) -> None:
    answer = json.loads(curl("-F", f"file=@{PHOTOS / 'page.png'}", f"{pictures.url}/predict/ocr"))
    texts = [line["text"] for line in answer["lines"]]
    assert len(texts) == len(PAGE)
    assert texts[0] == PAGE[0]
    wrong = sum(edits(found, typed) for found, typed in zip(texts, PAGE, strict=True))
    print(f"character error rate {wrong / sum(map(len, PAGE)):.1%}")
    assert wrong / sum(map(len, PAGE)) < 0.03
    assert all(line["score"] > 0.8 for line in answer["lines"])
    tops = [min(y for _, y in line["quad"]) for line in answer["lines"]]
    assert tops == sorted(tops)  # in reading order


def test_a_jpeg_says_the_same(pictures: Server) -> None:
    answer = pictures.client.post("/predict/classify", content=jpeg(CAT), headers={"Content-Type": "image/jpeg"})
    assert answer.json()["labels"][0]["label"] == "Egyptian cat"


def test_pipelines_have_no_tensors(pictures: Server) -> None:
    refused(infer(pictures, "ocr", entry([1.0], [1])), 400, "invalid_input", "pipeline", "/predict/ocr")
    refused(pictures.client.get("/v2/models/ocr/config"), 400, "invalid_input", "pipeline")
    about = pictures.client.get("/v2/models/ocr").json()
    assert about["platform"] == "pipeline" and len(about["parameters"]["parts"]) == 3
    assert pictures.client.get("/v2/models/ocr/ready").status_code == 200


def test_task_models_take_tensors_too(pictures: Server) -> None:
    zeros = entry([0.0] * (3 * 224 * 224), [1, 3, 224, 224], name="image")
    assert len(outputs(infer(pictures, "classify", zeros))["logits"]) == 1000
