"""What comes before there is a request: heads without end, and more connections than are taken."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.support.server import Server


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("door"), max_connections=20) as server:
        yield server


def connect(server: Server) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def read(connection: socket.socket) -> tuple[str, dict]:
    """Status line and JSON of an answer that ends with the connection."""
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except ConnectionError:
        pass
    head, _, body = data.partition(b"\r\n\r\n")
    return head.decode().splitlines()[0], json.loads(body)


def test_a_head_without_end_is_refused_by_size(small: Server) -> None:
    with connect(small) as connection:
        try:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
            for _ in range(100):
                connection.sendall(b"a" * 65536)
                time.sleep(0.001)
        except ConnectionError:
            pass
        status, body = read(connection)
    assert status == "HTTP/1.1 431 Request Header Fields Too Large"
    assert body["error"]["code"] == "head_too_large"


def test_a_head_that_does_not_end_is_cut_off_in_time(small: Server) -> None:
    with connect(small) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        status, body = read(connection)
    assert status == "HTTP/1.1 400 Bad Request" and "did not arrive" in body["error"]["message"]


def test_no_http_at_all(small: Server) -> None:
    with connect(small) as connection:
        connection.sendall(b"\x16\x03\x01 this is TLS, or a joke\r\n\r\n")
        status, body = read(connection)
    assert status == "HTTP/1.1 400 Bad Request" and body["error"]["code"] == "invalid_input"


def test_connections_over_the_limit_are_refused_and_the_others_go_on(small: Server) -> None:
    held = [connect(small) for _ in range(20)]
    with contextlib.suppress(httpx.HTTPError):
        small.client.get("/health")
    with connect(small) as connection:
        status, body = read(connection)
    assert status == "HTTP/1.1 503 Service Unavailable" and body["error"]["code"] == "overloaded"
    held[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert held[0].recv(100).startswith(b"HTTP/1.1 200")
    for connection in held:
        connection.close()
    small.wait_for(lambda: small.client.get("/health").status_code == 200, 5, "places to be free again")
