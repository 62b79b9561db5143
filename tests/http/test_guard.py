"""Who may call: Host, Origin, Sec-Fetch-Site, preflight, key; and how much may be held at once."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.http.conftest import fake, watched
from tests.http.helpers import address, connect, entry, head, infer, outputs, patiently, read_answer, refused
from tests.support.server import Server

KEY = "a-key-of-mine"
ALLOWED = "https://app.example"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a key, a host name, an origin, and little room for bodies."""
    server = Server(
        tmp_path_factory.mktemp("locked"),
        api_key=KEY,
        allowed_hosts=["box.example"],
        allowed_origins=[ALLOWED + "/"],
        max_body_bytes=1 << 20,
        max_body_total_bytes=3 << 19,
    )
    fake(server, "double")
    with watched(server):
        server.client.headers["X-API-Key"] = KEY
        yield server


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "evil.example:11711", "", "0.0.0.0", "[::2]"],  # noqa: S104
)
@pytest.mark.parametrize("path", ["/health", "/v2", "/v2/models/scale/infer", "/predict/scale", "/nothing"])
def test_foreign_hosts(tensors: Server, host: str, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        answer = tensors.client.request(method, path, headers={"Host": host})
        refused(answer, 403, "forbidden", "Host", "allowed_hosts")


def test_no_host_at_all(tensors: Server) -> None:
    with connect(tensors) as sock:
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        status, _, body = read_answer(sock)
    assert status == 403 and b"forbidden" in body


def test_hosts_that_are_this_machine(tensors: Server, locked: Server) -> None:
    port = address(tensors)[1]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LocalHost", f"[::1]:{port}", "127.0.0.1"):
        assert tensors.client.get("/health", headers={"Host": host}).status_code == 200, host
    assert locked.client.get("/v2", headers={"Host": "box.example:80"}).status_code == 200
    assert locked.client.get("/v2", headers={"Host": "BOX.example"}).status_code == 200
    refused(tensors.client.get("/v2", headers={"Host": "box.example"}), 403, "forbidden")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "file://", "", "http://localhost"]
)
def test_foreign_origins(tensors: Server, origin: str) -> None:
    for method, path in (("GET", "/api/status"), ("POST", "/v2/models/scale/infer"), ("POST", "/predict/scale")):
        answer = tensors.client.request(method, path, headers={"Origin": origin})
        refused(answer, 403, "forbidden", "Origin", "allowed_origins")
        assert "access-control-allow-origin" not in answer.headers


def test_own_and_allowed_origins(tensors: Server, locked: Server) -> None:
    body = {"inputs": [entry([1, 2, 3, 4], [1, 4])]}
    for server, origin in ((tensors, tensors.url), (locked, ALLOWED), (locked, locked.url)):
        path = "/v2/models/scale/infer" if server is tensors else "/v2/models/double/infer"
        answer = server.client.post(path, json=body, headers={"Origin": origin})
        assert outputs(answer) == {"y": [2, 4, 6, 8]}
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["vary"] == "Origin"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        for path in ("/api/status", "/nothing", "/predict/nobody"):  # a page may read errors too
            answer = server.client.get(path, headers={"Origin": origin})
            assert answer.headers["access-control-allow-origin"] == origin
    refused(tensors.client.get("/api/status", headers={"Origin": ALLOWED}), 403, "forbidden")


def test_requests_of_other_sites_without_an_origin(tensors: Server) -> None:
    for site in ("cross-site", "same-site"):
        for method, path in (("GET", "/api/status"), ("POST", "/v2/models/scale/infer")):
            answer = tensors.client.request(
                method, path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
            )
            refused(answer, 403, "forbidden", "other web sites")
        link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
        assert tensors.client.get("/docs", headers=link).status_code == 200  # a link to it may be followed
        refused(tensors.client.post("/v2/repository/index", headers=link), 403, "forbidden")
    for site in ("same-origin", "none"):
        assert tensors.client.get("/api/status", headers={"Sec-Fetch-Site": site}).status_code == 200


