"""What PyTorch is told before it is imported."""

import sys
from pathlib import Path

from appliance.system.torch_setup import prepare


def test_only_tensors_are_unpickled_whatever_the_environment_says(tmp_path: Path) -> None:
    environment = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    prepare(tmp_path, environment)
    assert environment["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in environment
    assert environment["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    assert environment["AOTI_RUNTIME_CHECK_INPUTS"] == "1"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")


def test_blocks_grow_in_place_unless_somebody_says_otherwise() -> None:
    environment: dict[str, str] = {}
    prepare(None, environment)
    assert environment.get("PYTORCH_ALLOC_CONF") == (None if sys.platform == "win32" else "expandable_segments:True")
    assert "TORCHINDUCTOR_CACHE_DIR" not in environment
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        environment = {name: "backend:native"}
        prepare(None, environment)
        assert {key: value for key, value in environment.items() if "ALLOC" in key} == {name: "backend:native"}
