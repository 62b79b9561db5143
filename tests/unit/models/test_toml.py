from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ModelLoadError
from appliance.models.spec import Batching, ModelConfig, Pad
from appliance.models.toml import located, plain_name, read_config
from appliance.toml_lines import key_lines

WHOLE = """
backend = "onnx"          # everything there is
device = "require"
instances = 2
required = true
load = "manual"
versions = [1, 3]
filename = "net.onnx"
description = "A detector"
threads = 4
finite = false
[batching]
max = 8
[limits]
queue = 10
rate = "20/second"
[timeouts]
queue_ms = 100
run_ms = 200
[warmup]
enabled = true
shapes.images = [1, 3, 640, 640]
[pipeline]
task = "detect"
threshold = 0.5
[backend_options]
x = [1, 2]
"""


TWO = "[[outputs]]\nname = 'y'\ndatatype = 'FP32'\n[[outputs]]\nname = 'x'\n"
PAD = "[batching.pad.length]\nbuckets = [8, 16]\n"


def fault(text: str) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read_config(text)
    return caught.value.message


def test_an_empty_file_is_all_defaults() -> None:
    assert read_config("") == ModelConfig()


def test_every_key_is_read() -> None:
    config = read_config(WHOLE)
    assert config.batching == Batching(max=8)
    assert config.versions == [1, 3]
    assert config.finite is False
    assert config.warmup.shapes == {"images": [1, 3, 640, 640]}
    assert config.pipeline == {"task": "detect", "threshold": 0.5}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("# c\nbackend = 'onnx'\n\nbatchng = 1\n", 4, "unknown key 'batchng' (known: backend, "),
        ("[batching]\nmax = 2\ndelay = 3", 3, "unknown key 'delay' in [batching] (known: max, max_delay_ms, "),
        ("batching = { max = 0 }", 1, "'batching.max' must be 1 to 1024, not 0"),
        ("instances = 1\ninstances = 2", 2, "Cannot overwrite a value"),
        ("x = \n", 1, "Invalid value"),
        ("a = [1,\n2", 2, "Unclosed array"),
        ("\ninstances = 65", 2, "'instances' must be 1 to 64, not 65"),
        ("instances = 1.5", 1, "'instances' must be a whole number, not a number with a point"),
        ("instances = true", 1, "'instances' must be a whole number, not true or false"),
        ("threads = -1", 1, "'threads' must be 1 to 256, not -1"),
        ("finite = 1", 1, "'finite' must be true or false, not a whole number"),
        ("device = 'gpu'", 1, "'device' must be one of require, prefer, cpu"),
        ("versions = 'newest'", 1, "'versions' must be one of latest, all, or a list"),
        ("versions = [1, 'a']", 1, "each value in 'versions' must be a whole number, not text in quotes"),
        ("versions = []", 1, "'versions' must list version numbers"),
        ("versions = [2, 2]", 1, "'versions' names a version twice"),
        ("filename = '../m.onnx'", 1, "'filename' must be a plain file name"),
        ("filename = 'C:m.onnx'", 1, "'filename' must be a plain file name"),
        ("limits = 3", 1, "'limits' must be a table, not a whole number"),
        ("[limits]\nrate = 20", 2, "'limits.rate' must be text in quotes, not a whole number"),
        ("[limits]\nqueue = 1\nrate = ''", 3, "'limits.rate': '' is not a rate (such as 100/second"),
        ("[[batching]]\nmax = 1", 1, "'batching' must be a table, not a list"),
        ("description = '''\na\nb'''\nfoo = 1", 4, "unknown key 'foo'"),
        ("[timeouts]\r\n# c\r\nrun_ms = 0", 3, "'timeouts.run_ms' must be 1 to"),
        ("backend = 'torch'", 1, "unknown backend 'torch' (known: onnx, pytorch, genai, fake, pipeline)"),
        ("\nload = 'later'", 2, "'load' must be one of eager, lazy, manual"),
        ("load = 'lazy'\nrequired = true", 1, "a required model is loaded at the start"),
        ("keep_alive_s = -1", 1, "'keep_alive_s' must be 0 to 31536000, not -1.0"),
        ("keep_alive_s = nan", 1, "'keep_alive_s' must be 0 to"),
        ("keep_alive_s = inf", 1, "'keep_alive_s' must be 0 to"),
        ("[memory]\nrun_bytes = -1", 2, "'memory.run_bytes' must be 0 to"),
        ("[memory]\n\nitem_bytes = -5", 3, "'memory.item_bytes' must be 0 to"),
        ("[memory]\nrun_bytes = 1.5", 2, "'memory.run_bytes' must be a whole number, not a number with a point"),
        (
            "[[inputs]]\nname = 'x'\ndatatype = 'FP32'\n[[inputs]]\nname = 3\ndatatype = 'FP32'",
            5,
            "'inputs.name' must be",
        ),
        ("[[inputs]]\nname = 'x'\n\n[[inputs]]\nname = 'y'\ndatatype = 'FP32'", 1, "[[inputs]] needs 'datatype'"),
        (f"{TWO}datatype = 'FP33'", 6, "'outputs.datatype' must be one of BOOL, UINT8, "),
        (f"{TWO}datatype = 'FP32'\nshape = [1, 0]", 7, "the sizes of 'x' must be -1 (any) or 1 and up"),
        (f"{TWO}datatype = 'FP32'\nshap = [1]", 7, "unknown key 'shap' in [outputs] (known: datatype, name, shape)"),
        (f"{TWO}datatype = 'FP32'\n[[outputs]]\nname = 'x'\ndatatype = 'FP32'", 8, "'x' is twice in [[outputs]]"),
        ("inputs = [1]", 1, "each of 'inputs' must be a table"),
        ("[pytorch]\ndtype = 'int8'", 2, "'pytorch.dtype' must be one of fp16, bf16, fp32"),
        ("[memory]\nbytes = 1", 2, "unknown key 'bytes' in [memory]"),
        ("[batching.pad]\nlength = 3", 2, "'batching.pad.length' must be a table"),
        (
            f"{PAD}inputs = {{ ids = 1 }}\naxis = 1",
            4,
            "unknown key 'axis' in [batching.pad.length] (known: buckets, ",
        ),
        ("[batching.pad.length]\ninputs = { ids = 1 }", 1, "'batching.pad.length' needs 'buckets'"),
        (f"{PAD}", 1, "'batching.pad.length' needs 'inputs', each with its axis"),
        (
            "[batching.pad.length]\n\nbuckets = [8, 16, 16]\ninputs = { ids = 1 }",
            3,
            "'batching.pad.length.buckets' must be rising sizes of 1 and up, not [8, 16, 16]",
        ),
        ("[batching.pad.length]\nbuckets = [0, 8]\ninputs = { ids = 1 }", 2, "must be rising sizes of 1 and up"),
        ("[batching.pad.length]\nbuckets = [8.5]\ninputs = { ids = 1 }", 2, "must be a whole number, not a number"),
        (f"{PAD}inputs.ids = 1\ninputs.mask = 0", 4, "the axis of 'mask' must be 1 to 32; 0 is the batch"),
        (f"{PAD}inputs = {{ ids = 1 }}\noutputs = {{ y = -1 }}", 4, "'batching.pad.length.outputs': the axis of 'y'"),
        (f"{PAD}inputs = {{ ids = 1 }}\n\nvalues = {{ x = 1 }}", 5, "names 'x', which is not in its 'inputs'"),
        (f"{PAD}inputs = {{ ids = 1 }}\nvalues = {{ ids = 'a' }}", 4, "each value in 'batching.pad.length.values'"),
        (f"{PAD}inputs = {{ ids = 1 }}\nvalues = {{ ids = {10**20} }}", 4, "the value of 'ids' is too large"),
        (
            f"{PAD}inputs = {{ ids = 1 }}\n[batching.pad.more]\nbuckets = [2]\ninputs = {{ ids = 1 }}",
            6,
            "'batching.pad.more.inputs': the axis of 'ids' is in 'batching.pad.length' already",
        ),
        (
            f"{PAD}inputs = {{ x = 1 }}\nvalues = {{ x = 1 }}\n"
            "[batching.pad.more]\nbuckets = [2]\ninputs = { x = 2 }\nvalues = { x = 2 }",
            8,
            "'x' is filled with another value already",
        ),
        (
            "[batching.pad.a]\nbuckets = [1, 2, 3, 4, 5, 6, 7, 8, 9]\ninputs = { x = 1 }\n"
            "[batching.pad.b]\nbuckets = [1, 2, 3, 4, 5, 6, 7, 8]\ninputs = { x = 2 }",
            1,
            "'batching.pad' makes 72 combinations of buckets, the most is 64",
        ),
        (f"batching.max = 1\n{PAD}inputs = {{ ids = 1 }}", 2, "'batching.pad' is for requests that share a run"),
        ("[pipeline]\nthreshold = 1", 1, "[pipeline] needs 'task'"),
        ("\nbackend = 'pipeline'", 2, "needs a table [pipeline]"),
        ("[warmup.shapes]\nx = [1,\n0]", 2, "the warm-up shape of 'x' must have sizes of 1 and up"),
        ("[warmup.shapes]\nx = [99999, 99999, 99999]", 2, "the warm-up shape of 'x' has over"),
    ],
)
def test_a_fault_is_told_with_its_line(text: str, line: int, words: str) -> None:
    told = fault(text)
    assert told.startswith(f"model.toml line {line}: "), told
    assert words in told


