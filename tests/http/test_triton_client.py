"""NVIDIA's own client library, unchanged, against everything that is offered."""

import asyncio
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.http.helpers import INT_RANGES, KINDS, NUMPY, address, assert_clean, wait_for_state
from tests.support.server import Server

FLOAT_VALUES = [[0.0, -1.5, 0.333251953125], [65504.0, 2.0**-14, -0.0]]  # all exact in half precision


@pytest.fixture
def client(tensors: Server) -> Iterator[triton.InferenceServerClient]:
    host, port = address(tensors)
    with triton.InferenceServerClient(f"{host}:{port}", concurrency=4, network_timeout=60) as made:
        yield made


def values(datatype: str) -> np.ndarray:
    """[2,3], with the datatype's extremes."""
    if datatype in INT_RANGES:
        low, high = INT_RANGES[datatype]
        return np.array([[low, high, 1], [0, high - 1, 7]], dtype=NUMPY[datatype])
    if datatype == "BOOL":
        return np.array([[True, False, True], [False, False, True]])
    if datatype == "BYTES":
        return np.array([[b"", b"ant", "grüße".encode()], [b"a\0b", b"x" * 3000, b"\n"]], dtype=object)
    if datatype == "BF16":
        return np.array([[1.0, -2.5, 3e38], [2.0**-120, 0.0, 255.0]], dtype=ml_dtypes.bfloat16)
    return np.array(FLOAT_VALUES, dtype=NUMPY[datatype])


