"""Adding models over HTTP, pinning them, and what the status tells of them."""

import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.conftest import watched
from tests.http.helpers import entry, infer, outputs, refused
from tests.support import nets
from tests.support.server import Server

LIMIT = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An appliance that takes models up to 1 MiB."""
    server = Server(tmp_path_factory.mktemp("adding"), max_model_bytes=LIMIT, body_timeout_ms=3000)
    nets.scale(server.models / "scale.onnx")
    with watched(server):
        yield server


@pytest.fixture
def net(tmp_path: Path) -> bytes:
    """y = 3 x."""
    return nets.scale(tmp_path / "net.onnx", 3.0).read_bytes()


def add(server: Server, name: str, body: Any) -> Any:
    return server.client.post("/api/models", params={"name": name}, content=body)


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), content)
    return buffer.getvalue()


def left(server: Server) -> set[str]:
    return {path.name for path in server.models.iterdir()}


def test_a_file_becomes_a_model(server: Server, net: bytes) -> None:
    answer = add(server, "triple", net)
    assert answer.status_code == 200
    told = answer.json()
    assert (told["name"], told["served"], told["reason"]) == ("triple", True, None)
    assert told["versions"][0]["version"] == "1" and told["versions"][0]["load_ms"] > 0
    assert outputs(infer(server, "triple", entry([1, 2, 3, 4], [1, 4]))) == {"y": [3, 6, 9, 12]}
    assert (server.models / "triple" / "model.onnx").read_bytes() == net
    assert not [name for name in left(server) if name.startswith(".")]


def test_a_zip_becomes_a_model_with_its_settings(server: Server, net: bytes) -> None:
    body = zipped(
        m__1__model_onnx=net, m__2__model_onnx=net, m__model_toml=b'versions = "all"\n', m__labels_txt=b"a\nb\n"
    )
    told = add(server, "both", body).json()
    assert [version["version"] for version in told["versions"]] == ["1", "2"] and told["served"]
    assert server.index()["both", "2"]["state"] == "READY"


def test_one_that_is_loaded_by_hand_is_checked_and_left_alone(server: Server, net: bytes) -> None:
    told = add(server, "later", zipped(model_onnx=net, model_toml=b'load = "manual"\n')).json()
    assert (told["served"], told["reason"]) == (False, "not loaded")
    assert server.index()["later", "1"]["state"] == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"no model at all", "it is text, not an ONNX model"),
        (b"", "empty"),
        (b"PK\x03\x04 but no zip", "the zip"),
        (zipped(model_toml=b"nonsense = 1\n", model_onnx=b"x"), "nonsense"),
        (zipped(readme_txt=b"nothing"), "there is no model file"),
        (zipped(model_pt=b"a pickle"), "model.pt"),
    ],
)
def test_a_refused_model_leaves_nothing(server: Server, body: bytes, words: str) -> None:
    before = left(server)
    refused(add(server, "bad", body), 400, "invalid_input", words)
    assert left(server) == before and ("bad", "1") not in server.index()


def test_one_that_cannot_be_loaded_is_refused_with_the_engines_words(server: Server, net: bytes) -> None:
    before = left(server)
    broken = net.replace(b"Mul", b"Mux")
    assert broken != net
    refused(add(server, "bad", broken), 400, "invalid_input", "Mux")
    assert left(server) == before
    assert outputs(infer(server, "scale", entry([1, 2, 3, 4], [1, 4])))["y"], "the others go on"


@pytest.mark.parametrize("name", ["", "../up", "a/b", "nul", ".hidden", "x" * 129, "dot."])
def test_names_that_are_none(server: Server, net: bytes, name: str) -> None:
    before = left(server)
    refused(add(server, name, net), 400, "invalid_input", "name")
    refused(server.client.post("/api/models", content=net), 400, "invalid_input", "name")
    assert left(server) == before


@pytest.mark.parametrize("name", ["scale", "SCALE"])
def test_a_name_that_is_taken(server: Server, net: bytes, name: str) -> None:
    refused(add(server, name, net), 400, "invalid_input", "already")


def test_too_large(server: Server) -> None:
    before = left(server)
    refused(add(server, "big", bytes(LIMIT + 1)), 413, "input_too_large", str(LIMIT))

    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield bytes(LIMIT // 16)

    refused(add(server, "big", pieces()), 413, "input_too_large", str(LIMIT))
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.onnx", bytes(2 * LIMIT))
    refused(add(server, "big", bomb.getvalue()), 413, "input_too_large", "unpacks")
    packed = server.client.post("/api/models?name=big", content=b"x", headers={"Content-Encoding": "gzip"})
    refused(packed, 415, "unsupported_media", "Content-Encoding")
    assert left(server) == before


def test_one_at_a_time(server: Server, net: bytes) -> None:
    import threading

    go, began = threading.Event(), threading.Event()

    def pieces() -> Iterator[bytes]:
        yield net[:10]
        began.set()
        go.wait(2)
        yield net[10:]

    first: list[Any] = []
    thread = threading.Thread(target=lambda: first.append(add(server, "first", pieces())))
    thread.start()
    began.wait(5)
    server.wait_for(lambda: any(n.startswith(".upload-") for n in left(server)), 5, "the first")
    second = add(server, "second", net)
    go.set()
    thread.join()
    refused(second, 503, "overloaded", "another model")
    assert first[0].status_code == 200 and "second" not in left(server)


def test_one_that_stops_coming(server: Server, net: bytes) -> None:
    from tests.http.helpers import connect, read_answer

    with connect(server) as sock:
        sock.sendall(
            b"POST /api/models?name=stuck HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n" + net[:9]
        )
        status, _, body = read_answer(sock)
    assert status == 400 and b"nothing more of the body came" in body
    server.wait_for(lambda: not any(n.startswith(".") for n in left(server)), 5, "the clean-up")


def test_pin_and_unpin(start: Callable[..., Server]) -> None:
    server = start(lambda s: nets.scale(s.models / "scale.onnx"))
    assert server.status()["models"][0]["pinned"] is False
    for _ in range(2):
        answer = server.client.post("/api/models/scale/pin")
        assert answer.json() == {"name": "scale", "pinned": True}
    assert server.status()["models"][0]["pinned"] is True
    assert server.client.post("/v2/repository/models/scale/unload").status_code == 200, "by hand it may still go"
    assert server.client.post("/api/models/scale/unpin").json() == {"name": "scale", "pinned": False}
    assert server.status()["models"][0]["pinned"] is False
    refused(server.client.post("/api/models/nothing/pin"), 404, "model_not_found", "nothing")


def test_what_the_status_tells_for_the_dashboard(start: Callable[..., Server]) -> None:
    server = start(lambda s: nets.scale(s.models / "scale.onnx"))
    for _ in range(20):
        infer(server, "scale", entry([1, 2, 3, 4], [1, 4]))
    refused(infer(server, "scale", entry([1], [1, 1])), 400, "invalid_input")
    status = server.wait_for(lambda: found if (found := server.status())["traffic"]["requests_per_s"] else None)
    assert status["traffic"]["errors"] == {"invalid_input": 1}
    assert 0 < status["traffic"]["p50_ms"] <= status["traffic"]["p99_ms"]
    version = status["models"][0]["versions"][0]
    assert (version["backend"], version["instances"], version["mean_batch"]) == ("onnx", 1, 1.0)
    assert version["cost"]["source"] == "measured"
    assert [run["batch"] for run in version["cost"]["runs"]] == [1, 2, 4, 8, 16]
    assert all(run["bytes"] >= 1 << 20 for run in version["cost"]["runs"])
    memory = status["memory"]["cpu"]
    assert memory["total"] == memory["ours"] + memory["others"] + memory["free"]
    assert memory["reserve"] == memory["total"] - memory["ceiling"]
    assert memory["models"] == {"scale": version["memory_bytes"]}


def test_the_newest_error_of_a_model(start: Callable[..., Server]) -> None:
    from tests.http.conftest import fake

    server = start(lambda s: fake(s, "faulty", "fail_on = 13.0"))
    assert server.status()["models"][0]["versions"][0]["last_error"] is None
    refused(infer(server, "faulty", entry([13], [1, 1])), 500, "model_error")
    found = server.status()["models"][0]["versions"][0]["last_error"]
    assert found["code"] == "model_error" and found["message"] and found["at"] > 1.7e9


def test_history(server: Server) -> None:
    found = server.wait_for(lambda: f if len((f := server.client.get("/api/history").json())["at"]) >= 2 else None)
    lengths = {len(found[name]) for name in found if name not in ("every_s", "memory")}
    lengths |= {len(column) for device in found["memory"].values() for column in device.values()}
    assert lengths == {len(found["at"])} and found["every_s"] == 5
    newer = server.client.get("/api/history", params={"since": found["at"][-2]}).json()
    assert newer["at"][0] == found["at"][-1]
    refused(server.client.get("/api/history?since=yesterday"), 400, "invalid_input", "since")
