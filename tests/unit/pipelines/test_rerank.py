import asyncio
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import text_models
from pipeline_helpers import Canned, ask, model_spec
from text_models import Counted, pipeline

from appliance.errors import InputTooLarge, InvalidInput, ModelLoadError
from appliance.models.spec import TensorSpec
from appliance.pipelines.base import Item, PipelineContext
from appliance.pipelines.build import build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return text_models.scorer(tmp_path / "m")


def rank(folder: Path, query: str, documents: list[str], max_batch: int = 0, **options: Any) -> Any:
    made = pipeline(folder, "rerank", max_batch, **options)
    return asyncio.run(made.rank(query, documents, Counted(folder)))


def score(*ids: int) -> float:
    """By hand: the ids of the document and the [SEP] behind it, through the network and the sigmoid."""
    return 1 / (1 + exp(-(sum(ids) + text_models.SEP - 100) / 100))


def test_a_score_for_each_document(folder: Path) -> None:
    found = rank(folder, "w100", ["w1", "w90 w90", "w50"], max_batch=8)
    assert found.scores == pytest.approx([score(11), score(100, 100), score(60)], abs=1e-6)
    assert found.tokens == 5 + 6 + 5
    assert rank(folder, "w100", ["w1"], activation="none").scores == [pytest.approx(-0.87)]


def test_only_the_document_is_cut(folder: Path) -> None:
    found = rank(folder, "w100 w100", ["w1 w2 w3 w4"], max_tokens=7)
    assert found.scores == pytest.approx([score(11, 12)], abs=1e-6)
    assert (len(found.texts[0].ids), found.texts[0].whole) == (7, 9)
    long = rank(folder, " ".join(["w1"] * 50), ["w90 w90 w90 w90"], max_tokens=7)
    # Room for 4: the question may not take more than half where the document needs the other.
    assert long.scores == pytest.approx([score(100, 100)], abs=1e-6)
    with pytest.raises(InputTooLarge, match=r"'documents\[1\]' has 9 tokens, the model's limit is 7"):
        rank(folder, "w1 w1", ["w1", "w1 w2 w3 w4"], max_tokens=7, truncate=False)


def test_two_numbers_are_no_and_yes(folder: Path) -> None:
    spec = model_spec([TensorSpec("input_ids", "INT64", (-1, -1))], [TensorSpec("logits", "FP32", (-1, 2))])
    made: Any = build(PipelineContext("m", {"task": "rerank"}, spec, folders=(folder,)))
    found = asyncio.run(made.rank("w1", ["w2"], Canned({"logits": np.array([[0.0, 2.0]], np.float32)})))
    assert found.scores == [pytest.approx(exp(2) / (1 + exp(2)), abs=1e-6)]


def test_what_gives_no_score(folder: Path) -> None:
    token = TensorSpec("input_ids", "INT64", (-1, -1))
    for shape in ((-1, 3), (-1, -1, 8)):
        spec = model_spec([token], [TensorSpec("logits", "FP32", shape)])
        with pytest.raises(ModelLoadError, match="is no score"):
            build(PipelineContext("m", {"task": "rerank"}, spec, folders=(folder,)))


def test_one_document_through_predict(folder: Path) -> None:
    made = pipeline(folder, "rerank", max_tokens=6)
    item = Item("text", text="w90 w90 w90", parameters={"query": "w1"})
    answer = ask(made, item, Counted(folder)).result
    assert answer == {"score": pytest.approx(score(100, 100), abs=1e-6), "tokens": 6, "truncated_from": 7}
    with pytest.raises(InvalidInput, match="query"):
        ask(made, Item("text", text="w90"), Counted(folder))
    with pytest.raises(InvalidInput, match="takes a text"):
        ask(made, Item("file", file=b"x", parameters={"query": "w1"}), Counted(folder))
