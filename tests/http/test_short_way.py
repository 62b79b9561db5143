"""Requests that are answered without a task: cut anywhere, one behind the other, with a header seen before."""

import json
import re
import socket
import time

import httpx
import numpy as np
import pytest

from tests.http.helpers import HEADER_LENGTH, binary, connect, entry, outputs, refused, split
from tests.support.server import Server


def raw(value: float, *, rows: int = 1, close: bool = False, path: str = "/v2/models/scale/infer") -> bytes:
    """The bytes of a binary request to ``scale``."""
    x = np.full((rows, 4), value, np.float32).tobytes()
    head = {"inputs": [{**entry(None, [rows, 4]), "parameters": {"binary_data_size": len(x)}}]}
    del head["inputs"][0]["data"]
    body, headers = binary({**head, "parameters": {"binary_data_output": True}}, x)
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {text}" for name, text in headers.items()] + (["Connection: close"] if close else [])
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read(connection: socket.socket, rest: bytes = b"") -> tuple[str, bytes, bytes]:
    """(head, body, what came behind it) of the next answer."""
    while b"\r\n\r\n" not in rest:
        more = connection.recv(1 << 16)
        assert more, rest
        rest += more
    head, _, rest = rest.partition(b"\r\n\r\n")
    size = int(re.search(rb"\r\ncontent-length: (\d+)", head)[1])  # type: ignore[index]
    while len(rest) < size:
        rest += connection.recv(1 << 16)
    return head.decode(), rest[:size], rest[size:]


def first_value(head: str, body: bytes) -> float:
    assert head.startswith("HTTP/1.1 200 OK\r\n"), head
    length = int(re.search(r"inference-header-content-length: (\d+)", head)[1])  # type: ignore[index]
    return float(np.frombuffer(body[length:], np.float32)[0])


def held_bytes(server: Server) -> float:
    text = server.client.get("/metrics").text
    return float(next(line for line in text.splitlines() if line.startswith("appliance_body_bytes")).split()[1])


def test_one_behind_the_other_on_one_connection(tensors: Server) -> None:
    """Pipelined: all at once, mixed with what goes ASGI's way; answered in order."""
    other = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(tensors) as connection:
        connection.sendall(raw(1) + raw(2) + other + raw(3, rows=2) + other + other + raw(4))
        rest, found = b"", []
        for _ in range(7):
            head, body, rest = read(connection, rest)
            found.append(json.loads(body)["status"] if b"status" in body else first_value(head, body))
    assert found == [2.0, 4.0, "ok", 6.0, "ok", "ok", 8.0]
    assert rest == b""


@pytest.mark.parametrize("at", [10, 60, 150, 200, -1])
@pytest.mark.parametrize("pause", [0.02, 1.3], ids=["soon", "late"])
def test_in_two_parts(tensors: Server, at: int, pause: float) -> None:
    whole = raw(7)
    with connect(tensors) as connection:
        for _ in range(2 if pause < 1 else 1):
            connection.sendall(whole[:at])
            time.sleep(pause)
            connection.sendall(whole[at:])
            head, body, rest = read(connection)
            assert (first_value(head, body), rest) == (14.0, b"")


def test_a_large_body(tensors: Server) -> None:
    rows = 100_000  # many reads
    with connect(tensors) as connection:
        for value in (3, 5):
            connection.sendall(raw(value, rows=rows))
            head, body, _ = read(connection)
            assert first_value(head, body) == 2 * value
            assert len(body) > rows * 16
    assert held_bytes(tensors) == 0


def test_the_connection_s_end_when_asked_for(tensors: Server) -> None:
    with connect(tensors) as connection:
        connection.sendall(raw(1, close=True))
        head, body, _ = read(connection)
        assert first_value(head, body) == 2
        assert "connection: close" in head
        assert connection.recv(10) == b""


def test_a_caller_that_leaves_in_the_middle_holds_no_bytes(tensors: Server) -> None:
    for at in (-8, 150):
        connection = connect(tensors)
        connection.sendall(raw(1)[:at])
        time.sleep(0.05)
        connection.close()
    tensors.wait_for(lambda: held_bytes(tensors) == 0, 10, "the bytes")


def ask(server: Server, body: bytes, length: int, **headers: str) -> httpx.Response:
    told = {HEADER_LENGTH: str(length), **headers}
    return server.client.post("/v2/models/scale/infer", content=body, headers=told)


