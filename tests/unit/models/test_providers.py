"""`providers` and `[tensorrt]` of a model.toml."""

import pytest

from appliance.errors import ModelLoadError
from appliance.models.spec import ModelConfig, TensorRTConfig
from appliance.models.toml import read_config

NAMED = 'providers = ["tensorrt", "cuda", "cpu"]\n'


def test_they_are_read() -> None:
    assert read_config("").providers == ()
    config = read_config(
        f"{NAMED}[tensorrt]\nfp16 = true\nint8 = true\ncalibration_table = 'ranges.flatbuffers'\n"
        "timing_cache = false\nworkspace_bytes = 1000\noptimization_level = 5\n"
    )
    assert config == ModelConfig(
        providers=("tensorrt", "cuda", "cpu"),
        tensorrt=TensorRTConfig(
            fp16=True,
            int8=True,
            calibration_table="ranges.flatbuffers",
            timing_cache=False,
            workspace_bytes=1000,
            optimization_level=5,
        ),
    )
    for some in ('["tensorrt"]', '["cuda", "cpu"]', '["cpu"]', "[]"):
        read_config(f"providers = {some}")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('providers = ["rocm"]', "line 1: 'providers' must be one of tensorrt, cuda, cpu"),
        ('providers = "cuda"', "line 1: 'providers' must be a list, not text in quotes"),
        (
            'providers = ["cuda", "tensorrt"]',
            """line 1: 'providers' must name each once, in this order: ["tensorrt", "cuda", "cpu"]""",
        ),
        (
            'providers = ["cuda", "cuda"]',
            """line 1: 'providers' must name each once, in this order: ["tensorrt", "cuda", "cpu"]""",
        ),
        ('device = "cpu"\nproviders = ["cuda"]', "line 2: 'providers' names cuda, but 'device' is cpu"),
        (
            'device = "require"\nproviders = ["cpu"]',
            "line 2: 'providers' names only the cpu, but 'device' requires the GPU",
        ),
        (
            f'{NAMED}backend = "fake"',
            "line 1: 'providers' is for ONNX models, not for backend 'fake'",
        ),
        ("[tensorrt]\nfp16 = true", "line 2: [tensorrt] is for models whose 'providers' name tensorrt"),
        (f"{NAMED}[tensorrt]\nfp8 = true", "line 3: unknown key 'fp8' in [tensorrt]"),
        (f"{NAMED}[tensorrt]\noptimization_level = 6", "line 3: 'tensorrt.optimization_level' must be 0 to 5, not 6"),
        (
            f"{NAMED}[tensorrt]\ncalibration_table = 'x'",
            "line 3: 'tensorrt.calibration_table' is for int8, which is not switched on",
        ),
        (
            f"{NAMED}[tensorrt]\nint8 = true\ncalibration_table = '../x'",
            "line 4: 'tensorrt.calibration_table' must be a plain file name",
        ),
    ],
)
def test_faults_are_told_with_their_line(text: str, fault: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        read_config(text)
    assert caught.value.message.startswith(f"model.toml {fault}")
