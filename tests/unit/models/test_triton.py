import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ModelLoadError
from appliance.models.declared import Declared, check_declared
from appliance.models.spec import TensorSpec
from appliance.models.triton import read_pbtxt

DETECTOR = """
# as many repositories have it
name: "yolo"
platform: "onnxruntime_onnx"
max_batch_size : 8
input [
  {
    name: "images"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 640, -1 ]
  }
]
output { name: "boxes" data_type: TYPE_FP32 dims: -1 dims: 84 label_filename: "coco.txt" }
output { name: "names" data_type: TYPE_STRING dims: [ -1 ] }
version_policy: { latest: { num_versions: 2 } }
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 1500 max_queue_size: 7 }
}
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0 ] } ]
parameters { key: "intra_op_thread_count" value: { string_value: "2" } }
parameters: { key: "execution_mode", value: { string_value: "0" } }
optimization {
  execution_accelerators {
    gpu_execution_accelerator : [ { name : "tensorrt" parameters { key: "precision_mode" value: "FP16" } } ]
  }
  graph { level: 1 }
}
model_warmup [
  {
    name: "w"
    batch_size: 1
    inputs { key: "images" value { data_type: TYPE_FP32 dims: [ 3, 640, 640 ] zero_data: true } }
  }
]
response_cache { enable: true }
model_transaction_policy { decoupled: false }
"""


def fault(text: str) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read_pbtxt(text, "yolo")
    assert caught.value.message.startswith("config.pbtxt")
    return caught.value.message


def test_a_detector() -> None:
    read = read_pbtxt(DETECTOR, "yolo")
    config = read.config
    assert (config.backend, config.device, config.instances, config.threads) == ("onnx", "prefer", 2, 2)
    assert (config.batching.max, config.timeouts.queue_ms, config.limits.queue) == (8, 2, 7)
    assert (config.batching.max_delay_ms, config.batching.preferred_sizes) == (0.1, (4, 8))
    assert (config.versions, read.latest, read.label_file) == ("latest", 2, "coco.txt")
    assert read.declared == Declared(
        (TensorSpec("images", "FP32", (-1, 3, 640, -1)),),
        (TensorSpec("boxes", "FP32", (-1, -1, 84)), TensorSpec("names", "BYTES", (-1, -1))),
        8,
    )
    told = "\n".join(read.notes)
    for what in ("optimization", "model_warmup", "gpus", "execution_mode", "response_cache"):
        assert what in told
    assert "intra_op" not in told and "decoupled" not in told


def test_no_batch_axis() -> None:
    read = read_pbtxt('max_batch_size: 0 input { name: "a" data_type: TYPE_INT64 dims: [1, 2] }', "yolo")
    assert read.config.batching.max == 1
    assert read.declared == Declared((TensorSpec("a", "INT64", (1, 2)),), (), 0)


def test_tensors_without_a_batch_size_have_no_batch_axis() -> None:
    assert read_pbtxt('input { name: "a" dims: [4] }', "yolo").declared.max_batch == 0


@pytest.mark.parametrize("text", ["", "# nothing\n", 'backend: "onnxruntime"', 'platform: "onnxruntime_onnx"'])
def test_what_is_not_given_is_found_out_from_the_file(text: str) -> None:
    read = read_pbtxt(text, "yolo")
    assert read.config.batching.max is None
    assert read.declared == Declared()


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("version_policy { all { } }", "all"),
        ("version_policy: { specific: { versions: [3, 1] } }", [1, 3]),
        ("version_policy { latest { } }", "latest"),
    ],
)
def test_version_policies(text: str, policy: object) -> None:
    assert read_pbtxt(text, "yolo").config.versions == policy


def test_instances() -> None:
    cpu = read_pbtxt("instance_group [ { kind: KIND_CPU count: 3 }, { kind: KIND_CPU } ]", "yolo").config
    assert (cpu.device, cpu.instances) == ("cpu", 4)
    both = read_pbtxt("instance_group [ { kind: KIND_CPU count: 3 }, { kind: KIND_GPU } ]", "yolo")
    assert (both.config.device, both.config.instances) == ("prefer", 1)
    assert any("KIND_CPU" in note for note in both.notes)


