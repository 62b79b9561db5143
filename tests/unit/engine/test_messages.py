"""What crosses between host and engine comes out as it went in."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.messages import (
    Cancel,
    Check,
    Checked,
    Chunk,
    Done,
    End,
    Failed,
    Hello,
    ItemFailure,
    ItemOutputs,
    Load,
    Loaded,
    Message,
    Ping,
    Pong,
    Progress,
    Result,
    Run,
    Shrink,
    Stop,
    TensorMeta,
    ToEngine,
    ToHost,
    Unfit,
    Unload,
    attach,
    buffers,
    describe,
)
from appliance.models.spec import Batching, ModelConfig, ModelSpec, TensorSpec, Timeouts, Warmup
from appliance.models.tensors import Tensor

META = TensorMeta("x", "FP32", (2, 3), 24)
X = TensorSpec("x", "FP32", (-1, 3), ("N", None))
CONFIG = ModelConfig(
    backend="onnx",
    device="require",
    instances=3,
    versions=[1, 3],
    batching=Batching(max=8),
    timeouts=Timeouts(queue_ms=5),
    warmup=Warmup(shapes={"x": [1, 3]}),
    pipeline={"task": "classify", "mean": [0.5]},
    backend_options={"run_ms": 2.5},
)
SPEC = ModelSpec("m", "1", "onnxruntime_onnx", "onnx", (X,), (X,), max_batch=8, labels=("a", "ü"), config=CONFIG)
TO_ENGINE: list[ToEngine] = [
    Load(1, "m", "1", "/a/b", "/a", "onnx", "cuda:1", CONFIG, 2, 16, ("a",), (X,), (X,), 4),
    Load(1, "m", "1", "p", "r", "fake", "cpu", ModelConfig(), 0, 1),
    Unload(3),
    Run(9, 1, ((META,), (META,)), ("y", "z"), True),
    Cancel(9),
    Ping(2**40),
    Check(7),
    Shrink(),
    Stop(),
]
TO_HOST: list[ToHost] = [
    Hello(123, {"onnxruntime": "1.0"}, ("CPUExecutionProvider",)),
    Loaded(1, SPEC, 1.5, 2.5, 1 << 33),
    Done(1),
    Result(9, (ItemOutputs((META,)), ItemFailure("model_error", "words"), ItemOutputs(())), 10, 20),
    Chunk(9, (META, META)),
    End(9, 5),
    Failed("load", 1, "model_error", "words"),
    Pong(1, 2, 3),
    Progress(1, "words"),
    Checked(7, 3),
    Unfit("words"),
]


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda m: type(m).__name__)
def test_to_the_engine(message: ToEngine) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToEngine) == message


@pytest.mark.parametrize("message", TO_HOST, ids=lambda m: type(m).__name__)
def test_to_the_host(message: ToHost) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToHost) == message


def test_every_message_is_tried_here() -> None:
    assert {type(m) for m in (*TO_ENGINE, *TO_HOST)} == set(Message.__subclasses__())


@given(st.lists(st.binary(max_size=20), max_size=6), st.integers(0, 5))
def test_tensors_come_out_of_the_payload_as_they_went_in(datas: list[bytes], before: int) -> None:
    tensors = [Tensor(f"t{n}", "UINT8", (len(data),), data) for n, data in enumerate(datas)]
    payload = memoryview(bytes(before) + b"".join(buffers(tensors)) + b"behind")
    found, at = attach(describe(tensors), payload, before)
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in found] == [
        (t.name, t.datatype, t.shape, t.data) for t in tensors
    ]
    assert at == before + sum(map(len, datas))
    assert all(t.data.obj is payload.obj for t in found if isinstance(t.data, memoryview)), "views, no copies"


def test_a_payload_that_is_too_short() -> None:
    with pytest.raises(ValueError, match="shorter"):
        attach((META,), memoryview(bytes(23)))
    with pytest.raises(ValueError, match="shorter"):
        attach((META,), memoryview(bytes(30)), 7)
    assert attach((), memoryview(b"")) == ((), 0)
