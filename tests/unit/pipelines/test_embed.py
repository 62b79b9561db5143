import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import text_models
from pipeline_helpers import ask, model_spec
from text_models import CLS, SEP, Counted, pipeline

from appliance.errors import InputTooLarge, InvalidInput, InvalidOutput, ModelLoadError
from appliance.models.spec import TensorSpec
from appliance.pipelines.base import Item, PipelineContext
from appliance.pipelines.build import build
from appliance.pipelines.embed import pool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return text_models.embedder(tmp_path / "m")


def vectors(found: Any) -> list[list[float]]:
    return found.vectors.tolist()


def embed(
    folder: Path, texts: list[Any], max_batch: int = 0, call: Any = None, asked: Any = None, **options: Any
) -> Any:
    made = pipeline(folder, "embed", max_batch, **options)
    return asyncio.run(made.embed(texts, call or Counted(folder), **(asked or {})))


def mean_of(ids: list[int]) -> list[float]:
    """By hand: the mean of (id, id², 1)."""
    return [sum(ids) / len(ids), sum(i * i for i in ids) / len(ids), 1.0]


def test_the_mean_of_the_tokens(folder: Path) -> None:
    found = embed(folder, ["w1 w2", "w5"], normalize=False)
    np.testing.assert_allclose(found.vectors, [mean_of([CLS, 11, 12, SEP]), mean_of([CLS, 15, SEP])], rtol=1e-6)
    assert found.tokens == 7
    assert found.vectors.dtype == np.float32


def test_a_vector_has_length_one(folder: Path) -> None:
    (vector,) = vectors(embed(folder, ["w1"]))
    whole = np.array(mean_of([CLS, 11, SEP]))
    np.testing.assert_allclose(vector, whole / np.sqrt((whole**2).sum()), rtol=1e-6)


@pytest.mark.parametrize(("pooling", "right"), [("cls", [1, 1, 1]), ("last", [2, 4, 1]), ("max", [12, 144, 1])])
def test_other_poolings(folder: Path, pooling: str, right: list[float]) -> None:
    # The shorter text shares the run: what it is filled up with (NaN here) is not looked at.
    found = embed(folder, ["w1 w2", "w8 w8 w8 w8 w8"], max_batch=8, normalize=False, pooling=pooling)
    assert vectors(found)[0] == right


def test_pooling_against_a_loop() -> None:
    random = np.random.default_rng(1)
    tokens = random.standard_normal((3, 7, 5)).astype(np.float32)
    sizes = [7, 1, 4]
    mask = np.arange(7)[None] < np.array(sizes)[:, None]
    for row, size in enumerate(sizes):
        own = tokens[row, :size].astype(np.float64)
        np.testing.assert_allclose(pool(tokens, mask, "mean")[row], own.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(pool(tokens, mask, "max")[row], own.max(0))
        np.testing.assert_array_equal(pool(tokens, mask, "last")[row], own[-1])
        np.testing.assert_array_equal(pool(tokens, mask, "cls")[row], own[0])
    assert pool(tokens.astype(np.float16), mask, "mean").dtype == np.float32


def test_the_pooling_and_the_length_stand_in_files_beside_the_model(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True, "x": 1}))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 3, "do_lower_case": false}')
    found = embed(folder, ["w1 w2"], normalize=False)
    assert vectors(found) == [[1, 1, 1]]
    assert (len(found.texts[0].ids), found.texts[0].whole) == (3, 4)
    assert vectors(embed(folder, ["w1 w2"], normalize=False, pooling="last", max_tokens=9)) == [[2, 4, 1]]
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_weightedmean_tokens": True}))
    with pytest.raises(ModelLoadError, match=r"1_Pooling/config\.json: a pooling that is not known"):
        pipeline(folder, "embed")


def test_a_long_text_loses_its_end_and_says_so(folder: Path) -> None:
    found = embed(folder, ["w1 w2 w3 w4", "w7"], normalize=False, max_tokens=4)
    np.testing.assert_allclose(vectors(found)[0], mean_of([CLS, 11, 12, SEP]), rtol=1e-6)
    assert [(len(t.ids), t.whole) for t in found.texts] == [(4, 6), (3, 3)]
    assert found.tokens == 7


def test_a_long_text_is_refused_where_it_may_not_be_cut(folder: Path) -> None:
    for options, asked in (({"truncate": False}, {}), ({}, {"truncate": False})):
        with pytest.raises(InputTooLarge, match=r"'input\[1\]' has 6 tokens, the model's limit is 4") as caught:
            embed(folder, ["w1", "w1 w2 w3 w4"], max_tokens=4, asked=asked, **options)
        assert caught.value.param == "input[1]"
    assert embed(folder, ["w1 w2 w3 w4"], max_tokens=4, truncate=False, asked={"truncate": True}).tokens == 4


