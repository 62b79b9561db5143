"""The Open Inference Protocol as raw requests: JSON, the binary tensor extension, headers, paths."""

import gzip
import json
import re
import zlib

import httpx
import numpy as np
import pytest

from tests.http.helpers import HEADER_LENGTH, binary, entry, infer, outputs, refused, split
from tests.support.server import Server

ONE_TO_EIGHT = np.arange(1, 9, dtype="<f4")
TWICE = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]


def test_flat_and_nested_data(tensors: Server) -> None:
    flat = infer(tensors, "scale", entry([1, 2, 3, 4, 5, 6, 7, 8], [2, 4]))
    nested = infer(tensors, "scale", entry([[1, 2, 3, 4], [5, 6, 7, 8]], [2, 4]))
    for answer in (flat, nested):
        assert answer.json()["model_name"] == "scale" and answer.json()["model_version"] == "1"
        assert answer.json()["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2, 4], "data": TWICE}]
        assert "id" not in answer.json()
        assert answer.headers["content-type"] == "application/json"
        assert HEADER_LENGTH not in answer.headers


def test_scalars_and_empty_tensors(tensors: Server) -> None:
    assert outputs(infer(tensors, "scalar", entry([2.5], []))) == {"y": [-2.5]}
    empty = infer(tensors, "scale", entry([], [0, 4]))
    assert empty.json()["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [0, 4], "data": []}]
    for_text = infer(tensors, "same-bytes", entry([], [0, 3], "BYTES"))
    assert for_text.json()["outputs"][0]["shape"] == [0, 3]


def test_text_in_json(tensors: Server) -> None:
    words = ["", "grüße", 'a\u0000b\n"\\']
    assert outputs(infer(tensors, "same-bytes", entry([words], [1, 3], "BYTES"))) == {"y": words}


def test_numbers_in_json_are_exact(tensors: Server) -> None:
    big = [9223372036854775807, -9223372036854775808, 9007199254740993]
    assert outputs(infer(tensors, "same-int64", entry(big, [1, 3], "INT64"))) == {"y": big}
    big = [18446744073709551615, 0, 9007199254740993]
    assert outputs(infer(tensors, "same-uint64", entry(big, [1, 3], "UINT64"))) == {"y": big}
    doubles = [0.1, 1e308, -5e-324]
    assert outputs(infer(tensors, "same-fp64", entry(doubles, [1, 3], "FP64"))) == {"y": doubles}
    # bfloat16 keeps 8 bits: 1 + 1/256 is halfway and goes to even, 1 + 3/256 up, 1/3 is 0x3eab.
    got = outputs(infer(tensors, "same-bf16", entry([1 + 1 / 256, 1 + 3 / 256, 1 / 3], [1, 3], "BF16")))
    assert got == {"y": [1.0, 1.015625, 0.333984375]}


def test_binary_inputs_and_outputs_mixed_with_json(tensors: Server) -> None:
    a = np.array([[1.5, 2.5], [3.5, 4.5]], dtype="<f4")
    b = np.array([[1, 2], [3, 4]], dtype="<i4")
    binary_b = {"name": "b", "shape": [2, 2], "datatype": "INT32", "parameters": {"binary_data_size": 16}}
    for a_entry, chunks in (
        (entry(a.ravel().tolist(), [2, 2], name="a"), [b.tobytes()]),
        (
            {"name": "a", "shape": [2, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}},
            [a.tobytes(), b.tobytes()],
        ),
    ):
        wishes = [{"name": "sum", "parameters": {"binary_data": True}}, {"name": "minus"}]
        body, headers = binary({"id": "mixed", "inputs": [a_entry, binary_b], "outputs": wishes}, *chunks)
        answer = tensors.client.post("/v2/models/pair/infer", content=body, headers=headers)
        header, raw = split(answer)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert header["id"] == "mixed"
        assert header["outputs"][0] == {
            "name": "sum", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16},
        }  # fmt: skip
        assert np.frombuffer(raw["sum"], "<f4").tolist() == [2.5, 4.5, 6.5, 8.5]
        assert header["outputs"][1]["data"] == [-1, -2, -3, -4] and "minus" not in raw


def test_binary_data_output_is_the_default_for_all_outputs(tensors: Server) -> None:
    inputs = [entry([1, 2], [1, 2], name="a"), entry([3, 4], [1, 2], "INT32", name="b")]
    everything = infer(tensors, "pair", *inputs, parameters={"binary_data_output": True})
    _, raw = split(everything)
    assert np.frombuffer(raw["sum"], "<f4").tolist() == [4, 6] and np.frombuffer(raw["minus"], "<i4").tolist() == [
        -3,
        -4,
    ]
    but_one = infer(
        tensors,
        "pair",
        *inputs,
        parameters={"binary_data_output": True},
        outputs=[{"name": "sum", "parameters": {"binary_data": False}}, {"name": "minus"}],
    )
    header, raw = split(but_one)
    assert header["outputs"][0]["data"] == [4, 6] and list(raw) == ["minus"]


def test_binary_text(tensors: Server) -> None:
    elements = [b"", b"\xff\xfe not text", b"abc"]
    raw = b"".join(len(e).to_bytes(4, "little") + e for e in elements)
    ascii_raw = b"".join(len(e).to_bytes(4, "little") + e for e in (b"", b"x", b"abc"))
    for data, good in ((raw, False), (ascii_raw, True)):
        described = {"name": "x", "shape": [1, 3], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
        body, headers = binary({"inputs": [described], "parameters": {"binary_data_output": True}}, data)
        answer = tensors.client.post("/v2/models/same-bytes/infer", content=body, headers=headers)
        if good:
            assert split(answer)[1]["y"] == data
        else:  # ONNX strings are text
            refused(answer, 400, "invalid_input", "'x'", "UTF-8")


def test_raw_binary_request(tensors: Server) -> None:
    headers = {HEADER_LENGTH: "0"}
    one = tensors.client.post("/v2/models/scale/infer", content=ONE_TO_EIGHT[:4].tobytes(), headers=headers)
    header, raw = split(one)
    assert header["outputs"][0]["shape"] == [1, 4]
    assert np.frombuffer(raw["y"], "<f4").tolist() == TWICE[:4]
    fixed = tensors.client.post("/v2/models/fixed/infer", content=ONE_TO_EIGHT[:6].tobytes(), headers=headers)
    assert np.frombuffer(split(fixed)[1]["y"], "<f4").tolist() == [10, 20, 30, 40, 50, 60]
    wrong = tensors.client.post("/v2/models/fixed/infer", content=b"12345", headers=headers)
    refused(wrong, 400, "invalid_input", "'x'", "5 bytes", "24")
    refused(
        tensors.client.post("/v2/models/pair/infer", content=b"1", headers=headers), 400, "invalid_input", "one input"
    )


def test_headers_of_an_answer(tensors: Server) -> None:
    mine = infer(tensors, "scale", entry([1, 2, 3, 4], [1, 4]), headers={"X-Request-ID": "a.b_c:d-1"})
    assert mine.headers["x-request-id"] == "a.b_c:d-1"
    made = {infer(tensors, "scale", entry([1, 2, 3, 4], [1, 4])).headers["x-request-id"] for _ in range(5)}
    assert len(made) == 5 and all(re.fullmatch(r"[0-9a-f]+-[0-9a-f]+", name) for name in made)
    spent = dict(re.findall(r"(\w+);dur=([0-9.]+)", mine.headers["server-timing"]))
    assert set(spent) == {"queue", "infer", "total"}
    assert 0 <= float(spent["queue"]) <= float(spent["total"])
    assert 0 < float(spent["infer"]) <= float(spent["total"])
    assert mine.headers["x-queue-position"] == "0"
    assert mine.headers["x-device"] == "cpu"


def test_compressed_bodies(tensors: Server) -> None:
    body = json.dumps({"inputs": [entry([1, 2, 3, 4, 5, 6, 7, 8] * 200, [400, 4])]}).encode()
    raw_deflate = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(body),
        "x-gzip": gzip.compress(body),
        "deflate": zlib.compress(body),
        "Deflate": raw_deflate.compress(body) + raw_deflate.flush(),
        "identity": body,
    }
    for coding, data in packed.items():
        answer = tensors.client.post("/v2/models/scale/infer", content=data, headers={"Content-Encoding": coding})
        assert outputs(answer) == {"y": TWICE * 200}, coding
    for coding in ("gzip", "deflate"):
        answer = tensors.client.post("/v2/models/scale/infer", content=body, headers={"Accept-Encoding": coding})
        assert answer.headers["content-encoding"] == coding
        assert int(answer.headers["content-length"]) < 1000
        assert outputs(answer) == {"y": TWICE * 200}
    with_header, headers = binary(
        {"inputs": [entry([1, 2, 3, 4], [1, 4])], "parameters": {"binary_data_output": True}}
    )
    headers |= {"Content-Encoding": "gzip"}  # the header's length is that of the plain body
    answer = tensors.client.post("/v2/models/scale/infer", content=gzip.compress(with_header), headers=headers)
    assert np.frombuffer(split(answer)[1]["y"], "<f4").tolist() == TWICE[:4]


@pytest.mark.parametrize("value", ["-1", "1.5", "high", "", "9" * 5000])
def test_a_bad_priority(tensors: Server, value: str) -> None:
    answer = infer(tensors, "scale", entry([1, 2, 3, 4], [1, 4]), headers={"X-Priority": value})
    refused(answer, 400, "invalid_input", "X-Priority")


@pytest.mark.parametrize("value", ["-1", "0", "1.5", "1s", "", "9" * 400, "9" * 5000])
def test_a_bad_timeout(tensors: Server, value: str) -> None:
    answer = infer(tensors, "scale", entry([1, 2, 3, 4], [1, 4]), headers={"X-Timeout-Ms": value})
    refused(answer, 400, "invalid_input", "X-Timeout-Ms")


@pytest.mark.parametrize("name", ["priority", "timeout"])
@pytest.mark.parametrize("value", ["-1", "1.5", '"5"', "true", "null", "[]", "9" * 400])
def test_bad_parameters(tensors: Server, name: str, value: str) -> None:
    body = json.dumps({"inputs": [entry([1, 2, 3, 4], [1, 4])]})[:-1] + f', "parameters": {{"{name}": {value}}}}}'
    refused(tensors.client.post("/v2/models/scale/infer", content=body), 400, "invalid_input", name)


def test_good_priorities_and_timeouts(tensors: Server) -> None:
    for headers, parameters in (
        ({"X-Priority": "0", "X-Timeout-Ms": "60000"}, {}),
        ({"X-Priority": "999999999"}, {"priority": 7, "timeout": 60_000_000}),
        ({}, {"timeout": 0, "priority": 0, "of_mine": "ignored"}),
    ):
        x = entry([1, 2, 3, 4], [1, 4])
        assert outputs(infer(tensors, "scale", x, headers=headers, parameters=parameters)) == {"y": TWICE[:4]}


def test_versions_in_the_path(tensors: Server) -> None:
    body = {"inputs": [entry([1, 1, 1, 1], [1, 4])]}
    for version, factor in (("1", 3), ("2", 5)):
        answer = tensors.client.post(f"/v2/models/versions/versions/{version}/infer", json=body)
        assert outputs(answer) == {"y": [factor] * 4} and answer.json()["model_version"] == version
        about = tensors.client.get(f"/v2/models/versions/versions/{version}").json()
        assert about["versions"] == ["1", "2"]
        assert tensors.client.get(f"/v2/models/versions/versions/{version}/ready").json()["ready"] is True
        assert tensors.client.get(f"/v2/models/versions/versions/{version}/config").json()["name"] == "versions"
        (stats,) = tensors.client.get(f"/v2/models/versions/versions/{version}/stats").json()["model_stats"]
        assert stats["version"] == version
    for wrong in ("3", "x", "01", "-1"):
        answer = tensors.client.post(f"/v2/models/versions/versions/{wrong}/infer", json=body)
        refused(answer, 404, "model_not_found", f"'{wrong}'", "1, 2")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", ["/v2/models/scale/infer", "/v2/models/scale/versions/1/infer", "/predict/scale"])
def test_other_methods_on_inference(tensors: Server, method: str, path: str) -> None:
    answer = tensors.client.request(method, path)
    assert answer.status_code == 405
    if method != "HEAD":
        refused(answer, 405, "method_not_allowed", method)


def test_server_metadata_lists_what_works(tensors: Server) -> None:
    about = tensors.client.get("/v2").json()
    assert about["name"] == "inference-appliance" and re.fullmatch(r"\d+\.\d+\.\d+", about["version"])
    works = {
        "binary_tensor_data": _binary_works,
        "classification": _classification_works,
        "model_configuration": lambda c: c.get("/v2/models/scale/config").status_code == 200,
        "model_repository": lambda c: c.post("/v2/repository/index").status_code == 200,
        "schedule_policy": _schedule_policy_works,
        "statistics": lambda c: c.get("/v2/models/stats").status_code == 200,
    }
    assert set(about["extensions"]) == set(works)
    for name, check in works.items():
        assert check(tensors.client), name


def _binary_works(client: httpx.Client) -> bool:
    answer = client.post("/v2/models/scale/infer", content=bytes(16), headers={HEADER_LENGTH: "0"})
    return split(answer)[1] == {"y": bytes(16)}


def _classification_works(client: httpx.Client) -> bool:
    wish = [{"name": "y", "parameters": {"classification": 1}}]
    body = {"inputs": [entry([1, 2, 4, 3], [1, 4])], "outputs": wish}
    answer = client.post("/v2/models/insect-fp32/infer", json=body)
    return outputs(answer) == {"y": ["4.000000:2:cricket"]}


def _schedule_policy_works(client: httpx.Client) -> bool:
    body = {"inputs": [entry([1, 2, 3, 4], [1, 4])], "parameters": {"priority": 1, "timeout": 60_000_000}}
    return client.post("/v2/models/scale/infer", json=body).status_code == 200


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v2/systemsharedmemory/status", "system_shared_memory"),
        ("/v2/systemsharedmemory/region/a/status", "system_shared_memory"),
        ("/v2/cudasharedmemory/status", "cuda_shared_memory"),
        ("/v2/trace/setting", "trace"),
        ("/v2/models/scale/trace/setting", "trace"),
        ("/v2/logging", "logging"),
    ],
)
def test_extensions_that_are_not_offered(tensors: Server, path: str, name: str) -> None:
    for method in ("GET", "POST"):
        refused(tensors.client.request(method, path), 404, "not_found", f"'{name}'")