def test_all_faults_are_told_in_order_of_lines() -> None:
    told = fault("foo = 1\n[batching]\nmax = 'x'\nbar = 2")
    assert [told.index(f"line {line}") for line in (1, 3, 4)] == sorted(
        told.index(f"line {line}") for line in (1, 3, 4)
    )


def test_values_nested_too_deeply_are_told() -> None:
    assert "nested" in fault(f"x = {'[' * 5000}{']' * 5000}")


def test_lines_of_keys() -> None:
    text = "a.b = {d = [1, {e = 1},\n2], f = 3}\n[[x.'y z']]\n# g = 1\nh = '''\nzz = 1'''\ni = \"]\"\n[k]\nl = 1"
    assert key_lines(text) == {
        ("a", "b"): 1,
        ("a", "b", "d"): 1,
        ("a", "b", "d", "e"): 1,
        ("a", "b", "f"): 2,
        ("x", "y z"): 3,
        ("x", "y z", "0"): 3,
        ("x", "y z", "0", "h"): 5,
        ("x", "y z", "0", "i"): 7,
        ("k",): 8,
        ("k", "l"): 9,
    }


@given(st.text(alphabet="abx=.[]{}\"'\n#,0123 \\", max_size=80))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        read_config(text)
    except ModelLoadError as error:
        assert error.message.startswith("model.toml")