def test_the_tokenizers_own_limit_counts_where_no_file_says_more(tmp_path: Path) -> None:
    folder = text_models.embedder(tmp_path / "m")
    text_models.tokenizer(folder, truncation=5)
    assert embed(folder, ["w1 w1 w1 w1 w1"]).tokens == 5


def test_texts_share_runs_within_a_bound_of_tokens(folder: Path) -> None:
    words = [1, 9, 2, 8, 3, 1]
    texts = [" ".join(f"w{n}" for n in range(count)) for count in words]
    call = Counted(folder)
    together = embed(folder, texts, max_batch=16, call=call, batch_tokens=24)
    # By hand: 11, 10 | 5, 4, 3, 3 tokens.
    assert sorted(call.shapes) == [(2, 11), (4, 5)]
    alone = Counted(folder)
    each = embed(folder, texts, call=alone)
    assert sorted(alone.shapes) == sorted((1, count + 2) for count in words)
    np.testing.assert_allclose(together.vectors, each.vectors, rtol=1e-6)
    few = Counted(folder)
    embed(folder, texts, max_batch=2, call=few)
    assert sorted(few.shapes) == [(2, 3), (2, 5), (2, 11)]


def test_without_a_mask_only_texts_of_one_length_share_a_run(tmp_path: Path) -> None:
    from onnx import TensorProto as T
    from onnx import helper as h

    from tests.support import nets

    folder = text_models.tokenizer(tmp_path / "m")
    nets.save(
        folder / "model.onnx",
        [h.make_node("Cast", ["input_ids"], ["f"], to=T.FLOAT),
         h.make_node("Unsqueeze", ["f", "a"], ["token_embeddings"])],
        [("input_ids", T.INT64, ["b", "t"])],
        [("token_embeddings", T.FLOAT, ["b", "t", 1])],
        {"a": np.array([2], np.int64)},
    )  # fmt: skip
    call = Counted(folder)
    embed(folder, ["w1", "w1 w2", "w3"], max_batch=8, call=call)
    assert sorted(call.shapes) == [(1, 4), (2, 3)]


def test_token_types_are_given_where_the_model_has_them(tmp_path: Path) -> None:
    folder = text_models.embedder(tmp_path / "m", types=True)
    call = Counted(folder)
    embed(folder, ["w1"], call=call)
    assert call.inputs[0]["token_type_ids"].tolist() == [[0, 0, 0]]
    assert set(call.inputs[0]) == {"input_ids", "attention_mask", "token_type_ids"}


def test_ids_are_taken_as_they_are(folder: Path) -> None:
    found = embed(folder, [[CLS, 11, SEP], [40]], normalize=False)
    np.testing.assert_allclose(found.vectors, [mean_of([CLS, 11, SEP]), mean_of([40])], rtol=1e-6)
    for bad in (100_000, -1):
        with pytest.raises(InvalidInput, match=r"'input\[1\]' has an id that is not below 210"):
            embed(folder, [[1], [bad]])
    with pytest.raises(InvalidInput, match="'input' has no tokens"):
        embed(folder, [[]])


def test_limits_are_named(folder: Path) -> None:
    with pytest.raises(InputTooLarge, match="'input' has 3 texts, the limit is 2"):
        embed(folder, ["w1"] * 3, max_texts=2)
    with pytest.raises(InputTooLarge, match=r"'input\[1\]' has 9 characters, the limit is 8"):
        embed(folder, ["w1", "123456789"], max_characters=8)
    with pytest.raises(InvalidInput, match="'input' is empty"):
        embed(folder, [])
    with pytest.raises(InvalidInput, match="Unicode"):
        embed(folder, ["a\ud800"])


def test_shorter_vectors_only_where_the_model_has_them(folder: Path) -> None:
    whole = np.array(mean_of([CLS, 11, SEP]))
    (vector,) = vectors(embed(folder, ["w1"], dimensions=(2,), asked={"dimensions": 2}))
    np.testing.assert_allclose(vector, whole[:2] / np.linalg.norm(whole[:2]), rtol=1e-6)
    assert len(vectors(embed(folder, ["w1"], asked={"dimensions": 3}))[0]) == 3
    with pytest.raises(InvalidInput, match="'dimensions': 1 is not one that this model has; it has 2, 3") as caught:
        embed(folder, ["w1"], dimensions=(2,), asked={"dimensions": 1})
    assert caught.value.param == "dimensions"
    with pytest.raises(ModelLoadError, match="dimensions: 4 is over the model's 3"):
        pipeline(folder, "embed", dimensions=(4,))


