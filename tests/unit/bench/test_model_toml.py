"""Changing a person's file: what is asked for changes, and nothing else."""

import codecs
from pathlib import Path

import pytest

from appliance.bench.faults import BenchError
from appliance.bench.model_toml import difference, edited, home, read, write
from appliance.models.folder import ModelFolder

ALL = {("instances",): 2, ("batching", "max"): 4, ("batching", "max_delay_ms"): 1.0}


def test_comments_order_and_other_keys_stay() -> None:
    before = """\
# Finds vehicles
description = "Vehicles"   # for people
instances = 1  # one card

[batching]
# measured in May
max = 16   # most
[batching.pad.length]
buckets = [16, 32]
inputs = { ids = 1 }

[pipeline]
task = "detect"
"""
    after = """\
# Finds vehicles
description = "Vehicles"   # for people
instances = 2  # one card

[batching]
# measured in May
max = 4   # most
max_delay_ms = 1.0

[batching.pad.length]
buckets = [16, 32]
inputs = { ids = 1 }

[pipeline]
task = "detect"
"""
    assert edited(before, ALL) == after


def test_what_is_missing_is_made() -> None:
    assert edited("", ALL) == "instances = 2\n\n[batching]\nmax = 4\nmax_delay_ms = 1.0\n"
    assert edited('[pipeline]\ntask = "classify"\n', {("instances",): 2}) == (
        'instances = 2\n\n[pipeline]\ntask = "classify"\n'
    )


@pytest.mark.parametrize(
    "text", ["batching.max = 8\n", "batching = { max = 8 }\n", "[batching]\nmax=8", '"batching"."max" = 8 # note\n']
)
def test_every_way_to_write_a_table(text: str) -> None:
    import tomllib

    assert tomllib.loads(edited(text, ALL)) == {"instances": 2, "batching": {"max": 4, "max_delay_ms": 1.0}}


def test_removing() -> None:
    text = 'load = "lazy"\n[limits]\nrate = "5/second"\nqueue = 3\n'
    gone = {("load",): None, ("limits", "rate"): None, ("warmup", "enabled"): None}
    assert edited(text, gone) == "[limits]\nqueue = 3\n"
    assert edited("", gone) == ""


def test_line_ends_and_the_byte_order_mark_stay(tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_bytes(codecs.BOM_UTF8 + b"# \xc3\xa4\r\ninstances = 1\r\n")
    write(file, edited(read(file), {("instances",): 3}))
    assert file.read_bytes() == codecs.BOM_UTF8 + b"# \xc3\xa4\r\ninstances = 3\r\n"
    assert [path.name for path in tmp_path.iterdir()] == ["model.toml"]
    assert read(tmp_path / "missing.toml") == ""


def test_faults() -> None:
    with pytest.raises(BenchError, match="cannot be changed"):
        edited("instances = ", ALL)
    with pytest.raises(BenchError, match="1 to 64"):
        edited("", {("instances",): 65})
    with pytest.raises(BenchError, match="preferred_sizes"):
        edited("[batching]\npreferred_sizes = [8]\n", {("batching", "max"): 4})


def test_difference() -> None:
    assert difference("a\nb\n", "a\nc\n", "model.toml") == (
        "--- model.toml\n+++ model.toml (new)\n@@ -1,2 +1,2 @@\n a\n-b\n+c"
    )
    assert difference("a\n", "a\n", "model.toml") == ""


def test_where_a_models_settings_are(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    assert home(ModelFolder("own", tmp_path / "own")) == tmp_path / "own/model.toml"
    assert home(ModelFolder("bare", tmp_path / "bare.onnx")) == tmp_path / "bare.toml"
    with pytest.raises(BenchError, match="comes with the program"):
        home(ModelFolder("own", tmp_path / "own", read_only=True))
    (tmp_path / "own/config.pbtxt").write_text("")
    with pytest.raises(BenchError, match=r"config\.pbtxt"):
        home(ModelFolder("own", tmp_path / "own"))
