"""Folders of language models: which are known as such, and what their ``genai_config.json`` may say."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import ModelLoadError
from appliance.models import genai_config
from appliance.models.genai_config import GenaiFacts
from appliance.models.repository import ModelFolder, Root, add, scan
from tests.support import language

posix = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def one(models: Path, name: str = "llm") -> ModelFolder:
    found = scan([Root(models)])[name]
    assert str(models) not in (found.error or "")
    return found


def changed(folder: Path, path: str, value: Any) -> Path:
    """Sets what lies at ``path`` (``model.decoder.filename``) of the folder's configuration; None takes it away."""
    file = folder / genai_config.FILENAME
    raw = json.loads(file.read_text())
    *inner, last = path.split(".")
    table = raw
    for key in inner:
        table = table.setdefault(key, {})
    if value is None:
        del table[last]
    else:
        table[last] = value
    file.write_text(json.dumps(raw))
    return folder


def test_a_bare_folder(models: Path) -> None:
    language.sums(models / "llm")
    found = one(models)
    assert (found.error, found.config.backend) == (None, "genai")
    (file,) = found.files
    assert (file.version, file.path, file.root) == ("1", models / "llm", (models / "llm").resolve())


def test_version_folders(models: Path) -> None:
    for version in ("1", "2"):
        language.sums(models / "llm" / version)
    (models / "llm" / "3").mkdir()
    found = one(models)
    assert (found.error, found.config.backend) == (None, "genai")
    assert [(file.version, file.path.name) for file in found.files] == [("2", "2")]
    assert "version 3 is not served: genai_config.json is missing" in found.notes


def test_settings_beside_it(models: Path) -> None:
    language.sums(models / "llm")
    (models / "llm" / "model.toml").write_text("keep_alive_s = 5.0\n")
    assert one(models).config.backend == "genai"
    (models / "llm" / "model.toml").write_text('backend = "onnx"\n')  # the operator's word goes first
    found = one(models)
    assert (found.config.backend, found.files[0].path.name) == ("onnx", "model.onnx")
    (models / "llm" / "model.toml").write_text('filename = "model.onnx"\n')
    assert "'filename' is not for language models" in str(one(models).error)


def test_the_backend_alone_makes_no_language_model(models: Path) -> None:
    (models / "llm").mkdir()
    (models / "llm" / "model.toml").write_text('backend = "genai"\n')
    (models / "llm" / "model.onnx").write_text("onnx")
    assert one(models).error == "genai_config.json is missing"


def test_adding_one(models: Path, tmp_path: Path) -> None:
    language.sums(tmp_path / "source")
    assert add(models, tmp_path / "source", "llm") == "llm"
    assert one(models).config.backend == "genai"
    changed(tmp_path / "source", "model.decoder.session_options.custom_ops_library", "evil.so")
    with pytest.raises(ModelLoadError, match="custom_ops_library"):
        add(models, tmp_path / "source", "other")
    assert set(scan([Root(models)])) == {"llm"}


def test_the_facts(tmp_path: Path) -> None:
    folder = language.sums(tmp_path / "m", context=64)
    key = "past_key_values.0.key"
    assert genai_config.read(folder, folder) == GenaiFacts("llama", 64, 32, (0,), 1, 1, 1, key, shared=False)
    changed(folder, "model.eos_token_id", [7, 9])
    changed(folder, "search.past_present_share_buffer", True)
    changed(folder, "engine.dynamic_batching.max_batch_size", 5)
    assert genai_config.read(folder, folder) == GenaiFacts("llama", 64, 32, (7, 9), 1, 1, 1, key, True, paged=5)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("model", None, "there is no 'model' in it"),
        ("model.decoder", None, r"there is no 'model\.decoder' in it"),
        ("model.context_length", None, r"'model\.context_length' must be a whole number from 1 to"),
        ("model.vocab_size", -1, r"'model\.vocab_size' must be a whole number"),
        ("model.vocab_size", True, r"'model\.vocab_size' must be a whole number"),
        ("model.decoder.num_hidden_layers", 10**9, "num_hidden_layers' must be a whole number from 1 to 4096"),
        ("model.eos_token_id", "x", "eos_token_id' must be a whole number, or a list"),
        ("model.vision", {"filename": "v.onnx"}, r"'model\.vision' makes it more than a language model"),
        ("model.decoder.pipeline", [{"a": 1}], r"'model\.decoder\.pipeline' is not served"),
        ("runtime_profiles", {}, "'runtime_profiles' is not taken"),
        ("model.decoder.filename", 3, "filename' must be text"),
        ("model.decoder.filename", "../model.onnx", "leads upwards"),
        ("model.decoder.filename", "/etc/passwd", "is absolute"),
        ("model.decoder.filename", "C:\\x.onnx", "names a drive"),
        ("model.decoder.filename", "other.onnx", "the file is missing"),
        ("model.decoder.session_options.custom_ops_library", "x.so", "custom_ops_library' is not taken"),
        ("model.decoder.session_options.enable_profiling", "x", "enable_profiling' is not taken"),
        ("model.decoder.session_options", ["x"], "'session_options' must be a table"),
    ],
)
def test_what_it_may_not_say(tmp_path: Path, path: str, value: Any, words: str) -> None:
    folder = changed(language.sums(tmp_path / "m"), path, value)
    with pytest.raises(ModelLoadError, match=words) as told:
        genai_config.read(folder, folder)
    assert str(tmp_path) not in told.value.message


@pytest.mark.parametrize("text", ["", "[", "[]", "3", "[" * 5000])
def test_what_is_no_configuration(tmp_path: Path, text: str) -> None:
    folder = language.sums(tmp_path / "m")
    (folder / genai_config.FILENAME).write_text(text)
    with pytest.raises(ModelLoadError, match=r"genai_config\.json"):
        genai_config.read(folder, folder)


@posix
@pytest.mark.parametrize("name", ["tokenizer.json", "model.onnx", "genai_config.json"])
def test_links_that_lead_outside(tmp_path: Path, name: str) -> None:
    folder = language.sums(tmp_path / "m")
    shutil.copy(folder / "genai_config.json", tmp_path / "outside")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ModelLoadError, match="a link leads outside"):
        genai_config.read(folder, folder)