def test_one_text_through_predict(folder: Path) -> None:
    made = pipeline(folder, "embed", normalize=False, max_tokens=3)
    answer = ask(made, Item("text", text="w1 w2"), Counted(folder)).result
    assert answer["tokens"] == 3
    assert answer["truncated_from"] == 4
    np.testing.assert_allclose(answer["embedding"], mean_of([CLS, 11, SEP]), rtol=1e-6)
    assert "truncated_from" not in ask(made, Item("text", text="w1"), Counted(folder)).result
    with pytest.raises(InvalidInput, match="takes a text"):
        ask(made, Item("file", file=b"x"), Counted(folder))
    with pytest.raises(InvalidInput, match="dimensions"):
        ask(made, Item("text", text="w1", parameters={"dimensions": "2"}), Counted(folder))


def test_an_embedder_is_known_without_a_task(folder: Path) -> None:
    assert pipeline(folder, None).task == "embed"
    assert pipeline(folder, None, pooling="cls").task == "embed"
    (folder / "tokenizer.json").unlink()
    assert pipeline(folder, None).task == "tensors"


def test_a_model_that_only_resembles_one_is_not_taken_for_an_embedder(folder: Path) -> None:
    token = TensorSpec("input_ids", "INT64", (-1, -1))
    past = TensorSpec("past_key_values.0.key", "FP32", (-1, 1, -1, 8))
    for inputs, output in (
        ([token], TensorSpec("logits", "FP32", (-1, -1, 3))),
        ([token, past], TensorSpec("last_hidden_state", "FP32", (-1, -1, 3))),
    ):
        made = build(PipelineContext("m", {}, model_spec(inputs, [output]), folders=(folder,)))
        assert made.task == "tensors"


@pytest.mark.parametrize(
    ("inputs", "output", "words"),
    [
        ([("x", "FP32", (-1, 4))], ("y", "FP32", (-1, 4)), "no input 'input_ids'"),
        ([("input_ids", "FP32", (-1, -1))], ("y", "FP32", (-1, 4)), "'input_ids' FP32.* cannot be made from a text"),
        ([("input_ids", "INT64", (-1, -1)), ("past", "FP32", (-1, 4))], ("y", "FP32", (-1, 4)), "'past'"),
        ([("input_ids", "INT64", (-1, -1))], ("y", "FP32", (4,)), "no vector for a token or a text"),
    ],
)
def test_a_model_that_takes_no_texts(folder: Path, inputs: Any, output: Any, words: str) -> None:
    spec = model_spec([TensorSpec(*i) for i in inputs], [TensorSpec(*output)])
    with pytest.raises(ModelLoadError, match=words):
        build(PipelineContext("m", {"task": "embed"}, spec, folders=(folder,)))


def test_tokenizers_that_are_none(folder: Path, tmp_path: Path) -> None:
    file = folder / "tokenizer.json"
    for content, words in (
        (b"{", "is not a tokenizer"),
        (b"\xff", "not UTF-8"),
        (b'{"model": 5}', "is not a tokenizer"),
    ):
        file.write_bytes(content)
        with pytest.raises(ModelLoadError, match=words):
            pipeline(folder, "embed")
    file.unlink()
    with pytest.raises(ModelLoadError, match=r"there is no tokenizer.json"):
        pipeline(folder, "embed")
    outside = text_models.tokenizer(tmp_path / "outside") / "tokenizer.json"
    file.symlink_to(outside)
    with pytest.raises(ModelLoadError, match="outside of the model's folder"):
        pipeline(folder, "embed")


def test_an_output_without_a_row_for_each_text(folder: Path) -> None:
    class Short(Counted):
        async def infer(self, inputs: Any, *, model: str | None = None) -> dict[str, Any]:
            return {"last_hidden_state": np.zeros((1, 2, 3), np.float32)}

    with pytest.raises(InvalidOutput, match="not one row a text"):
        embed(folder, ["w1", "w2"], max_batch=4, call=Short(folder))


def test_a_fault_ends_the_other_runs(folder: Path) -> None:
    class Faulty(Counted):
        async def infer(self, inputs: Any, *, model: str | None = None) -> dict[str, Any]:
            if len(self.shapes) == 3:
                raise InvalidOutput("no")
            await asyncio.sleep(0)
            return await super().infer(inputs)

    call = Faulty(folder)
    with pytest.raises(InvalidOutput):
        embed(folder, ["w1"] * 50, call=call)
    assert len(call.shapes) < 10