def given(name: str, array: np.ndarray, datatype: str, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def floats(*rows: list[float], name: str = "x") -> triton.InferInput:
    return given(name, np.array(rows, dtype=np.float32), "FP32")


def refusal(call: Any) -> str:
    """The message with which the server refuses."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    assert_clean(str(caught.value))
    return str(caught.value)


def test_health_and_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("scale")
    assert client.is_model_ready("versions", "2")
    assert not client.is_model_ready("broken")
    assert not client.is_model_ready("manual")
    assert not client.is_model_ready("nobody")
    server = client.get_server_metadata()
    assert server["name"] == "inference-appliance"
    assert "binary_tensor_data" in server["extensions"]
    about = client.get_model_metadata("pair")
    assert about["name"] == "pair" and about["versions"] == ["1"] and about["platform"] == "onnxruntime_onnx"
    assert about["inputs"] == [
        {"name": "a", "datatype": "FP32", "shape": [-1, 2]},
        {"name": "b", "datatype": "INT32", "shape": [-1, 2]},
    ]
    assert [o["name"] for o in about["outputs"]] == ["sum", "minus"]
    assert client.get_model_metadata("versions", "1")["name"] == "versions"
    assert "nobody" in refusal(lambda: client.get_model_metadata("nobody"))


def test_config(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("pair")
    assert config["max_batch_size"] == 16
    assert config["input"] == [
        {"name": "a", "data_type": "TYPE_FP32", "dims": [2]},
        {"name": "b", "data_type": "TYPE_INT32", "dims": [2]},
    ]
    fixed = client.get_model_config("fixed", "1")
    assert fixed["max_batch_size"] == 0
    assert fixed["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2, 3]}]
    assert client.get_model_config("same-bytes")["input"][0]["data_type"] == "TYPE_STRING"
    assert client.get_model_config("same-bf16")["input"][0]["data_type"] == "TYPE_BF16"


def test_repository(client: triton.InferenceServerClient) -> None:
    index = {(e["name"], e["version"]): e for e in client.get_model_repository_index()}
    assert index["scale", "1"]["state"] == "READY"
    assert index["versions", "1"]["state"] == index["versions", "2"]["state"] == "READY"
    assert index["broken", "1"]["state"] == "UNAVAILABLE" and index["broken", "1"]["reason"]
    assert_clean(index["broken", "1"]["reason"])
    assert index["manual", "1"]["state"] == "UNAVAILABLE" and index["manual", "1"]["reason"] == "not loaded"

    assert "not loaded" in refusal(lambda: client.infer("manual", [floats([1, 2, 3, 4])]))
    client.load_model("manual")
    assert client.is_model_ready("manual")
    assert client.infer("manual", [floats([1, 2, 3, 4])]).as_numpy("y").tolist() == [[7, 14, 21, 28]]
    client.unload_model("manual")
    assert not client.is_model_ready("manual")
    assert "nobody" in refusal(lambda: client.load_model("nobody"))
    assert "nobody" in refusal(lambda: client.unload_model("nobody"))
    assert "broken" in refusal(lambda: client.load_model("broken"))


@pytest.mark.parametrize("datatype", KINDS)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_every_datatype(client: triton.InferenceServerClient, datatype: str, binary: bool) -> None:
    sent = values(datatype)
    wish = triton.InferRequestedOutput("y", binary_data=binary)
    if datatype == "BF16":  # the library has it as binary data only
        binary, wish = True, triton.InferRequestedOutput("y", binary_data=True)
    answer = client.infer(f"same-{datatype.lower()}", [given("x", sent, datatype, binary)], outputs=[wish])
    output = answer.get_output("y")
    assert output["datatype"] == datatype and output["shape"] == [2, 3]
    assert ("data" in output) is not binary
    got = answer.as_numpy("y")
    if datatype == "BYTES" and not binary:
        got = np.array([[v.encode() if isinstance(v, str) else v for v in row] for row in got], dtype=object)
    if datatype == "BF16":
        assert np.array_equal(np.asarray(got, dtype=np.float32), sent.astype(np.float32))
        return
    assert got.dtype == sent.dtype
    assert got.tobytes() == sent.tobytes() if datatype != "BYTES" else got.tolist() == sent.tolist()


def test_outputs_are_chosen_and_ids_come_back(client: triton.InferenceServerClient) -> None:
    inputs = [floats([1.5, 2.5], name="a"), given("b", np.array([[10, -20]], dtype=np.int32), "INT32")]
    every = client.infer("pair", inputs, request_id="of-mine-1")
    assert every.get_response()["id"] == "of-mine-1"
    assert every.get_response()["model_name"] == "pair" and every.get_response()["model_version"] == "1"
    assert every.as_numpy("sum").tolist() == [[11.5, -17.5]]
    assert every.as_numpy("minus").tolist() == [[-10, 20]]
    wishes = [triton.InferRequestedOutput("minus", binary_data=False), triton.InferRequestedOutput("sum")]
    both = client.infer("pair", list(reversed(inputs)), outputs=wishes)
    assert [o["name"] for o in both.get_response()["outputs"]] == ["minus", "sum"]
    assert both.get_output("minus")["data"] == [-10, 20]
    assert both.as_numpy("sum").tolist() == [[11.5, -17.5]]
    one = client.infer("pair", inputs, outputs=[triton.InferRequestedOutput("minus")])
    assert one.as_numpy("sum") is None
    assert one.as_numpy("minus").tolist() == [[-10, 20]]


def test_versions(client: triton.InferenceServerClient) -> None:
    x = [floats([1, 1, 1, 1])]
    assert client.infer("versions", x, model_version="1").as_numpy("y").tolist() == [[3, 3, 3, 3]]
    assert client.infer("versions", x, model_version="2").as_numpy("y").tolist() == [[5, 5, 5, 5]]
    newest = client.infer("versions", x)
    assert newest.as_numpy("y").tolist() == [[5, 5, 5, 5]] and newest.get_response()["model_version"] == "2"
    assert "'3'" in refusal(lambda: client.infer("versions", x, model_version="3"))


@pytest.mark.parametrize("up", [None, "gzip", "deflate"])
@pytest.mark.parametrize("down", [None, "gzip", "deflate"])
def test_compression(client: triton.InferenceServerClient, up: str | None, down: str | None) -> None:
    x = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    answer = client.infer(
        "scale", [given("x", x, "FP32")], request_compression_algorithm=up, response_compression_algorithm=down
    )
    assert np.array_equal(answer.as_numpy("y"), x * 2)


def test_statistics(client: triton.InferenceServerClient) -> None:
    def now() -> dict[str, Any]:
        found = client.get_inference_statistics("fixed")["model_stats"]
        assert [(m["name"], m["version"]) for m in found] == [("fixed", "1")]
        return found[0]

    before = now()
    for _ in range(3):
        client.infer("fixed", [floats([1, 2, 3], [4, 5, 6])])
    refusal(lambda: client.infer("fixed", [floats([1, 2, 3])]))  # refused before it is a request of the model
    after = now()
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] == 3
    for part in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert after["inference_stats"][part]["count"] - before["inference_stats"][part]["count"] == 3, part
    assert after["inference_stats"]["fail"]["count"] == before["inference_stats"]["fail"]["count"]
    spent = {
        k: after["inference_stats"][k]["ns"] - before["inference_stats"][k]["ns"] for k in after["inference_stats"]
    }
    assert 0 < spent["compute_infer"] < spent["success"]
    assert after["last_inference"] >= before["last_inference"]
    everything = {(m["name"], m["version"]) for m in client.get_inference_statistics()["model_stats"]}
    assert {("fixed", "1"), ("versions", "1"), ("versions", "2")} <= everything
    (second,) = client.get_inference_statistics("versions", "2")["model_stats"]
    assert second["version"] == "2"
    rows = {b["batch_size"]: b["compute_infer"]["count"] for b in after["batch_stats"]}
    assert rows[1] == after["execution_count"]  # a model without a batch axis runs one item at a time
    assert "nobody" in refusal(lambda: client.get_inference_statistics("nobody"))


def test_statistics_count_failures(client: triton.InferenceServerClient) -> None:
    def fails() -> int:
        found: int = client.get_inference_statistics("faulty")["model_stats"][0]["inference_stats"]["fail"]["count"]
        return found

    before = fails()
    assert "the fake model failed" in refusal(lambda: client.infer("faulty", [floats([13.0])]))
    assert fails() == before + 1


def test_async_infer(client: triton.InferenceServerClient) -> None:
    started = [client.async_infer("scale", [floats([n, 0, 0, 1])], request_id=f"a{n}") for n in range(20)]
    for n, request in enumerate(started):
        answer = request.get_result()
        assert answer.get_response()["id"] == f"a{n}"
        assert answer.as_numpy("y").tolist() == [[2 * n, 0, 0, 2]]
    failing = client.async_infer("scale", [floats([1, 2])])
    assert "axis 1 is 2" in refusal(failing.get_result)


def test_priority_and_timeout(tensors: Server, client: triton.InferenceServerClient) -> None:
    first = client.async_infer("slow", [floats([1.0])], headers={"X-Request-ID": "tc-first"})
    wait_for_state(tensors, "tc-first", ["running"])
    # The lane is taken for a while: one microsecond in the queue is over before it is free.
    assert "waited" in refusal(lambda: client.infer("slow", [floats([2.0])], timeout=1))
    low = client.async_infer("slow", [floats([3.0])], priority=200, headers={"X-Request-ID": "tc-low"})
    wait_for_state(tensors, "tc-low", ["queued", "running"])
    high = client.async_infer("slow", [floats([4.0])], priority=1, headers={"X-Request-ID": "tc-high"})
    assert first.get_result().as_numpy("y").tolist() == [[2.0]]
    assert high.get_result().as_numpy("y").tolist() == [[8.0]]
    assert low.get_result().as_numpy("y").tolist() == [[6.0]]


def test_classification(client: triton.InferenceServerClient) -> None:
    def best(model: str, array: np.ndarray, datatype: str, count: int) -> Any:
        wish = triton.InferRequestedOutput("y", class_count=count)
        return client.infer(model, [given("x", array, datatype)], outputs=[wish]).as_numpy("y")

    got = best("insect-fp32", np.array([[0.25, 4.0, -1.0, 3.5], [2.0, 2.0, 1.0, 0.0]], np.float32), "FP32", 2)
    assert got.tolist() == [[b"4.000000:1:bee", b"3.500000:3"], [b"2.000000:0:ant", b"2.000000:1:bee"]]
    # Unsigned zeros and the least signed number are where a careless comparison goes wrong.
    got = best("insect-uint8", np.array([[0, 7, 255, 7]], np.uint8), "UINT8", 4)
    assert got.tolist() == [[b"255:2:cricket", b"7:1:bee", b"7:3", b"0:0:ant"]]
    got = best("same-int8", np.array([[-128, 5, 127]], np.int8), "INT8", 9)
    assert got.tolist() == [[b"127:2", b"5:1", b"-128:0"]]
    assert best("insect-fp32", np.zeros((0, 4), np.float32), "FP32", 2).shape == (0, 2)
    text = np.array([["a", "b", "c"]], dtype=object)
    assert "cannot be classified" in refusal(lambda: best("same-bytes", text, "BYTES", 1))


def test_headers_and_query(client: triton.InferenceServerClient) -> None:
    answer = client.infer(
        "scale",
        [floats([1, 2, 3, 4])],
        headers={"X-Request-ID": "q-1", "X-Priority": "5"},
        query_params={"test": "1"},
    )
    assert answer.as_numpy("y").tolist() == [[2, 4, 6, 8]]
    assert client.is_server_live(headers={"X-Anything": "1"}, query_params={"a": "b"})


def test_what_is_not_offered_is_named(client: triton.InferenceServerClient) -> None:
    x = [floats([1, 2, 3, 4])]
    assert "sequence_id" in refusal(lambda: client.infer("scale", x, sequence_id=5, sequence_start=True))
    assert "sequence_id" in refusal(lambda: client.infer("scale", x, sequence_id="five", sequence_start=True))
    shared = triton.InferInput("x", [1, 4], "FP32")
    shared.set_shared_memory("region", 16)
    assert "shared_memory_region" in refusal(lambda: client.infer("scale", [shared]))
    into = triton.InferRequestedOutput("y")
    into.set_shared_memory("region", 16)
    assert "shared_memory_region" in refusal(lambda: client.infer("scale", x, outputs=[into]))
    assert "config" in refusal(lambda: client.load_model("scale", config='{"max_batch_size": 1}'))
    files = {"file:1/model.onnx": b"nothing"}
    assert "file:1/model.onnx" in refusal(lambda: client.load_model("scale", config="{}", files=files))
    assert "unload_dependents" in refusal(lambda: client.unload_model("scale", unload_dependents=True))
    assert "system_shared_memory" in refusal(client.get_system_shared_memory_status)
    assert "system_shared_memory" in refusal(lambda: client.register_system_shared_memory("r", "/k", 16))
    assert "system_shared_memory" in refusal(lambda: client.unregister_system_shared_memory("r"))
    assert "cuda_shared_memory" in refusal(client.get_cuda_shared_memory_status)
    assert "cuda_shared_memory" in refusal(lambda: client.register_cuda_shared_memory("r", b"h", 0, 16))
    assert "trace" in refusal(client.get_trace_settings)
    assert "trace" in refusal(lambda: client.update_trace_settings("scale", {"trace_rate": "1"}))
    assert "logging" in refusal(client.get_log_settings)
    assert client.infer("scale", x).as_numpy("y").tolist() == [[2, 4, 6, 8]]


def test_asyncio(tensors: Server) -> None:
    async def all_of_it() -> None:
        host, port = address(tensors)
        async with triton_aio.InferenceServerClient(f"{host}:{port}") as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("scale")
            assert (await client.get_server_metadata())["name"] == "inference-appliance"
            assert (await client.get_model_metadata("scale"))["inputs"][0]["shape"] == [-1, 4]
            assert (await client.get_model_config("scale"))["name"] == "scale"
            assert any(e["name"] == "scale" for e in await client.get_model_repository_index())
            assert (await client.get_inference_statistics("scale"))["model_stats"][0]["name"] == "scale"
            assert len((await client.get_inference_statistics())["model_stats"]) > 1
            rows = await asyncio.gather(*(client.infer("scale", [floats([n, 0, 0, 1])]) for n in range(20)))
            assert [r.as_numpy("y").tolist() for r in rows] == [[[2 * n, 0, 0, 2]] for n in range(20)]
            for datatype in KINDS:
                sent = values(datatype)
                got = await client.infer(f"same-{datatype.lower()}", [given("x", sent, datatype)])
                assert np.array_equal(got.as_numpy("y"), sent), datatype
            big = np.arange(4000, dtype=np.float32).reshape(1000, 4)
            for way in ("gzip", "deflate"):
                answer = await client.infer(
                    "scale",
                    [given("x", big, "FP32")],
                    request_id="of-mine-2",
                    request_compression_algorithm=way,
                    response_compression_algorithm=way,
                    headers={"X-Request-ID": "of-mine-2"},
                )
                assert np.array_equal(answer.as_numpy("y"), big * 2)
                assert answer.get_response()["id"] == "of-mine-2"
            plain = triton.InferRequestedOutput("y", binary_data=False)
            answer = await client.infer("scale", [floats([1, 2, 3, 4])], outputs=[plain])
            assert answer.get_output("y")["data"] == [2, 4, 6, 8]
            await client.load_model("scale")
            with pytest.raises(InferenceServerException, match="axis 1 is 2"):
                await client.infer("scale", [floats([1, 2])])
            with pytest.raises(InferenceServerException, match="system_shared_memory"):
                await client.get_system_shared_memory_status()

    asyncio.run(all_of_it())
