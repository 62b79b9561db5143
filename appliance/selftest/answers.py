"""The embedded models' known answers. Pure: an answer of ``/predict`` in, a `Finding` out."""

from collections.abc import Callable
from typing import Any

import msgspec

from appliance.selftest.report import Finding, failed, ok

WRONG = "a model file or a library is damaged, or the device computes wrongly: try --device cpu, then install again"

TEXT = "The answer is ready\nat port 11711"


class Known(msgspec.Struct, frozen=True):
    """The picture to send to `model`, and what judges the answer."""

    model: str
    picture: str
    judge: Callable[[dict[str, Any]], Finding]


def classified(answer: dict[str, Any]) -> Finding:
    """The picture shows an Egyptian cat, and the model is rather sure of it (0.80)."""
    best = answer["labels"][0]
    return _verdict(f"{best['label']} {best['score']:.2f}", best["label"] == "Egyptian cat" and best["score"] > 0.6)


def detected(answer: dict[str, Any]) -> Finding:
    """One cat that fills the picture (0.85, 94 % of it)."""
    found = answer["detections"]
    if not found:
        return _verdict("nothing", False)
    best = found[0]
    left, top, right, bottom = best["box"]
    share = (right - left) * (bottom - top) / (answer["width"] * answer["height"])
    right_one = len(found) == 1 and best["label"] == "Cat" and best["score"] > 0.6 and share > 0.8
    return _verdict(
        f"{best['label']} {best['score']:.2f}, {share:.0%} of the picture, {len(found)} in all", right_one
    )


def segmented(answer: dict[str, Any]) -> Finding:
    """A person covers 54 % of the picture."""
    coverage = answer["coverage"]
    return _verdict(f"a person on {coverage:.0%} of the picture", 0.5 < coverage < 0.6)


def read(answer: dict[str, Any]) -> Finding:
    """Two printed lines, without a fault."""
    return _verdict(f"'{answer['text']}'".replace("\n", " / "), answer["text"] == TEXT)


def turned(outputs: list[dict[str, Any]]) -> Finding:
    """Open Inference Protocol: the same line twice, upright and upside down, in one batch of `ocr-orient`."""
    values = [float(v) for v in outputs[0]["data"]]
    right_one = len(values) == 4 and all(abs(v - want) < 0.01 for v, want in zip(values, (1, 0, 0, 1), strict=True))
    return _verdict("upright and upside down told apart: " + " ".join(f"{v:.2f}" for v in values), right_one)


KNOWN = (
    Known("classify", "cat.jpg", classified),
    Known("detect", "cat.jpg", detected),
    Known("segment", "person.jpg", segmented),
    Known("ocr", "text.png", read),
)


def _verdict(words: str, right: bool) -> Finding:
    return ok(words) if right else failed(f"a wrong answer: {words}", WRONG)
