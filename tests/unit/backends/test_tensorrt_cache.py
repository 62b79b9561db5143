"""Where engines are kept: only one that fits is ever found."""

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.backends.tensorrt_cache import Kept, Stack, model_key, place

STACK = Stack(
    device="cuda:0",
    name="NVIDIA GeForce RTX 4090",
    capability="8.9",
    driver="580.97",
    tensorrt="10.13.3",
    onnxruntime="1.31.1",
    cuda="13.0",
)


def test_it_lies_in_the_state_folder(tmp_path: Path) -> None:
    assert place(tmp_path / "runtimes") == tmp_path / "tensorrt"
    assert place(None) is None


@pytest.mark.parametrize("field", Stack.__struct_fields__)
def test_whatever_changes_of_the_machine_is_another_folder(field: str) -> None:
    other = msgspec.structs.replace(STACK, **{field: "another"})
    assert other.folder() != STACK.folder()
    nothing: dict[str, Any] = {field: None}
    if field != "device":
        assert msgspec.structs.replace(STACK, **nothing).unknown() == [field]
    assert STACK.unknown() == []
    assert STACK.folder().startswith("nvidia-geforce-rtx-4090-")


def test_whatever_changes_of_the_model_is_another_folder(tmp_path: Path) -> None:
    model, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    model.write_bytes(b"graph")
    weights.write_bytes(b"one")
    options: dict[str, object] = {"trt_fp16_enable": True, "device_id": 0}
    key = model_key("YOLO v8", [model, weights], options)
    assert key.startswith("yolo-v8-")
    assert model_key("YOLO v8", [model, weights], dict(reversed(options.items()))) == key
    assert model_key("YOLO v8", [model, weights], options | {"trt_fp16_enable": False}) != key
    assert model_key("YOLO v8", [model], options) != key
    weights.write_bytes(b"two")  # ONNX Runtime's own name for an engine would be the same
    assert model_key("YOLO v8", [model, weights], options) != key
    with pytest.raises(OSError):
        model_key("m", [tmp_path / "none"], options)


def test_only_a_whole_engine_is_used_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path, STACK, "m-1")
    assert kept.begin() is False
    (kept.folder / "half.engine").write_bytes(b"half")
    assert Kept(tmp_path, STACK, "m-1").begin() is False  # as after a process that ended meanwhile
    assert list(kept.folder.iterdir()) == []
    (kept.folder / "m.engine").write_bytes(b"engine")
    kept.commit()
    again = Kept(tmp_path, STACK, "m-1")
    assert again.begin() is True
    assert [file.name for file in kept.folder.iterdir()] == ["m.engine"]
    # One that ends the process while it is loaded is not tried again.
    assert Kept(tmp_path, STACK, "m-1").begin() is False
    told = json.loads((kept.timings / "stack.json").read_bytes())
    assert (told["name"], told["driver"], told["tensorrt"]) == (STACK.name, STACK.driver, STACK.tensorrt)


def test_what_cannot_be_built_is_remembered(tmp_path: Path) -> None:
    kept = Kept(tmp_path, STACK, "m-1")
    assert not kept.refused
    kept.begin()
    kept.refuse()
    assert Kept(tmp_path, STACK, "m-1").refused
    assert not Kept(tmp_path, msgspec.structs.replace(STACK, driver="600.1"), "m-1").refused


def test_engines_that_nobody_used_for_long_are_deleted(tmp_path: Path) -> None:
    long_ago = time.time() - 61 * 24 * 3600
    kept = {name: Kept(tmp_path, STACK, name) for name in ("old", "fresh", "new")}
    gone = Kept(tmp_path, msgspec.structs.replace(STACK, driver="1"), "m")
    for one in (*kept.values(), gone):
        one.begin()
        one.commit()
    for one in (kept["old"], gone):
        os.utime(one.folder / "whole", (long_ago, long_ago))
        os.utime(one.timings, (long_ago, long_ago))
    kept["new"].begin()
    kept["new"].commit()
    assert not kept["old"].folder.exists() and not gone.folder.exists()
    assert kept["fresh"].folder.exists() and kept["new"].folder.exists()
