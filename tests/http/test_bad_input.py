"""A hostile caller: each thing it sends has its designed answer, and afterwards everything is as before."""

import copy
import gzip
import io
import json
import select
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.http.conftest import BODY_TIMEOUT_MS, MAX_BODY
from tests.http.helpers import (
    HEADER_LENGTH,
    assert_clean,
    binary,
    connect,
    curl,
    ended,
    entry,
    head,
    infer,
    outputs,
    read_answer,
    refused,
)
from tests.support.server import PHOTOS, Server

SCALE = "/v2/models/scale/infer"
X = entry([1, 2, 3, 4], [1, 4])
GOOD = json.dumps({"inputs": [X]}).encode()
CAT = (PHOTOS / "chelsea.png").read_bytes()


def resident(server: Server) -> tuple[int, int]:
    """MiB of the host and of the engine process."""
    assert server.process is not None
    pids = server.process.pid, server.engine_pid
    host, engine = (psutil.Process(pid).memory_info().rss >> 20 for pid in pids)
    return host, engine


def seconds(server: Server, count: int = 100) -> float:
    """How long good requests take, one after the other."""
    started = time.perf_counter()
    for _ in range(count):
        assert outputs(infer(server, "scale", X)) == {"y": [2, 4, 6, 8]}
    return time.perf_counter() - started


@pytest.fixture(scope="module", autouse=True)
def afterwards(tensors: Server, pictures: Server) -> Iterator[None]:
    """Memory and speed around all tests of this module, on both servers."""

    def cat() -> bool:
        answer = pictures.client.post("/predict/classify", files={"file": CAT}).json()
        return bool(answer["labels"][0]["label"] == "Egyptian cat")

    # Bodies and pictures as large as allowed have been there before: what an allocator keeps of them is no leak.
    tensors.client.post(SCALE, content=bytes(MAX_BODY), headers={HEADER_LENGTH: "0"})
    pictures.client.post("/predict/classify", content=bytes(48 << 20))
    for _ in range(4):
        assert cat()
    seconds(tensors)
    took = seconds(tensors)
    before = {server.url: resident(server) for server in (tensors, pictures)}
    yield
    assert cat()
    again = min(seconds(tensors) for _ in range(2))
    print(f"\ngood requests afterwards take {again / took:.2f} times as long as before")
    for server, name in ((tensors, "tensors"), (pictures, "pictures")):
        after = resident(server)
        print(f"{name}: host and engine hold {before[server.url]} MiB before, {after} MiB after")
        for grown, allowed in zip(
            (a - b for a, b in zip(after, before[server.url], strict=True)), (100, 40), strict=True
        ):
            assert grown < allowed
        assert server.status()["engine"]["restarts"] == 0


# --- tensors in JSON --------------------------------------------------------------------------------------------


def wire(
    data: str = "[1,2,3,4]", shape: str = "[1,4]", datatype: str = "FP32", name: str = "x", more: str = ""
) -> str:
    """A request as text, for what a JSON library would not write."""
    return f'{{"inputs":[{{"name":"{name}","shape":{shape},"datatype":"{datatype}","data":{data}}}]{more}}}'