def test_a_header_seen_before_has_its_own_data(tensors: Server) -> None:
    """What is kept of a header are its places, never its values; and what it does not fit is refused as ever."""
    head = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}]}
    head["parameters"] = {"binary_data_output": True}  # type: ignore[assignment]
    text = json.dumps(head).encode()
    for value in range(5):
        answer = ask(tensors, text + np.full(4, value, np.float32).tobytes(), len(text))
        told, data = split(answer)
        assert np.frombuffer(data["y"], np.float32).tolist() == [2.0 * value] * 4
        assert told["outputs"][0]["shape"] == [1, 4]
    refused(ask(tensors, text + bytes(15), len(text)), 400, "invalid_input", "binary_data_size")
    refused(ask(tensors, text + bytes(17), len(text)), 400, "invalid_input", "left over")
    assert split(ask(tensors, text + bytes(16), len(text)))[1]["y"] == bytes(16)
    # The same words to another model are that model's.
    other = tensors.client.post(
        "/v2/models/same-fp32/infer", content=text + bytes(16), headers={HEADER_LENGTH: str(len(text))}
    )
    refused(other, 400, "invalid_input", "axis 1")


def test_inputs_out_of_the_model_s_order(tensors: Server) -> None:
    a, b = np.array([[1, 2]], np.float32), np.array([[10, 20]], np.int32)
    inputs = [
        {"name": "b", "shape": [1, 2], "datatype": "INT32", "parameters": {"binary_data_size": 8}},
        {"name": "a", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
    ]
    body, headers = binary({"inputs": inputs}, b.tobytes(), a.tobytes())
    for _ in range(3):
        answer = tensors.client.post("/v2/models/pair/infer", content=body, headers=headers)
        assert outputs(answer) == {"sum": [11.0, 22.0], "minus": [-10, -20]}


def test_the_caller_s_request_id_and_the_headers_of_every_answer(tensors: Server) -> None:
    short = tensors.client.post(
        "/v2/models/scale/infer", json={"inputs": [entry([1] * 4, [1, 4])]}, headers={"X-Request-Id": "mine"}
    )
    asgi = tensors.client.post(
        "/v2/models/scale/infer?x=1", json={"inputs": [entry([1] * 4, [1, 4])]}, headers={"X-Request-Id": "mine"}
    )
    assert short.json() == asgi.json()
    assert short.headers["x-request-id"] == asgi.headers["x-request-id"] == "mine"
    assert short.headers.keys() == asgi.headers.keys()


def test_a_head_seen_before_in_every_way_that_it_can_come(tensors: Server) -> None:
    """The same first bytes, then whole, cut, two at once, with too little behind it, and once more to be closed."""
    with connect(tensors) as connection:
        for value in (1, 2, 3):
            connection.sendall(raw(value))
            head, body, rest = read(connection)
            assert (first_value(head, body), rest) == (2.0 * value, b"")
        connection.sendall(raw(4) + raw(5))
        head, body, rest = read(connection)
        assert first_value(head, body) == 8
        head, body, rest = read(connection, rest)
        assert (first_value(head, body), rest) == (10.0, b"")
        whole = raw(6)
        connection.sendall(whole[:-5])
        time.sleep(0.05)
        connection.sendall(whole[-5:] + raw(7))
        head, body, rest = read(connection)
        assert first_value(head, body) == 12
        head, body, rest = read(connection, rest)
        assert first_value(head, body) == 14
        connection.sendall(raw(8) + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + raw(9))
        head, body, rest = read(connection)
        assert first_value(head, body) == 16
        head, body, rest = read(connection, rest)
        assert json.loads(body) == {"status": "ok"}
        head, body, rest = read(connection, rest)
        assert (first_value(head, body), rest) == (18.0, b"")
    for value in (1, 2):  # remembered with its "close"
        with connect(tensors) as connection:
            connection.sendall(raw(value, close=True))
            head, body, _ = read(connection)
            assert first_value(head, body) == 2 * value
            assert connection.recv(10) == b""
    assert held_bytes(tensors) == 0


def test_a_head_seen_before_gives_no_rights_to_another(tensors: Server) -> None:
    def status(request: bytes) -> int:
        with connect(tensors) as connection:
            connection.sendall(request)
            return int(read(connection)[0].split()[1])

    for _ in range(2):
        assert status(raw(1)) == 200
        assert status(raw(1).replace(b"Host: localhost", b"Host: evil.test")) == 403
        assert status(raw(1).replace(b"Host: localhost", b"Host: localhost\r\nOrigin: http://evil.test")) == 403
        assert status(raw(1).replace(b"Host: localhost", b"Host: localhost\r\nX-Timeout-Ms: soon")) == 400
        assert status(raw(1, path="/v2/models/none/infer")) == 404