@pytest.mark.parametrize("text", ['backend: "pytorch"', 'platform: "pytorch_libtorch"'])
def test_a_torch_script_model(text: str) -> None:
    text += ' max_batch_size: 8 input { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, -1 ] }'
    found = read_pbtxt(text, "yolo")
    assert found.config.backend == "pytorch"
    assert found.declared.inputs == (TensorSpec("INPUT__0", "FP32", (-1, 3, -1)),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name: "yolo"\n\nmax_batch: 3', "line 3: unknown field 'max_batch'"),
        ('input {\n  name: "a"\n  dim: 1\n}', "line 3: unknown field 'dim' in Input"),
        ('name: "zebra"', "name is 'zebra', but the folder is 'yolo'"),
        ('name: "yolo" name: "yolo"', "multiple"),
        ('name "x', "line 1"),
        ('backend: "python"', "backend 'python' is not served"),
        ('platform: "tensorrt_plan"', "platform 'tensorrt_plan' is not served"),
        ('platform: "ensemble"', "ensemble"),
        (
            'ensemble_scheduling { step [ { model_name: "x" input_map { key: "a" value: "b" } } ] }',
            "(ensemble_scheduling)",
        ),
        (
            "sequence_batching { direct { } control_input [ { name: 'S' control [ { kind: CONTROL_SEQUENCE_START "
            "fp32_false_true: [ 0, 1 ] } ] } ] }",
            "(sequence_batching)",
        ),
        ('model_operations { op_library_filename: "evil.so" }', "(model_operations)"),
        ('model_repository_agents { agents [ { name: "checksum" } ] }', "(model_repository_agents)"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
        ('batch_input { kind: BATCH_ITEM_SHAPE target_name: "x" }', "(batch_input)"),
        ('input { name: "a" dims: [1] reshape { shape: [ ] } }', "reshape of 'a'"),
        ('input { name: "a" data_type: TYPE_FP8 }', "TYPE_FP8"),
        ('input { name: "a" dims: 0 }', "dims of 'a'"),
        ('input { name: "a" } input { name: "a" }', "there twice"),
        ("input { dims: 1 }", "has no name"),
        ("max_batch_size: -1", "max_batch_size must be 0 or more"),
        ("max_batch_size: 5000", "at most 1024"),
        ("max_batch_size: 99999999999", "line 1"),
        ("instance_group { count: 65 }", "asks for 65 instances"),
        ('default_model_filename: "../x.onnx"', "plain file name"),
        ('output { name: "a" label_filename: "/etc/passwd" }', "plain file name"),
        ("version_policy { latest { } all { } }", "one of latest, all, specific"),
        ("version_policy { specific { } }", "must list versions"),
        ('name: "\\377"', "line 1"),
        ("[a.b]: 1", "line 1"),
        ("<html>", "line 1"),
        ("optimization {" * 3000, "config.pbtxt"),
    ],
)
def test_what_is_refused(text: str, words: str) -> None:
    told = fault(text)
    assert words in told
    assert "appliance" not in told
    assert len(told) < 400


@given(st.text(alphabet='nameinputdis_:{}[]<>,;-0123"\n #.', max_size=60))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        read_pbtxt(text, "yolo")
    except ModelLoadError as error:
        assert error.message.startswith("config.pbtxt")


@given(st.integers(0, len(DETECTOR)), st.integers(0, len(DETECTOR)), st.characters())
def test_a_damaged_file_is_read_or_refused_in_words(start: int, end: int, char: str) -> None:
    try:
        read_pbtxt(DETECTOR[:start] + char + DETECTOR[end:], "yolo")
    except ModelLoadError as error:
        assert error.message.startswith("config.pbtxt")


IMAGES = TensorSpec("images", "FP32", (-1, 3, 640, 640))
BOXES = TensorSpec("boxes", "FP32", (-1, -1, 84))


def declared(**changes: object) -> Declared:
    return Declared(**({"inputs": (IMAGES,), "outputs": (BOXES,), "max_batch": 8} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "inputs",
    [
        (IMAGES,),
        (TensorSpec("images", "FP32", (-1, 3, -1, -1)),),
        (IMAGES, TensorSpec("n", "INT64", (-1,), (), True)),
    ],
)
def test_a_model_that_is_as_declared(inputs: tuple[TensorSpec, ...]) -> None:
    assert check_declared(declared(), inputs, (BOXES, TensorSpec("more", "FP32", (1,)))) == []


def test_nothing_declared_fits_anything() -> None:
    assert check_declared(Declared(), (IMAGES,), (BOXES,)) == []
    loose = Declared((TensorSpec("images", "", ()),), (), 8)
    assert check_declared(loose, (IMAGES,), (BOXES,)) == []


@pytest.mark.parametrize(
    ("says", "inputs", "words"),
    [
        (declared(inputs=(TensorSpec("image", "FP32", ()),)), (IMAGES,), "an input 'image' that the model does not"),
        (declared(inputs=(TensorSpec("images", "FP16", ()),)), (IMAGES,), "says FP16, the model FP32"),
        (declared(inputs=(TensorSpec("images", "FP32", (-1, 3, 320, 640)),)), (IMAGES,), "FP32[-1,3,640,640]"),
        (declared(inputs=(TensorSpec("images", "FP32", (-1, 3, 640)),)), (IMAGES,), "says FP32[-1,3,640],"),
        (declared(), (IMAGES, TensorSpec("scale", "FP32", (-1,))), "does not name the model's input 'scale'"),
        (Declared((), (), 4), (TensorSpec("images", "FP32", (1, 3)),), "not a free batch axis"),
        (Declared((), (), 4), (TensorSpec("images", "FP32", ()),), "not a free batch axis"),
    ],
)
def test_a_model_that_is_not_as_declared(says: Declared, inputs: tuple[TensorSpec, ...], words: str) -> None:
    faults = check_declared(says, inputs, (BOXES,))
    assert faults
    assert words in faults[0]


def test_an_output_without_a_shape_in_the_file_is_not_held_against_it() -> None:
    assert check_declared(declared(), (IMAGES,), (TensorSpec("boxes", "FP32", ()),)) == []