def test_preflight(tensors: Server, locked: Server) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,x-priority"}
    for server, origin in ((tensors, tensors.url), (locked, ALLOWED)):
        headers = {k: v for k, v in server.client.headers.items() if k != "x-api-key"}  # browsers send no key here
        request = server.client.build_request(
            "OPTIONS", "/predict/scale", headers={**asks, "Origin": origin, **headers}
        )
        request.headers.pop("x-api-key", None)
        answer = server.client.send(request)
        assert answer.status_code == 204 and answer.content == b""
        assert answer.headers["access-control-allow-origin"] == origin
        assert "POST" in answer.headers["access-control-allow-methods"]
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        assert {"content-type", "x-priority", "x-timeout-ms", "x-api-key", "authorization"} <= set(allowed)
    answer = tensors.client.options("/predict/scale", headers={**asks, "Origin": "https://evil.example"})
    refused(answer, 403, "forbidden")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": "wrong-key"},
        {"X-API-Key": ""},
        {"X-API-Key": KEY + "x"},
        {"X-API-Key": KEY[:-1]},
        {"X-API-Key": KEY.upper()},
        {"Authorization": "Bearer wrong-key"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer"},
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/metrics"),
        ("GET", "/api/status"), ("GET", "/api/events"), ("GET", "/api/requests/1"), ("GET", "/nothing"),
        ("GET", "/health/"), ("POST", "/v2/models/double/infer"), ("POST", "/predict/double"),
        ("POST", "/v2/repository/models/double/unload"),
    ],
)  # fmt: skip
def test_without_the_key(locked: Server, method: str, path: str, headers: dict[str, str]) -> None:
    request = locked.client.build_request(method, path)
    request.headers.pop("x-api-key")
    request.headers.update(headers)
    answer = locked.client.send(request)
    refused(answer, 401, "unauthorized", "key")
    assert KEY not in answer.text


def test_with_the_key(locked: Server) -> None:
    x = entry([1.5, 2.5], [1, 2])
    assert outputs(infer(locked, "double", x)) == {"y": [3, 5]}
    request = locked.client.build_request("POST", "/v2/models/double/infer", json={"inputs": [x]})
    request.headers.pop("x-api-key")
    request.headers["Authorization"] = f"Bearer {KEY}"
    assert outputs(locked.client.send(request)) == {"y": [3, 5]}


def test_health_needs_no_key(locked: Server) -> None:
    for path in ("/health", "/ready", "/v2/health/live", "/v2/health/ready"):
        request = locked.client.build_request("GET", path)
        request.headers.pop("x-api-key")
        assert locked.client.send(request).status_code == 200


def test_the_key_does_not_open_for_other_sites(locked: Server) -> None:
    refused(locked.client.get("/v2", headers={"Origin": "https://evil.example"}), 403, "forbidden")
    refused(locked.client.get("/v2", headers={"Host": "evil.example"}), 403, "forbidden")


def test_bodies_held_at_once(locked: Server) -> None:
    """A body counts from its announcement; one that does not fit now is told to come back."""

    def held() -> float:
        lines = locked.client.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("appliance_body_bytes"))

    announced = {"Content-Length": str(1 << 20), "X-API-Key": KEY}
    path = "/v2/models/double/infer"
    with connect(locked) as holder:
        holder.sendall(head(locked, "POST", path, announced))
        patiently(lambda: held() == 1 << 20)
        answer = locked.client.post(path, content=bytes(1 << 20))
        assert answer.status_code == 503 and str(3 << 19) in answer.json()["error"]
        assert int(answer.headers["retry-after"]) >= 1
        chunks = (bytes(1 << 17) for _ in range(8))
        assert locked.client.post(path, content=chunks).status_code == 503
        assert outputs(infer(locked, "double", entry([1], [1, 1]))) == {"y": [2]}  # there is room for a small one
    patiently(lambda: held() == 0)
    assert locked.client.post(path, content=bytes(1 << 20)).status_code == 400  # read, and found to be no JSON


def test_not_reachable_from_elsewhere_without_a_key(tmp_path: Path) -> None:
    server = Server(tmp_path, host="0.0.0.0")  # noqa: S104 - refused is what is tested
    with pytest.raises(AssertionError, match="api_key"):
        server.start()
    assert server.process is not None and server.process.wait(10) == 2
    server.client.close()


def test_listening_for_others_with_a_key(start: Callable[..., Server]) -> None:
    server = start(host="0.0.0.0", api_key=KEY, ready=False)  # noqa: S104 - with a key it may
    port = address(server)[1]
    for host in ("127.0.0.1", "localhost"):
        answer = server.client.get(f"http://{host}:{port}/v2", headers={"X-API-Key": KEY})
        assert answer.json()["name"] == "inference-appliance"
    # It listens on all addresses, but 0.0.0.0 is none: browsers take it for a way around the loopback.
    refused(server.client.get("/v2", headers={"X-API-Key": KEY, "Host": f"0.0.0.0:{port}"}), 403, "forbidden")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        sock.sendall(f"GET /v2 HTTP/1.1\r\nHost: 10.0.0.5:{port}\r\nX-API-Key: {KEY}\r\n\r\n".encode())
        status, _, body = read_answer(sock)
    assert (status, json.loads(body)["code"]) == (403, "forbidden")  # other names are added with allowed_hosts
