"""Requests as bytes, and what may not be in an answer."""

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterable
from typing import Any

import httpx
import numpy as np
from onnx import TensorProto as T

from tests.support.server import ROOT, Server

KINDS = {
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
    "BF16": T.BFLOAT16,
    "BYTES": T.STRING,
}
"""Datatype of the protocol → ONNX element type."""

INT_RANGES = {
    "UINT8": (0, 255),
    "UINT16": (0, 65535),
    "UINT32": (0, 4294967295),
    "UINT64": (0, 18446744073709551615),
    "INT8": (-128, 127),
    "INT16": (-32768, 32767),
    "INT32": (-2147483648, 2147483647),
    "INT64": (-9223372036854775808, 9223372036854775807),
}

NUMPY = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}

HEADER_LENGTH = "Inference-Header-Content-Length"

_CLASS = re.compile(r"\b[A-Z][A-Za-z]*(Error|Exception|Warning|Timeout|Interrupt)\b")


def assert_clean(text: str, server: Server | None = None) -> None:
    """No stack trace, local path or name of a Python class."""
    assert "Traceback" not in text, text
    assert not _CLASS.search(text), text
    assert ".py" not in text, text
    assert "site-packages" not in text, text
    paths = {str(ROOT), str(ROOT / "appliance")}
    if server is not None:
        paths |= {str(server.models), str(server.state)}
    assert not any(path in text for path in paths), text


def entry(data: Any, shape: list[int], datatype: str = "FP32", name: str = "x", **more: Any) -> dict[str, Any]:
    """One input of a JSON request."""
    return {"name": name, "shape": shape, "datatype": datatype, "data": data, **more}


def infer(server: Server, model: str, *inputs: dict[str, Any], headers: Any = None, **more: Any) -> httpx.Response:
    """A JSON inference."""
    body = {"inputs": list(inputs), **more}
    return server.client.post(f"/v2/models/{model}/infer", json=body, headers=headers)


def outputs(answer: httpx.Response) -> dict[str, Any]:
    """Name → data of a JSON answer."""
    assert answer.status_code == 200, answer.text
    return {o["name"]: o["data"] for o in answer.json()["outputs"]}


def binary(header: dict[str, Any], *chunks: bytes) -> tuple[bytes, dict[str, str]]:
    """(body, headers) of a request in the binary tensor extension."""
    head = json.dumps(header).encode()
    return head + b"".join(chunks), {HEADER_LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}


def split(answer: httpx.Response) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(JSON, output name → bytes) of an answer in the binary tensor extension."""
    assert answer.status_code == 200, answer.text
    length = int(answer.headers[HEADER_LENGTH])
    header, at, found = json.loads(answer.content[:length]), length, {}
    for output in header["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            found[output["name"]] = answer.content[at : at + size]
            at += size
    assert at == len(answer.content)
    return header, found


def refused(answer: httpx.Response, status: int, code: str, *words: str) -> None:
    """The answer is this error, in the surface's shape, and its message has the words."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    error = answer.json()["error"]
    if answer.request.url.path.startswith("/v2"):
        assert answer.json()["code"] == code, answer.text
        message = error
    else:
        assert error["code"] == code, answer.text
        assert error["request_id"] == answer.headers["x-request-id"]
        message = error["message"]
    for word in words:
        assert word in message, message
    assert_clean(answer.text)


def address(server: Server) -> tuple[str, int]:
    """(host, port)."""
    return httpx.URL(server.url).host, httpx.URL(server.url).port or 80


def connect(server: Server, timeout: float = 60) -> socket.socket:
    """A plain connection."""
    return socket.create_connection(address(server), timeout=timeout)


def head(server: Server, method: str, path: str, headers: dict[str, str]) -> bytes:
    """A request's head."""
    host, port = address(server)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def read_answer(sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of one answer with a content-length."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(65536)
        assert more, f"the connection ended after {data!r}"
        data += more
    top, _, body = data.partition(b"\r\n\r\n")
    lines = top.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    while len(body) < int(headers.get("content-length", 0)):
        more = sock.recv(65536)
        assert more, "the answer is cut off"
        body += more
    return int(lines[0].split()[1]), headers, body


def ended(sock: socket.socket) -> bool:
    """True when the other side closes the connection (waits for it)."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def curl(*arguments: str, send: bytes | None = None) -> bytes:
    """What curl prints."""
    done = subprocess.run(["curl", "-sS", *arguments], input=send, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def state_of(server: Server, request_id: str) -> str | None:
    """``/api/requests``: the state, or None while it is not known."""
    answer = server.client.get(f"/api/requests/{request_id}")
    return answer.json()["state"] if answer.status_code == 200 else None


def wait_for_state(server: Server, request_id: str, wanted: Iterable[str]) -> None:
    """Wait until the request is in one of the states."""
    server.wait_for(lambda: state_of(server, request_id) in set(wanted), 30, f"request {request_id}")


def patiently(check: Any, wait_s: float = 20) -> Any:
    """Ask again until the value is true."""
    deadline = time.monotonic() + wait_s
    while not (value := check()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value
