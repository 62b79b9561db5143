"""Which answers of the embedded models pass, and which do not."""

import json
from typing import Any

import pytest

from appliance.selftest import answers

BOX = [2.0, 0.0, 427.0, 300.0]


def detection(label: str = "Cat", score: float = 0.85, box: list[float] | None = None) -> dict[str, Any]:
    return {"label": label, "score": score, "box": box or BOX}


def picture(*found: dict[str, Any]) -> dict[str, Any]:
    return {"detections": list(found), "width": 450, "height": 300}


@pytest.mark.parametrize(
    ("judge", "answer", "verdict"),
    [
        (answers.classified, {"labels": [{"label": "Egyptian cat", "score": 0.8}]}, "ok"),
        (answers.classified, {"labels": [{"label": "Egyptian cat", "score": 0.2}]}, "failed"),
        (answers.classified, {"labels": [{"label": "tabby", "score": 0.8}]}, "failed"),
        (answers.detected, picture(detection()), "ok"),
        (answers.detected, picture(), "failed"),
        (answers.detected, picture(detection("Dog")), "failed"),
        (answers.detected, picture(detection(), detection()), "failed"),
        (answers.detected, picture(detection(box=[0, 0, 225, 300])), "failed"),  # half of the picture
        (answers.segmented, {"coverage": 0.544}, "ok"),
        (answers.segmented, {"coverage": 0.0}, "failed"),
        (answers.read, {"text": "The answer is ready\nat port 11711"}, "ok"),
        (answers.read, {"text": "The answer is ready"}, "failed"),
        (answers.turned, [{"data": [1.0, 0.0, 0.001, 0.999]}], "ok"),
        (answers.turned, [{"data": [0.0, 1.0, 1.0, 0.0]}], "failed"),
        (answers.turned, [{"data": [1.0, 0.0]}], "failed"),
        (answers.turned, [{"data": [float("nan"), 0.0, 0.0, 1.0]}], "failed"),
    ],
)
def test_judged(judge: Any, answer: Any, verdict: str) -> None:
    finding = judge(json.loads(json.dumps(answer)))
    assert finding.verdict == verdict
    assert "\n" not in finding.found
    assert bool(finding.cure) is (verdict == "failed")