NAN = "not valid JSON"
OUTPUTS = ',"outputs":[' + ",".join(['{"name":"y"}'] * 10_000) + "]"
BIG_63, BIG_70 = f"[{2**63},1,2]", f"[{2**70},1,2]"
DEEP = ',"parameters":{"a":' + "[" * 10_000
CASES: list[tuple[str, str, str, int, str, tuple[str, ...]]] = [
    # what, model, body, status, code, words in the message
    ("wrong name", "scale", wire(name="z"), 400, "invalid_input", ("'z'", "x")),
    ("no input", "scale", '{"inputs":[]}', 400, "invalid_input", ("'x'", "missing")),
    ("no inputs at all", "scale", "{}", 400, "invalid_input", ("inputs",)),
    ("twice", "scale", json.dumps({"inputs": [X, X]}), 400, "invalid_input", ("'x'", "twice")),
    ("wrong datatype", "scale", wire(datatype="FP64"), 400, "invalid_input", ("'x'", "FP64", "FP32")),
    ("unknown datatype", "scale", wire(datatype="FLOAT"), 400, "invalid_input", ("'x'", "FLOAT", "BYTES")),
    ("wrong rank", "scale", wire(shape="[4]"), 400, "invalid_input", ("'x'", "rank 1", "FP32[-1,4]")),
    ("many axes", "scale", wire(shape=str([1] * 5000)), 400, "invalid_input", ("'x'", "rank 5000")),
    ("fixed dimension", "scale", wire(shape="[1,5]"), 400, "invalid_input", ("'x'", "axis 1 is 5", "4")),
    ("fixed batch", "fixed", wire(shape="[3,3]"), 400, "invalid_input", ("'x'", "axis 0 is 3", "2")),
    ("negative shape", "scale", wire(shape="[-1,4]"), 400, "invalid_input", ("'x'", "axis 0", "-1")),
    ("shape of halves", "scale", wire(shape="[1.5,4]"), 400, "invalid_input", ("shape",)),
    ("shape of text", "scale", wire(shape='["1",4]'), 400, "invalid_input", ("shape",)),
    ("huge shape", "scale", wire(shape="[4611686018427387904,4]"), 413, "input_too_large", ("'x'", "64000000")),
    ("huger shape", "scale", wire(shape=f"[{'9' * 300},4]"), 413, "input_too_large", ("'x'",)),
    ("too few values", "scale", wire(data="[1,2,3]"), 400, "invalid_input", ("'x'", "3 elements", "4")),
    ("too many values", "scale", wire(data="[1,2,3,4,5]"), 400, "invalid_input", ("'x'", "5 elements", "4")),
    ("ragged", "scale", wire("[[1,2,3,4],[5,6,7]]", "[2,4]"), 400, "invalid_input", ("'x'", "axis 1")),
    ("wrongly nested", "scale", wire("[[1,2],[3,4]]", "[1,4]"), 400, "invalid_input", ("'x'", "axis 0")),
    ("half nested", "scale", wire("[[1,2,3,4],5]", "[2,4]"), 400, "invalid_input", ("'x'", "axis 1")),
    ("nested too deep", "scale", wire("[[[1],[2],[3],[4]]]", "[1,4]"), 400, "invalid_input", ("'x'",)),
    ("no data", "scale", '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32"}]}', 400, "invalid_input", ("'x'",)),
    ("data is null", "scale", wire("null"), 400, "invalid_input", ("'x'", "null")),
    ("data is text", "scale", wire('"AAAA"'), 400, "invalid_input", ("'x'", "str")),
    ("data is an object", "scale", wire("{}"), 400, "invalid_input", ("'x'", "object")),
    ("NaN", "scale", wire("[NaN,1,2,3]"), 400, "invalid_input", (NAN,)),
    ("Infinity", "scale", wire("[1,-Infinity,2,3]"), 400, "invalid_input", (NAN,)),
    ("1e999", "scale", wire("[1e999,1,2,3]"), 400, "invalid_input", ("'x'", "range")),
    ("1e39 in FP32", "scale", wire("[1e39,1,2,3]"), 400, "invalid_input", ("'x'", "FP32")),
    ("70000 in FP16", "same-fp16", wire("[70000,1,2]", "[1,3]", "FP16"), 400, "invalid_input", ("'x'", "FP16")),
    ("3.4e38 in BF16", "same-bf16", wire("[3.4e38,1,2]", "[1,3]", "BF16"), 400, "invalid_input", ("'x'", "BF16")),
    ("text in FP32", "scale", wire('["1",1,2,3]'), 400, "invalid_input", ("'x'", "str")),
    ("bool in FP32", "scale", wire("[true,1,2,3]"), 400, "invalid_input", ("'x'", "bool")),
    ("bool in INT32", "same-int32", wire("[true,1,2]", "[1,3]", "INT32"), 400, "invalid_input", ("'x'", "bool")),
    ("number in BOOL", "same-bool", wire("[1,0,1]", "[1,3]", "BOOL"), 400, "invalid_input", ("'x'", "int")),
    ("1.5 in INT32", "same-int32", wire("[1.5,1,2]", "[1,3]", "INT32"), 400, "invalid_input", ("'x'", "float")),
    ("256 in UINT8", "same-uint8", wire("[256,1,2]", "[1,3]", "UINT8"), 400, "invalid_input", ("'x'", "UINT8")),
    ("-1 in UINT64", "same-uint64", wire("[-1,1,2]", "[1,3]", "UINT64"), 400, "invalid_input", ("'x'", "UINT64")),
    ("2**63 in INT64", "same-int64", wire(BIG_63, "[1,3]", "INT64"), 400, "invalid_input", ("'x'", "INT64")),
    ("2**70 in INT64", "same-int64", wire(BIG_70, "[1,3]", "INT64"), 400, "invalid_input", ("'x'", "INT64")),
    ("number in BYTES", "same-bytes", wire('["a",1,"b"]', "[1,3]", "BYTES"), 400, "invalid_input", ("'x'", "int")),
    ("lone surrogate", "same-bytes", wire(r'["a","\ud800","b"]', "[1,3]", "BYTES"), 400, "invalid_input", (NAN,)),
    ("deep body", "scale", "[" * 10_000, 400, "invalid_input", ("body",)),
    ("deep data", "scale", wire("[" * 10_000 + "]" * 10_000), 400, "invalid_input", ("depth",)),
    ("rather deep data", "scale", wire("[" * 900 + "]" * 900), 400, "invalid_input", ("'x'",)),
    ("deep parameters", "scale", wire(more=DEEP), 400, "invalid_input", ("depth",)),
    ("not JSON", "scale", "inputs=x", 400, "invalid_input", (NAN,)),
    ("cut off", "scale", wire()[:-9], 400, "invalid_input", (NAN,)),
    ("more than one", "scale", wire() + wire(), 400, "invalid_input", (NAN,)),
    ("a list", "scale", "[1]", 400, "invalid_input", ("array",)),
    ("empty", "scale", "", 400, "invalid_input", ("empty",)),
    ("id of a number", "scale", wire(more=',"id":5'), 400, "invalid_input", ("id",)),
    ("parameters of a list", "scale", wire(more=',"parameters":[]'), 400, "invalid_input", ("parameters",)),
    ("unknown output", "scale", wire(more=',"outputs":[{"name":"z"}]'), 400, "invalid_input", ("'z'", "y")),
    ("10,000 outputs", "scale", wire(more=OUTPUTS), 400,
     "invalid_input", ("outputs", "10000")),
    ("unknown model", "nobody", wire(), 404, "model_not_found", ("'nobody'",)),
    ("model that is broken", "broken", wire(), 404, "model_not_found", ("'broken'",)),
    ("model that is not loaded", "manual", wire(), 404, "model_not_found", ("'manual'", "load")),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_json_requests(tensors: Server, case: tuple[str, str, str, int, str, tuple[str, ...]]) -> None:
    _, model, body, status, code, words = case
    answer = tensors.client.post(f"/v2/models/{model}/infer", content=body.encode("utf-8", "surrogatepass"))
    refused(answer, status, code, *words)


def test_an_output_twice(tensors: Server) -> None:
    inputs = [entry([1, 2], [1, 2], name="a"), entry([3, 4], [1, 2], "INT32", name="b")]
    twice = infer(tensors, "pair", *inputs, outputs=[{"name": "sum"}, {"name": "sum"}])
    refused(twice, 400, "invalid_input", "'sum'", "twice")


def test_batches_that_differ(tensors: Server) -> None:
    inputs = [entry([1, 2], [1, 2], name="a"), entry([3, 4, 5, 6], [2, 2], "INT32", name="b")]
    refused(infer(tensors, "pair", *inputs), 400, "invalid_input", "'b'", "'a'")


@pytest.mark.parametrize("body", [b'{"inputs":[{"name":"\xff"}]}', b"\xff\xfe{\0}\0", b"\0" * 100])
def test_bodies_that_are_not_utf8(tensors: Server, body: bytes) -> None:
    refused(tensors.client.post(SCALE, content=body), 400, "invalid_input", "JSON")


# --- the binary extension ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["-1", "100000", "abc", "", "1_0", "+60", "0x10", "1.0", "9" * 5000, "9" * 19])
def test_header_length(tensors: Server, value: str) -> None:
    answer = tensors.client.post(SCALE, content=GOOD, headers={HEADER_LENGTH: value})
    refused(answer, 400, "invalid_input", HEADER_LENGTH)


def test_header_length_inside_the_json(tensors: Server) -> None:
    refused(tensors.client.post(SCALE, content=GOOD, headers={HEADER_LENGTH: "20"}), 400, "invalid_input", "JSON")


@pytest.mark.parametrize("size", [0, 15, 17, 32, -1, 2**70, True, "16", 16.0, None])
def test_binary_sizes(tensors: Server, size: Any) -> None:
    described = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    body, headers = binary({"inputs": [described]}, bytes(16))
    refused(tensors.client.post(SCALE, content=body, headers=headers), 400, "invalid_input", "'x'")


@pytest.mark.parametrize("shape", [[2, 4], [0, 4], [1, 5], [2**40, 4]])
def test_shape_and_bytes_that_do_not_fit(tensors: Server, shape: list[int]) -> None:
    described = {"name": "x", "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    body, headers = binary({"inputs": [described]}, bytes(16))
    answer = tensors.client.post(SCALE, content=body, headers=headers)
    code = (413, "input_too_large") if shape[0] > 2 else (400, "invalid_input")
    refused(answer, *code, "'x'")


def test_bytes_left_over(tensors: Server) -> None:
    described = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    body, headers = binary({"inputs": [described]}, bytes(20))
    refused(
        tensors.client.post(SCALE, content=body, headers=headers), 400, "invalid_input", "4 bytes", "binary_data_size"
    )


def test_data_given_in_both_ways(tensors: Server) -> None:
    body, headers = binary({"inputs": [X | {"parameters": {"binary_data_size": 16}}]}, bytes(16))
    refused(tensors.client.post(SCALE, content=body, headers=headers), 400, "invalid_input", "'x'", "both")


@pytest.mark.parametrize(
    "data",
    [
        b"\x05\0\0\0abc",  # longer than what is there
        b"\x01\0\0\0a" * 2,  # two of three
        b"\x01\0\0\0a" * 4,  # four of three
        b"\x01\0\0\0a" * 3 + b"\0",  # a length that is cut off
        b"\xff\xff\xff\xff" + b"a" * 12,  # 4 GiB
        b"",
    ],
)
def test_broken_lengths_of_bytes(tensors: Server, data: bytes) -> None:
    described = {"name": "x", "shape": [1, 3], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    body, headers = binary({"inputs": [described]}, data)
    answer = tensors.client.post("/v2/models/same-bytes/infer", content=body, headers=headers)
    refused(answer, 400, "invalid_input", "'x'")


# --- compression ------------------------------------------------------------------------------------------------


def test_wrong_content_encodings(tensors: Server) -> None:
    for coding in ("br", "zstd", "gzip, gzip", "x" * 1000):
        answer = tensors.client.post(SCALE, content=GOOD, headers={"Content-Encoding": coding})
        refused(answer, 415, "unsupported_media", "Content-Encoding", "gzip")
    packed = gzip.compress(GOOD)
    for data in (
        GOOD,
        packed[:-3],
        packed[:20],
        b"\x1f\x8b",
        packed[:-8] + bytes(8),
        packed + packed,
        packed + b"more",
    ):
        answer = tensors.client.post(SCALE, content=data, headers={"Content-Encoding": "gzip"})
        refused(answer, 400, "invalid_input", "body")
    refused(tensors.client.post(SCALE, content=GOOD, headers={"Content-Encoding": "deflate"}), 400, "invalid_input")


@pytest.mark.parametrize("path", [SCALE, "/predict/scale", "/v2/repository/index"])
def test_gzip_bombs(tensors: Server, path: str) -> None:
    bomb = gzip.compress(bytes(200 << 20), 9)
    assert len(bomb) < 1 << 18
    if "repository" in path:
        bomb = gzip.compress(bytes(10 << 20), 9)
    refused(
        tensors.client.post(path, content=bomb, headers={"Content-Encoding": "gzip"}), 413, "input_too_large", "body"
    )


# --- bodies that are too long, too slow, or lie about their length -------------------------------------------------


def test_a_long_body_is_refused_by_its_length(tensors: Server) -> None:
    """Nothing of it is sent, and the answer is there."""
    for path in (SCALE, "/predict/scale"):
        with connect(tensors) as sock:
            sock.sendall(head(tensors, "POST", path, {"Content-Length": str(1 << 40)}))
            status, headers, body = read_answer(sock)
            assert status == 413 and b"input_too_large" in body and str(MAX_BODY).encode() in body
            assert headers["connection"] == "close"
            assert ended(sock)


def test_clients_get_to_see_that_their_body_is_too_long(tensors: Server) -> None:
    """Also those that send everything before they read."""
    large = bytes(5 * MAX_BODY)
    for _ in range(3):
        refused(tensors.client.post(SCALE, content=large), 413, "input_too_large", str(MAX_BODY))
        refused(tensors.client.post("/predict/scale", files={"file": large}), 413, "input_too_large")
    for expect in ("Expect:", "Expect: 100-continue"):
        answer = curl("-H", expect, "--data-binary", "@-", f"{tensors.url}{SCALE}", send=large)
        assert json.loads(answer)["code"] == "input_too_large"


def test_a_long_chunked_body_is_cut_off(tensors: Server) -> None:
    assert tensors.process is not None
    host = psutil.Process(tensors.process.pid)
    before, highest, sent = host.memory_info().rss, 0, 0
    block = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    with connect(tensors) as sock:
        sock.sendall(head(tensors, "POST", SCALE, {"Transfer-Encoding": "chunked"}))
        while not select.select([sock], [], [], 0)[0]:
            sock.sendall(block)
            sent += len(block)
            highest = max(highest, host.memory_info().rss)
            assert sent < 20 * MAX_BODY
        status, headers, body = read_answer(sock)
        assert status == 413 and b"input_too_large" in body and headers["connection"] == "close"
        # Whoever goes on sending is not listened to for long, and nothing of it is kept.
        with pytest.raises(OSError):
            while True:
                sock.sendall(block)
                sent += len(block)
                highest = max(highest, host.memory_info().rss)
    print(f"{sent >> 20} MiB sent, memory grew by {(highest - before) >> 20} MiB")
    assert highest - before < 4 * MAX_BODY


@pytest.mark.parametrize("path", [SCALE, "/predict/scale", "/v2/repository/index"])
def test_a_slow_body_is_cut_off(tensors: Server, path: str) -> None:
    with connect(tensors) as sock:
        sock.sendall(head(tensors, "POST", path, {"Content-Length": "10000"}))
        while not select.select([sock], [], [], 0.1)[0]:
            sock.sendall(b" ")
        status, headers, body = read_answer(sock)
        assert status == 400 and f"within {BODY_TIMEOUT_MS / 1000:g} s".encode() in body
        assert headers["connection"] == "close"
        assert ended(sock)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length": "-5"},
        {"Content-Length": "abc"},
        {"Content-Length": "1_0"},
        {"Content-Length": "9" * 30},
        {"Content-Length": "5, 6"},
        {"Content-Length": "5", "Transfer-Encoding": "chunked"},
        {"Transfer-Encoding": "gzip"},
        {"Bad Name": "x"},
        {"X-A": "a\x00b"},
    ],
)
def test_broken_framing(tensors: Server, headers: dict[str, str]) -> None:
    """Refused below the routes, and the connection is closed: what follows could be read as another request."""
    with connect(tensors) as sock:
        sock.sendall(head(tensors, "POST", SCALE, headers) + GOOD)
        status, answered, body = read_answer(sock)
        assert status == 400 and answered["connection"] == "close"
        assert_clean(body.decode(), tensors)
        assert ended(sock)


def test_garbage_instead_of_http(tensors: Server) -> None:
    for garbage in (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(100), b"hello\r\n\r\n", b"GET\r\n\r\n"):
        with connect(tensors) as sock:
            sock.sendall(garbage)
            status, _, body = read_answer(sock)
            assert status == 400
            assert_clean(body.decode(), tensors)


def test_callers_that_go_away(tensors: Server) -> None:
    """In the head, in the body, before the answer: no trace of them stays."""
    for part in (b"POST /v2", head(tensors, "POST", SCALE, {"Content-Length": "500"}) + b"{", GOOD):
        for _ in range(20):
            with connect(tensors) as sock:
                if part is GOOD:
                    part = head(tensors, "POST", SCALE, {"Content-Length": str(len(GOOD))}) + GOOD
                sock.sendall(part)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    tensors.wait_for(lambda: tensors.status()["queue"]["running"] == 0, 30, "an idle engine")
    for line in tensors.client.get("/metrics").text.splitlines():
        if line.startswith("appliance_body_bytes"):
            assert float(line.split()[1]) == 0


# --- pictures and forms -----------------------------------------------------------------------------------------


def bomb_png(width: int = 20_000, height: int = 10_000) -> bytes:
    """A whole, valid black picture of 200 megapixels, one bit each."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress(bytes((width // 8 + 1) * height), 9)
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("model", ["classify", "detect", "segment", "ocr"])
def test_pictures(pictures: Server, model: str) -> None:
    def answer(data: bytes, name: str = "a.jpg") -> httpx.Response:
        return pictures.client.post(f"/predict/{model}", files={"file": (name, data)})

    bomb = bomb_png()
    assert len(bomb) < 50_000
    refused(answer(bomb), 413, "input_too_large", "file", "200,000,000", "50,000,000")
    refused(answer(b"This is a text.\n"), 415, "unsupported_media", "file")
    refused(answer(b""), 400, "invalid_input", "file", "empty")
    refused(answer(CAT[: len(CAT) // 2]), 415, "unsupported_media", "file")
    refused(answer(CAT[:100]), 415, "unsupported_media", "file")
    refused(answer(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), 415, "unsupported_media", "file")
    refused(answer(b"%!PS-Adobe-3.0 EPSF-3.0\n"), 415, "unsupported_media", "file")
    refused(pictures.client.post(f"/predict/{model}", content=b""), 400, "invalid_input", "body", "empty")
    refused(pictures.client.post(f"/predict/{model}", json={"image": "QUJD"}), 415, "unsupported_media", "image")


def form(*parts: bytes, end: bytes = b"--b--\r\n") -> bytes:
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + end


FILE = b'Content-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "no content"),
        (form(FILE + CAT, end=b""), 400, "cut off"),
        (form(FILE + CAT)[:-5], 400, "cut off"),
        (form(FILE + CAT)[:5000], 400, "cut off"),
        (form(FILE)[:20], 400, ""),
        (b"--other\r\n" + FILE + CAT + b"\r\n--other--\r\n", 400, "body"),
        (form(*[FILE + b"a"] * 1000), 413, "parts"),
        (form(*[FILE + b"a"] * 65), 413, "65 items"),
        (form(b"X-A: " + b"a" * 1_000_000 + b"\r\n" + FILE + CAT), 400, "header"),
        (form(b"a" * 1_000_000 + b": 1\r\n" + FILE + CAT), 400, "header"),
        (form(b"".join(b"X-%d: 1\r\n" % n for n in range(10_000)) + FILE + CAT), 400, "header"),
        (form(b'Content-Disposition: form-data; name="text"\r\n\r\n\xff\xfe'), 400, "text"),
        (form(b'Content-Disposition: form-data; name="text"\r\n\r\na', FILE + CAT), 400, "'text'"),
        (form(b"\r\nno headers"), 400, ""),
        (form(b'Content-Disposition: form-data; name="file'), 400, ""),
        (form(b"Content-Disposition: form-data; name*=none'x'%ff; filename*=none'x'%ff\r\n\r\na"), 415, ""),
    ],
    ids=range(16),
)
def test_forms(pictures: Server, body: bytes, status: int, words: str) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = pictures.client.post("/predict/classify", content=body, headers=headers)
    codes = {400: "invalid_input", 413: "input_too_large", 415: "unsupported_media"}
    refused(answer, status, codes[status], words)


@pytest.mark.parametrize(
    "boundary", ["", "; boundary=", "; boundary=" + "b" * 5000, "; boundary*=utf-8''%ff", '; boundary="']
)
def test_boundaries(pictures: Server, boundary: str) -> None:
    headers = {"Content-Type": "multipart/form-data" + boundary}
    answer = pictures.client.post("/predict/classify", content=form(FILE + CAT), headers=headers)
    refused(answer, 400, "invalid_input")


@pytest.mark.parametrize(
    "inputs",
    ["NaN", "[[1e39,1,2,3]]", "[[1,2],[3]]", '[["a",1,2,3]]', "[[null,1,2,3]]", "{}", "[" * 10_000, "[[1,2,3]]", "1",
     "[[" + "9" * 5000 + ",1,2,3]]", "[" * 70 + "1" + "]" * 70],
)  # fmt: skip
def test_nested_lists(tensors: Server, inputs: str) -> None:
    body = f'{{"inputs":{{"x":{inputs}}}}}'
    answer = tensors.client.post("/predict/scale", content=body, headers={"Content-Type": "application/json"})
    refused(answer, 400, "invalid_input")


# --- paths and headers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/../../etc/passwd/infer",
        "/v2/models/..%2f..%2fetc%2fpasswd/infer",
        "/v2/models/%2e%2e/infer",
        "/v2/models/..%5c..%5cwindows/infer",
        "/v2/models/%00/infer",
        "/v2/models/%ff/infer",
        "/v2/models/a%0d%0aX-Evil:%201/infer",
        f"/v2/models/{'a' * 5000}/infer",
        "/v2/models//infer",
        "/v2/models/scale/versions/../infer",
        "/v2/models/scale/versions/..%2f1/infer",
        "/v2/repository/models/..%2fscale/load",
        "/v2/repository/models/%2e%2e/load",
        "/v2/repository/models/%2e%2e/unload",
        "/predict/../scale",
        "/predict/..%2fscale",
        "/predict/%2e%2e",
        "/predict/",
        "/predict/scale/more",
        "/docs/../../etc/passwd",
        "/docs/..%2f..%2fetc%2fpasswd",
        "/nothing",
        "/v2/nothing",
        "/v2/models/scale/nothing",
    ],
)
def test_paths(tensors: Server, path: str) -> None:
    with connect(tensors) as sock:  # as it is: client libraries tidy paths up
        headers = {"Content-Length": str(len(GOOD)), "Content-Type": "application/json"}
        sock.sendall(head(tensors, "POST", path, headers) + GOOD)
        status, answered, body = read_answer(sock)
    assert status in (404, 405), (status, body)
    code = json.loads(body).get("code") or json.loads(body)["error"]["code"]
    assert code in ("not_found", "model_not_found", "method_not_allowed")
    assert len(body) < 1500 and "x-evil" not in answered
    assert_clean(body.decode(), tensors)


def test_methods(tensors: Server) -> None:
    for method, path in (
        ("DELETE", "/health"),
        ("POST", "/metrics"),
        ("GET", "/v2/repository/index"),
        ("BREW", "/v2"),
    ):
        with connect(tensors) as sock:
            sock.sendall(head(tensors, method, path, {}))
            status, _, body = read_answer(sock)
        assert status == (400 if method == "BREW" else 405), (method, body)
        assert_clean(body.decode(), tensors)


@pytest.mark.parametrize(
    "value", ["", "with space", "a" * 129, "é" * 10, "\x80\xff", "<script>", "a\tb", '"', "../.."]
)
def test_odd_request_ids_are_replaced(tensors: Server, value: str) -> None:
    for path in (SCALE, "/nothing"):
        with connect(tensors) as sock:
            headers = {"Content-Length": str(len(GOOD)), "X-Request-ID": value}
            sock.sendall(head(tensors, "POST", path, headers) + GOOD)
            status, answered, _ = read_answer(sock)
        assert status == (200 if path == SCALE else 404)
        assert answered["x-request-id"] and answered["x-request-id"] != value
        assert answered["x-request-id"].isascii()


def test_many_headers(tensors: Server) -> None:
    many = {f"X-{n}": "a" * 100 for n in range(500)}
    assert tensors.client.post(SCALE, content=GOOD, headers=many).status_code == 200


def test_odd_queries(tensors: Server) -> None:
    for query in ("?", "?a", "?%ff=%ff", "?" + "&".join(f"a{n}=1" for n in range(2000)), "?version=9", "?a=1&a=2"):
        answer = tensors.client.post(f"/predict/scale{query}", json={"inputs": {"x": [[1, 2, 3, 4]]}})
        assert answer.status_code in (200, 400), query
        assert tensors.client.get(f"/v2/models/scale{query}").status_code in (200, 404)


# --- anything ---------------------------------------------------------------------------------------------------

FUZZ = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ODD: Any = st.sampled_from(
    [None, True, -1, 0, 1.5, 2**63, -(2**70), 1e308, "", "x", "\0", "é", [], [[]], [None], {}, {"a": 1}]
)


def _tree(good: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: (container, key)."""
    items = enumerate(good) if isinstance(good, list) else good.items() if isinstance(good, dict) else ()
    for key, value in list(items):
        yield good, key
        yield from _tree(value)


@st.composite
def odd_json(draw: st.DrawFn) -> tuple[bytes, dict[str, str]]:
    """A good request with some of its values replaced, taken out or put elsewhere."""
    request: dict[str, Any] = {
        "id": "1",
        "parameters": {"priority": 1, "timeout": 10_000_000, "binary_data_output": draw(st.booleans())},
        "inputs": [
            {"name": "a", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
            {"name": "b", "shape": [1, 2], "datatype": "INT32", "data": [[1, 2]]},
        ],
        "outputs": [{"name": "sum", "parameters": {"binary_data": True}}, {"name": "minus", "parameters": {}}],
    }
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(_tree(request))))
        kind = draw(st.sampled_from(["replace", "drop", "double"]))
        if kind == "replace":
            container[key] = copy.deepcopy(draw(ODD))
        elif kind == "drop":
            del container[key]
        elif isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
    return binary(request, draw(st.sampled_from([bytes(8), bytes(8), bytes(7), bytes(9), b""])))