def test_unknown_parameters_are_ignored_and_reserved_ones_refused(tensors: Server) -> None:
    x = entry([1, 2, 3, 4], [1, 4], parameters={"of_mine": [1]})
    assert outputs(infer(tensors, "scale", x, more="of_mine", parameters={"of_mine": {"deep": [1]}}))
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        refused(infer(tensors, "scale", x, parameters={name: 1}), 400, "invalid_input", f"'{name}'", "not offered")
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    into = [{"name": "y", "parameters": shared}]
    refused(infer(tensors, "scale", x, outputs=into), 400, "invalid_input", "shared_memory_region", "'y'")
    from_there = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": shared}
    refused(infer(tensors, "scale", from_there), 400, "invalid_input", "shared_memory_region", "'x'")


def test_metadata_says_what_runs_a_model(tensors: Server) -> None:
    about = tensors.client.get("/v2/models/scale").json()["parameters"]
    assert about["device"] == "cpu" and about["device_reason"] is None
    assert about["max_batch"] == 16 and about["cpu_nodes"] == 0
    assert "CPUExecutionProvider" in about["providers"]


def test_index_of_what_is_ready(tensors: Server) -> None:
    every = {e["name"] for e in tensors.client.post("/v2/repository/index", json={}).json()}
    ready = tensors.client.post("/v2/repository/index", json={"ready": True}).json()
    assert {e["state"] for e in ready} == {"READY"}
    assert every - {e["name"] for e in ready} >= {"broken"}


@pytest.mark.parametrize("body", [b"[1]", b"{", b'{"parameters": [1]}', b"\xff", b"[" * 10_000])
def test_bad_control_bodies(tensors: Server, body: bytes) -> None:
    answer = tensors.client.post("/v2/repository/models/scale/unload", content=body)
    refused(answer, 400, "invalid_input")
    assert tensors.client.get("/v2/models/scale/ready").status_code == 200


def test_results_that_json_cannot_carry(tensors: Server) -> None:
    x = entry([-1.0, 1.0], [1, 2])
    refused(infer(tensors, "log", x), 500, "invalid_output", "'y'", "nan", "binary")
    _, raw = split(infer(tensors, "log", x, parameters={"binary_data_output": True}))
    assert np.isnan(np.frombuffer(raw["y"], "<f4")[0])