def test_lengths_that_may_be_filled_up() -> None:
    text = (
        f"[batching]\nmax = 4\n{PAD}inputs = {{ ids = 1, mask = 1 }}\noutputs = {{ y = 2 }}\nvalues = {{ ids = 7 }}"
    )
    assert read_config(text).batching == Batching(
        max=4, pad={"length": Pad((8, 16), {"ids": 1, "mask": 1}, {"y": 2}, {"ids": 7})}
    )


def test_a_fault_that_is_found_later_has_its_line_too() -> None:
    text = f"{PAD}inputs = {{ ids = 1 }}\n[warmup]\nshapes.x = [1]"
    for message, line in (
        ("batching.pad.length.inputs: axis 1 of 'ids' INT64[-1,7] is not free", 3),
        ("batching.pad.length.values: 300 is no value of 'ids'", 1),
        ("batching.pad: a batch fails", 1),
        ("warmup.shapes: the model has no input 'x'", 5),
    ):
        assert located(message, text, "model.toml") == f"model.toml line {line}: {message}"
    for message in ("unsupported opset: 99", "the warm-up failed: no", "", "limits.rate: x"):
        assert located(message, text, "model.toml") == message


def test_plain_names() -> None:
    assert plain_name("model.onnx") and plain_name("a b.onnx")
    for name in ("", ".", "..", "a/b", "a\\b", "C:a", "a\x00", "a*"):
        assert not plain_name(name)


def test_every_key_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    for field in msgspec.structs.fields(ModelConfig):
        struct = isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
        inner = msgspec.structs.fields(field.type) if struct else ()
        for name in [f"{field.name}.{part.name}" for part in inner] or [field.name]:
            assert f"| `{name}` |" in page, name