@st.composite
def odd_bytes(draw: st.DrawFn, good: bytes) -> bytes:
    """Good bytes with some cut out, changed, put in or repeated."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(["change", "cut", "insert", "end", "repeat"]))
        if kind == "change" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=20))
        elif kind == "end":
            del data[at:]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 200))]
    return bytes(data)


def designed(answer: httpx.Response, *also: int) -> None:
    """A right answer, or a refusal by its name."""
    assert answer.status_code in (200, 400, 413, 415, *also), (answer.status_code, answer.text)
    if answer.status_code != 200:
        assert_clean(answer.text)
        found = answer.json()
        code = found.get("code") or found["error"]["code"]
        assert code in ("invalid_input", "input_too_large", "unsupported_media", "invalid_output"), answer.text


@FUZZ
@given(request=odd_json())
def test_odd_json(tensors: Server, request: tuple[bytes, dict[str, str]]) -> None:
    body, headers = request
    designed(tensors.client.post("/v2/models/pair/infer", content=body, headers=headers))


@FUZZ
@given(
    body=odd_bytes(binary({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32",
                                       "parameters": {"binary_data_size": 16}}]}, bytes(16))[0]),
    length=st.sampled_from([None, "0", "96", "97", "100"]),
    coding=st.sampled_from([None, None, None, "gzip", "deflate"]),
)  # fmt: skip
def test_odd_bytes(tensors: Server, body: bytes, length: str | None, coding: str | None) -> None:
    headers = {HEADER_LENGTH: length} if length else {}
    if coding:
        body = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
        headers["Content-Encoding"] = coding
    answer = tensors.client.post(SCALE, content=body, headers=headers)
    designed(answer)


def _small_picture() -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(CAT)).resize((24, 16)).save(out, "PNG")
    return out.getvalue()


GOOD_FORM = form(FILE + _small_picture(), b'Content-Disposition: form-data; name="top_k"\r\n\r\n3')


@settings(FUZZ, max_examples=150)
@given(body=odd_bytes(GOOD_FORM))
@example(body=GOOD_FORM)
def test_odd_forms(pictures: Server, body: bytes) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    designed(pictures.client.post("/predict/classify", content=body, headers=headers))


@settings(FUZZ, max_examples=100)
@given(
    name=st.sampled_from(["x-request-id", "x-priority", "x-timeout-ms", "content-type", "accept", "accept-encoding",
                          "content-encoding", "inference-header-content-length"]),
    value=st.binary(max_size=40).filter(lambda v: not set(v) & set(b"\0\r\n")),
)  # fmt: skip
def test_odd_headers(tensors: Server, name: str, value: bytes) -> None:
    """Bytes that no client library would send; below the routes (400, plain) or in them."""
    for path, body in ((SCALE, GOOD), ("/predict/scale", b'{"inputs":{"x":[[1,2,3,4]]}}')):
        with connect(tensors) as sock:
            top = head(tensors, "POST", path, {"Content-Length": str(len(body))})[:-2]
            sock.sendall(top + name.encode() + b": " + value + b"\r\n\r\n" + body)
            status, _, answer = read_answer(sock)
        assert status in (200, 400, 406, 413, 415), (status, answer)
        if status != 200:
            assert_clean(answer.decode(), tensors)


def test_it_still_answers(tensors: Server, start: Callable[..., Server]) -> None:
    assert outputs(infer(tensors, "scale", X)) == {"y": [2, 4, 6, 8]}
    errors = [
        line for line in (tensors.state / "logs" / "appliance.log").read_text().splitlines() if "Traceback" in line
    ]
    assert not errors, errors[0]
