import subprocess
import sys
from typing import Any

import pytest
from pipeline_helpers import MODELS, config, embedded, labels, model_spec, spec_of

from appliance.errors import ModelLoadError
from appliance.models.spec import TensorSpec
from appliance.pipelines.base import PipelineContext
from appliance.pipelines.build import TASKS, build

SPEC = model_spec([TensorSpec("x", "FP32", (-1, 3, 8, 8))], [TensorSpec("y", "FP32", (-1, 10))])


def of(options: dict[str, Any], spec: Any = SPEC, labels: tuple[str, ...] = ()) -> Any:
    return build(PipelineContext("m", options, spec, labels))


def test_without_a_task_it_is_tensors() -> None:
    assert of({}).task == "tensors"
    assert of({"task": "classify"}).task == "classify"


def test_an_unknown_task_lists_the_known() -> None:
    with pytest.raises(ModelLoadError, match="'clasify'") as caught:
        of({"task": "clasify"})
    assert all(task in caught.value.message for task in TASKS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "classify", "topk": 3}, r"\[pipeline\].*`topk`.*top_k"),
        ({"task": "classify", "image": {"sise": [8, 8]}}, r"\[pipeline.image\].*`sise`.*size"),
        ({"task": "classify", "top_k": 0}, r"\[pipeline.top_k\]"),
        ({"task": "classify", "activation": "relu"}, "activation"),
        ({"task": "classify", "output": "z"}, "no output 'z'; has y"),
        ({"task": "detect", "threshold": 2}, "threshold"),
        ({"task": "segment", "image": {"mean": "x"}}, "mean"),
        ({"task": "ocr"}, "models"),
        ({"task": "ocr", "models": {"detect": "a", "read": "b", "cut": "c"}}, "cut"),
        ({"threshold": 1}, "threshold"),
    ],
)
def test_bad_options_name_the_key(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        of(options)


def test_a_task_that_needs_a_model_says_so() -> None:
    with pytest.raises(ModelLoadError, match="needs a model"):
        of({"task": "classify"}, spec=None)


def test_labels_must_be_as_many_as_the_classes() -> None:
    with pytest.raises(ModelLoadError, match=r"2 lines.*10 classes"):
        of({"task": "classify"}, labels=("a", "b"))
    with pytest.raises(ModelLoadError, match="characters"):
        of({"task": "ocr", "models": {"detect": "a", "read": "b"}}, spec=None)


def test_every_embedded_model_is_accounted_for() -> None:
    folders = {p.name for p in MODELS.iterdir() if p.is_dir()}
    assert folders == {"classify", "detect", "segment", "ocr", "ocr-detect", "ocr-orient", "ocr-read"}
    origin = (MODELS / "README.md").read_text("utf-8")
    for name in folders:
        assert config(name).required
        assert f"`{name}`" in origin
        assert (MODELS / name / "1" / "model.onnx").exists() == (name != "ocr")
        for tensor in config(name).warmup.shapes:
            assert spec_of(name).input(tensor)


@pytest.mark.parametrize("name", ["classify", "detect", "segment", "ocr"])
def test_embedded_pipelines_are_built(name: str) -> None:
    pipeline = embedded(name)
    assert pipeline.task == name
    assert pipeline.parts == (("ocr-detect", "ocr-orient", "ocr-read") if name == "ocr" else ())


def test_the_readers_characters_are_the_models_own() -> None:
    from pipeline_helpers import session

    reader = session("ocr-read")
    own = reader.get_modelmeta().custom_metadata_map["character"].split("\n")
    assert list(labels("ocr")) == own
    assert reader.get_outputs()[0].shape[2] == len(own) + 2  # blank before, space after


def test_pipelines_are_imported_only_when_asked_for() -> None:
    code = "import sys, appliance.pipelines.build; print([m for m in ('PIL', 'shapely') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=MODELS.parents[1]
    )
    assert done.stdout.strip() == "[]"


def test_every_key_is_documented() -> None:
    from appliance.pipelines import classify, detect, embed, ocr, preprocess, rerank, segment
    from appliance.pipelines.language import generate

    page = (MODELS.parents[1] / "docs" / "pipelines.md").read_text("utf-8")
    forms = (
        classify.Options, detect.Options, embed.Options, ocr.Options, ocr.Models, preprocess.ImageOptions,
        rerank.Options, segment.Options, generate.Options, generate.Wishes,
    )  # fmt: skip
    keys = {key for form in forms for key in form.__struct_fields__} - {"image"}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
    assert [task for task in TASKS if f"`{task}`" not in page] == []
