"""The ONNX Runtime backend with models of a few nodes."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from appliance.backends import onnx as backend
from appliance.backends import onnx_errors
from appliance.backends.base import LoadRequest
from appliance.backends.onnx import OnnxBackend, OnnxSession, has_batch_axis
from appliance.errors import ApplianceError, Cancelled, InsufficientMemory, InvalidInput, ModelError, ModelLoadError
from appliance.models.spec import ModelConfig, TensorSpec
from appliance.models.tensors import Array, datatype_of, numpy_dtype
from tests.support import nets


def opened(path: Path, **config: Any) -> OnnxSession:
    return OnnxBackend().open(LoadRequest("m", path, path.parent, "cpu", 1, ModelConfig(**config)))


def net(folder: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], **more: Any) -> OnnxSession:
    return opened(nets.save(folder / "model.onnx", nodes, inputs, outputs, **more))


def run(session: OnnxSession, outputs: tuple[str, ...] = ("y",), **inputs: Array) -> list[Array]:
    return session.run(inputs, list(outputs), session.cancellation())


# --- datatypes -----------------------------------------------------------------------------------------------

NUMBERS = {
    "BOOL": T.BOOL,
    "UINT8": T.UINT8,
    "UINT16": T.UINT16,
    "UINT32": T.UINT32,
    "UINT64": T.UINT64,
    "INT8": T.INT8,
    "INT16": T.INT16,
    "INT32": T.INT32,
    "INT64": T.INT64,
    "FP16": T.FLOAT16,
    "FP32": T.FLOAT,
    "FP64": T.DOUBLE,
}


@pytest.mark.parametrize("datatype", NUMBERS)
def test_every_number_passes_as_it_is(tmp_path: Path, datatype: str) -> None:
    element = NUMBERS[datatype]
    session = net(
        tmp_path, [h.make_node("Identity", ["x"], ["y"])], [("x", element, ["N", 2])], [("y", element, ["N", 2])]
    )
    assert session.opened.inputs == (TensorSpec("x", datatype, (-1, 2), ("N", None)),)
    dtype = numpy_dtype(datatype)
    low = 0 if dtype.kind in "bu" else -1
    array = np.array([[1, low], [0, 1]]).astype(dtype)
    array.flags.writeable = False  # as tensors of the wire are
    (found,) = run(session, x=array)
    assert found.dtype == dtype
    assert found.tolist() == array.tolist()
    assert run(session, x=array[:0])[0].shape == (0, 2)


def test_bfloat16_passes_bit_by_bit(tmp_path: Path) -> None:
    session = net(
        tmp_path,
        [h.make_node("Identity", ["x"], ["y"]), h.make_node("Identity", ["n"], ["m"])],
        [("x", T.BFLOAT16, ["N", 2]), ("n", T.FLOAT, [1])],
        [("y", T.BFLOAT16, ["N", 2]), ("m", T.FLOAT, [1])],
    )
    assert [t.datatype for t in session.opened.outputs] == ["BF16", "FP32"]
    bits = np.array([[0x3F80, 0xC020], [0x7FC0, 0x8000]], np.uint16)  # 1, -2.5, nan, -0
    bits.flags.writeable = False
    y, m = run(session, ("y", "m"), x=bits, n=np.array([7], np.float32))
    assert (y.dtype, y.tolist(), m.tolist()) == (np.uint16, bits.tolist(), [7])
    assert run(session, x=bits[:0], n=np.zeros(1, np.float32))[0].shape == (0, 2)
    (turned,) = run(session, x=bits.T, n=np.zeros(1, np.float32))
    assert turned.tolist() == bits.T.tolist(), "also what is not contiguous"


def test_bfloat16_is_what_its_bits_say(tmp_path: Path) -> None:
    session = net(
        tmp_path,
        [h.make_node("Cast", ["x"], ["y"], to=T.FLOAT), h.make_node("Cast", ["f"], ["b"], to=T.BFLOAT16)],
        [("x", T.BFLOAT16, ["N"]), ("f", T.FLOAT, ["N"])],
        [("y", T.FLOAT, ["N"]), ("b", T.BFLOAT16, ["N"])],
    )
    y, b = run(session, ("y", "b"), x=np.array([0xC020], np.uint16), f=np.array([-2.5], np.float32))
    assert (y.tolist(), b.tolist()) == ([-2.5], [0xC020])


def test_texts(tmp_path: Path) -> None:
    session = net(
        tmp_path, [h.make_node("Identity", ["x"], ["y"])], [("x", T.STRING, ["N", 1])], [("y", T.STRING, ["N", 1])]
    )
    assert session.opened.inputs[0].datatype == "BYTES"
    texts = np.array([["größe".encode()], [b""]], dtype=object)
    (found,) = run(session, x=texts)
    assert found.tolist() == [["größe"], [""]]
    assert datatype_of(found.dtype) == "BYTES"
    with pytest.raises(InvalidInput, match="input 'x': a string is not UTF-8") as caught:
        run(session, x=np.array([[b"\xff"]], dtype=object))
    assert caught.value.param == "x"


def test_texts_in_beside_bfloat16_are_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="text inputs beside BF16 tensors"):
        net(
            tmp_path,
            [h.make_node("Identity", ["x"], ["y"]), h.make_node("Identity", ["s"], ["t"])],
            [("x", T.BFLOAT16, [1]), ("s", T.STRING, [1])],
            [("y", T.BFLOAT16, [1]), ("t", T.STRING, [1])],
        )


def test_texts_out_beside_bfloat16(tmp_path: Path) -> None:
    session = net(
        tmp_path,
        [h.make_node("Identity", ["x"], ["y"]), h.make_node("Identity", ["w"], ["t"])],
        [("x", T.BFLOAT16, [1])],
        [("y", T.BFLOAT16, [1]), ("t", T.STRING, [2])],
        weights={"w": np.array(["one", "zwölf"], dtype=object)},
    )
    y, t = run(session, ("y", "t"), x=np.array([0x3F80], np.uint16))
    assert (y.tolist(), t.tolist()) == ([0x3F80], ["one", "zwölf"])


def test_types_that_the_protocol_cannot_carry_are_refused(tmp_path: Path) -> None:
    nodes = [h.make_node("SequenceConstruct", ["x"], ["y"])]
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [1])],
        [h.make_tensor_sequence_value_info("y", T.FLOAT, [1])],
    )
    path = tmp_path / "m.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(ModelLoadError, match=r"output 'y' is of type seq\(tensor\(float\)\)"):
        opened(path)


def test_scalars(tmp_path: Path) -> None:
    session = net(tmp_path, [h.make_node("Neg", ["x"], ["y"])], [("x", T.FLOAT, [])], [("y", T.FLOAT, [])])
    assert session.opened.inputs[0].shape == ()
    assert run(session, x=np.array(3, np.float32))[0] == -3


def test_outputs_come_in_the_order_asked_for(tmp_path: Path) -> None:
    session = net(
        tmp_path,
        [h.make_node("Neg", ["x"], ["a"]), h.make_node("Abs", ["x"], ["b"])],
        [("x", T.FLOAT, [1])],
        [("a", T.FLOAT, [1]), ("b", T.FLOAT, [1])],
    )
    x = np.array([-2], np.float32)
    assert [a.tolist() for a in run(session, ("b", "a"), x=x)] == [[2], [2]]
    assert [a.tolist() for a in run(session, ("b",), x=np.array([5], np.float32))] == [[5]]


# --- what is opened ------------------------------------------------------------------------------------------


def spec(*axes: str | int | None) -> TensorSpec:
    shape = tuple(a if isinstance(a, int) else -1 for a in axes)
    return TensorSpec("t", "FP32", shape, tuple(a if isinstance(a, str) else None for a in axes))


@pytest.mark.parametrize(
    ("inputs", "outputs", "found"),
    [
        ([spec("N", 4)], [spec("N", 2)], True),
        ([spec("N", 4), spec("N")], [spec("N", 2), spec("N", "M")], True),
        ([spec("N", 4), spec("M", 4)], [spec("N")], False),
        ([spec("N", 4)], [spec(1, 4)], False),
        ([spec(1, 4)], [spec(1, 4)], False),
        ([spec(None, 4)], [spec(None, 4)], False),  # nameless: nothing says that the two are one
        ([spec("N", 4)], [spec()], False),
        ([], [], False),
    ],
)
def test_has_batch_axis(inputs: list[TensorSpec], outputs: list[TensorSpec], found: bool) -> None:
    assert has_batch_axis(inputs, outputs) is found


def test_what_is_said_of_an_open_model(tmp_path: Path) -> None:
    facts = opened(nets.scale(tmp_path / "m.onnx")).opened
    assert (facts.platform, facts.device, facts.degraded, facts.cpu_nodes) == ("onnxruntime_onnx", "cpu", None, 0)
    assert facts.batch_axis
    assert facts.providers == ("CPUExecutionProvider",)


def test_a_model_that_requires_a_card_is_not_run_without(tmp_path: Path) -> None:
    path = nets.scale(tmp_path / "m.onnx")
    with pytest.raises(ModelLoadError, match="requires CUDA, which is not what would run it: the server's setting"):
        opened(path, device="require")


# --- errors, in words and without paths ----------------------------------------------------------------------


def broken(path: Path, node: Any, opset: int = 17) -> Path:
    return nets.save(path, [node], [("x", T.FLOAT, ["N", 4])], [("y", T.FLOAT, ["N", 4])], opset=opset)


@pytest.mark.parametrize("folder", ["plain", "with a space/John Smith", "ümläut"])
@pytest.mark.parametrize(
    ("node", "opset", "words"),
    [
        (h.make_node("Nope", ["x"], ["y"]), 17, "unknown operator: "),
        (h.make_node("Relu", ["x"], ["y"]), 99, "unsupported opset: "),
        (h.make_node("Reshape", ["x"], ["y"]), 17, f"ONNX Runtime {ort.__version__} cannot load it: "),
    ],
    ids=["operator", "opset", "graph"],
)
def test_why_a_file_cannot_be_loaded(tmp_path: Path, folder: str, node: Any, opset: int, words: str) -> None:
    path = broken(tmp_path / folder / "model.onnx", node, opset)
    with pytest.raises(ModelLoadError) as caught:
        opened(path)
    message = caught.value.message
    assert message.startswith(words)
    for part in (str(tmp_path), folder.split("/")[0] + "/", "John Smith", "onnxruntime_src", ".cc:"):
        assert part not in message


def test_operator_libraries_are_named_and_never_loaded(tmp_path: Path) -> None:
    node = h.make_node("Mine", ["x"], ["y"], domain="my.ops")
    graph = h.make_graph(
        [node],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [1])],
        [h.make_tensor_value_info("y", T.FLOAT, [1])],
    )
    imports = [h.make_opsetid("", 17), h.make_opsetid("my.ops", 1)]
    onnx.save(h.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(ModelLoadError, match=r"^an operator library is needed: .*domains: my\.ops.*never loaded"):
        opened(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"x": np.ones((1, 5), np.float32)}, "Got: 5 Expected: 4"),
        ({"x": np.ones((4,), np.float32)}, "Invalid rank"),
        ({"x": np.ones((1, 4), np.float64)}, "Unexpected input data type"),
    ],
)
def test_inputs_the_model_does_not_take(tmp_path: Path, inputs: dict[str, Array], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        run(opened(nets.scale(tmp_path / "m.onnx")), **inputs)


def test_an_index_out_of_range_is_the_caller_s_fault_and_names_no_source(tmp_path: Path) -> None:
    session = net(
        tmp_path,
        [h.make_node("Gather", ["w", "i"], ["y"])],
        [("i", T.INT64, ["N"])],
        [("y", T.FLOAT, ["N", 4])],
        weights={"w": np.zeros((3, 4), np.float32)},
    )
    with pytest.raises(InvalidInput, match="idx=7 must be within") as caught:
        run(session, i=np.array([7]))
    assert "/" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /home/me/models/m.onnx failed:bad",
            "Load model from m.onnx failed:bad",
        ),
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : /onnxruntime_src/onnxruntime/core/x.cc:360 "
            "void* onnxruntime::BFCArena::Alloc(size_t, bool) Failed to allocate memory for 5",
            "Failed to allocate memory for 5",
        ),
        (r"Load model from C:\Users\me\models\m.onnx failed", "Load model from m.onnx failed"),
        ("two\n  lines", "two lines"),
        ("shape 1/2 and a/b stay", "shape 1/2 and a/b stay"),
    ],
)
def test_words(text: str, words: str) -> None:
    assert onnx_errors.words(Exception(text)) == words


def test_words_are_bounded() -> None:
    assert len(onnx_errors.words(Exception("x" * 5000))) == 600


def test_a_folder_with_spaces_is_taken_out_when_it_is_known() -> None:
    folder = Path("/home/John Smith/my models")
    text = f"Load model from {folder}/m.onnx failed in {folder}"
    assert onnx_errors.words(Exception(text), folder) == "Load model from m.onnx failed in the model's folder"


# --- memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_memory"),
    [
        ("Failed to allocate memory for requested buffer of size 281474976710656", True),
        ("Available memory of 1024 is smaller than requested bytes of 4096", True),
        ("CUDA failure 2: out of memory ; GPU=0", True),
        ("CUBLAS failure: CUDA_ERROR_OUT_OF_MEMORY Out of memory", True),
        ("std::bad_alloc", True),
        ("Non-zero status code returned while running Gather node", False),
    ],
)
def test_out_of_memory_is_known_by_its_words(text: str, is_memory: bool) -> None:
    error = onnx_errors.run_error(RuntimeError(text), False)
    assert type(error) is (InsufficientMemory if is_memory else ModelError)
    load = onnx_errors.load_error(RuntimeError(text), (), Path("/models"))
    assert isinstance(load, InsufficientMemory) is is_memory


def expand(folder: Path) -> OnnxSession:
    """``y``: as many copies of ``x`` as ``n`` says."""
    return net(
        folder,
        [h.make_node("Expand", ["x", "n"], ["y"])],
        [("x", T.FLOAT, [1]), ("n", T.INT64, [1])],
        [("y", T.FLOAT, ["M"])],
    )


def test_a_run_that_needs_more_than_there_is(tmp_path: Path) -> None:
    session = expand(tmp_path)
    with pytest.raises(InsufficientMemory, match="not enough memory for this run"):
        run(session, x=np.ones(1, np.float32), n=np.array([2**46]))
    assert run(session, x=np.ones(1, np.float32), n=np.array([3]))[0].tolist() == [1, 1, 1]


# --- ending a run early --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> OnnxSession:
    """400 products of large matrices in a row: some seconds, cancelled between any two."""
    nodes = [h.make_node("MatMul", [f"a{n}", "w"], [f"a{n + 1}"]) for n in range(400)]
    path = nets.save(
        tmp_path_factory.mktemp("long") / "m.onnx",
        nodes,
        [("a0", T.FLOAT, [700, 700])],
        [("a400", T.FLOAT, [700, 700])],
        {"w": np.eye(700, dtype=np.float32)},
    )
    return opened(path)


def test_a_run_is_cancelled_in_time(long_model: OnnxSession) -> None:
    handle = long_model.cancellation()
    at: list[float] = []

    def cancel() -> None:
        at.append(time.monotonic())
        handle.cancel()

    timer = threading.Timer(0.1, cancel)
    timer.start()
    with pytest.raises(Cancelled):
        long_model.run({"a0": np.ones((700, 700), np.float32)}, ["a400"], handle)
    timer.join()
    assert time.monotonic() - at[0] < 1


def test_a_run_cancelled_before_it_starts(long_model: OnnxSession) -> None:
    handle = long_model.cancellation()
    handle.cancel()
    with pytest.raises(Cancelled, match="before it ran"):
        long_model.run({"a0": np.ones((700, 700), np.float32)}, ["a400"], handle)


def test_a_cancelled_run_does_not_harm_the_next(tmp_path: Path) -> None:
    session = opened(nets.scale(tmp_path / "m.onnx"))
    session.cancellation().cancel()
    assert run(session, x=np.ones((1, 4), np.float32))[0].tolist() == [[2] * 4]


def test_a_stream_of_a_model_that_answers_at_once_is_one_part(tmp_path: Path) -> None:
    session = opened(nets.scale(tmp_path / "m.onnx"))
    parts = list(session.stream({"x": np.ones((1, 4), np.float32)}, ["y"], session.cancellation()))
    assert len(parts) == 1


def test_several_threads_share_a_session(tmp_path: Path) -> None:
    session = opened(nets.scale(tmp_path / "m.onnx"))
    wrong: list[Any] = []

    def work(n: int) -> None:
        for _ in range(50):
            try:
                if run(session, x=np.full((1, 4), n, np.float32))[0].tolist() != [[2 * n] * 4]:
                    wrong.append(n)
            except ApplianceError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_file_is_inspected_before_the_runtime_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"MZ\x90\x00 not a model")
    with pytest.raises(ModelLoadError):
        opened(path)


def test_an_output_that_is_no_tensor() -> None:
    with pytest.raises(ModelError, match="an output is a list, not a tensor"):
        backend._out([1])
