"""The models folder while the appliance runs: every layout is served, every change noticed, none costs an answer."""

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.process.helpers import Callers, answer, code, ending, fake, infer, restarted
from tests.support import nets
from tests.support.server import Server

PBTXT = """
name: "{name}"
platform: "onnxruntime_onnx"
max_batch_size: {batch}
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ 4 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 4 ] {more} }} ]
{rest}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One appliance for tests that each use models of their own."""
    with Server(tmp_path_factory.mktemp("folder"), queue_timeout_ms=20_000) as running:
        yield running


def state(server: Server, name: str, version: str = "1") -> str:
    return server.index().get((name, version), {}).get("state", "none")


def ready(server: Server, name: str, version: str = "1") -> None:
    server.wait_for(lambda: state(server, name, version) == "READY", 30, f"{name} {version}")


def put(made: Callable[[Path], Path], path: Path) -> Path:
    """A model file that appears whole, as a careful program puts it there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = made(path.with_name(f".{path.name}"))
    return draft.replace(path)


def test_layouts(server: Server) -> None:
    models = server.models
    nets.scale(models / "numbered/1/model.onnx", 2)
    nets.scale(models / "plain/model.onnx", 3)
    nets.scale(models / "bare.onnx", 4)
    for version in (1, 2, 3):
        nets.scale(models / f"triton/{version}/model.onnx", 10 * version)
    (models / "triton/words.txt").write_text("one\ntwo\nthree\nfour\n")
    (models / "triton/config.pbtxt").write_text(
        PBTXT.format(
            name="triton",
            batch=8,
            more='label_filename: "words.txt"',
            rest="version_policy { specific { versions: [ 1, 3 ] } }",
        )
    )
    nets.scale(models / "kept/1/model.onnx", 1)
    nets.scale(models / "kept/2/model.onnx", 2)
    (models / "kept/config.pbtxt").write_text(
        PBTXT.format(name="kept", batch=0, more="", rest="version_policy { latest { num_versions: 1 } }").replace(
            "[ 4 ]", "[ -1, 4 ]"
        )
    )
    ready(server, "triton", "3")
    ready(server, "kept", "2")
    for name, factor in (("numbered", 2), ("plain", 3), ("bare", 4), ("triton", 30), ("kept", 2)):
        ready(server, name, {"triton": "3", "kept": "2"}.get(name, "1"))
        assert answer(infer(server.client, name, 1)) == [factor] * 4, name
    assert {v for n, v in server.index() if n == "triton"} == {"1", "3"}
    assert {v for n, v in server.index() if n == "kept"} == {"2"}
    one = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    got = server.client.post("/v2/models/triton/versions/1/infer", json=one)
    assert answer(got) == [10, 20, 30, 40]
    assert server.client.post("/v2/models/triton/versions/2/infer", json=one).status_code == 404
    config = server.client.get("/v2/models/triton/config").json()
    assert config["max_batch_size"] == 8
    labelled = {**one, "outputs": [{"name": "y", "parameters": {"classification": 1}}]}
    got = server.client.post("/v2/models/triton/infer", json=labelled)
    assert "four" in got.json()["outputs"][0]["data"][0]


def test_a_new_version_takes_over_without_a_gap(server: Server) -> None:
    """Under load the answers change from the old ones to the new ones once, and none is lost."""
    nets.scale(server.models / "moving/1/model.onnx", 2)
    ready(server, "moving")
    with Callers(server.url, "moving", 4) as callers:
        server.wait_for(callers.since(0, 50), 20, "answers of the old one")
        staged = nets.scale(server.models / "moving/.2/model.onnx", 3).parent
        staged.rename(server.models / "moving/2")
        server.wait_for(lambda: state(server, "moving", "2") == "READY", 20, "the new one")
        server.wait_for(lambda: state(server, "moving", "1") == "none", 20, "the old one's end")
        server.wait_for(callers.since(len(callers.outcomes), 50), 20, "answers of the new one")
    assert {status for _, status, _ in callers.outcomes} == {200}
    factors = [got[0] / value for value, _, got in sorted(callers.outcomes)]
    assert set(factors) == {2.0, 3.0}
    # Four callers at once: an answer of the old one may come in after the first one of the new.
    assert factors.index(3.0) > len(factors) - 1 - factors[::-1].index(2.0) - 8
    assert factors[-1] == 3.0


def test_those_that_wait_for_the_old_one_are_answered(server: Server) -> None:
    """A version with a queue before it is let go when the queue is empty, not before."""
    fake(server.models, "queued", run_ms=150, batch=False)
    folder = server.models / "queued"
    (folder / "1").mkdir()
    (folder / "1/keep").write_text("")
    ready(server, "queued")
    found: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: found.append(infer(server.client, "queued", 1))) for _ in range(20)]
    for thread in threads:
        thread.start()
    server.wait_for(lambda: server.status()["queue"]["waiting"] > 10, 10, "the queue")
    (folder / ".2").mkdir()
    (folder / ".2/keep").write_text("")
    (folder / ".2").rename(folder / "2")
    for thread in threads:
        thread.join(30)
    assert [answer(got) for got in found] == [[2.0] * 4] * 20
    ready(server, "queued", "2")
    server.wait_for(lambda: state(server, "queued", "1") == "none", 20, "the old one's end")
    # The same when the whole model goes: what was taken is answered, what comes later is not.
    found.clear()
    threads = [threading.Thread(target=lambda: found.append(infer(server.client, "queued", 1))) for _ in range(20)]
    for thread in threads:
        thread.start()
    server.wait_for(lambda: server.status()["queue"]["waiting"] > 10, 10, "the queue")
    shutil.rmtree(folder)
    for thread in threads:
        thread.join(30)
    assert [answer(got) for got in found] == [[2.0] * 4] * 20
    server.wait_for(lambda: infer(server.client, "queued", 1).status_code == 404, 10, "its end")


def test_a_broken_new_version_leaves_the_old_one(server: Server) -> None:
    nets.scale(server.models / "steady/1/model.onnx", 2)
    ready(server, "steady")
    (server.models / "steady/.2").mkdir()
    (server.models / "steady/.2/model.onnx").write_bytes(b"this is no model")
    (server.models / "steady/.2").rename(server.models / "steady/2")
    entry = server.wait_for(
        lambda: (e := server.index().get(("steady", "2"))) and e["reason"] and e, 20, "the new one's error"
    )
    assert entry["state"] == "UNAVAILABLE"
    assert answer(infer(server.client, "steady", 1)) == [2.0] * 4
    assert state(server, "steady", "1") == "READY"
    # Mended, it takes over.
    put(lambda path: nets.scale(path, 5), server.models / "steady/2/model.onnx")
    ready(server, "steady", "2")
    assert answer(infer(server.client, "steady", 1)) == [5.0] * 4


def test_a_file_is_replaced_in_place(server: Server) -> None:
    path = server.models / "changing/model.onnx"
    nets.scale(path, 2)
    ready(server, "changing")
    put(lambda draft: nets.scale(draft, 7), path)
    server.wait_for(lambda: answer(infer(server.client, "changing", 1)) == [7.0] * 4, 20, "the new file")
    put(lambda draft: draft.write_bytes(b"\x08") and draft, path)
    server.wait_for(lambda: server.index()["changing", "1"]["reason"], 20, "the error")
    assert answer(infer(server.client, "changing", 1)) == [7.0] * 4
    assert server.client.get("/v2/models/changing/ready").status_code == 200


def test_removed_while_requests_run(server: Server) -> None:
    nets.scale(server.models / "leaving/1/model.onnx", 2)
    ready(server, "leaving")
    with Callers(server.url, "leaving", 4, retry=False) as callers:
        server.wait_for(callers.since(0, 50), 20, "answers")
        shutil.rmtree(server.models / "leaving")
        server.wait_for(callers.ended, 20, "the callers' end")
    last = [one for one in callers.outcomes if one[1] != 200]
    assert len(last) == 4 and {status for _, status, _ in last} == {404}
    assert all(got == [2.0 * value] * 4 for value, status, got in callers.outcomes if status == 200)
    assert not [name for name, _ in server.index() if name == "leaving"]


def test_load_and_unload(server: Server) -> None:
    nets.scale(server.models / "asked/1/model.onnx", 2)
    (server.models / "asked/model.toml").write_text('load = "manual"\n')
    server.wait_for(lambda: state(server, "asked") == "UNAVAILABLE", 20, "the model")
    assert server.index()["asked", "1"]["reason"] == "not loaded"
    got = infer(server.client, "asked", 1)
    assert got.status_code == 404 and code(got) == "model_not_found" and "/load" in got.text
    assert server.client.post("/v2/repository/models/asked/load").status_code == 200
    assert answer(infer(server.client, "asked", 1)) == [2.0] * 4
    assert server.client.post("/v2/repository/models/asked/load").status_code == 200
    assert server.client.post("/v2/repository/models/asked/unload").status_code == 200
    assert infer(server.client, "asked", 1).status_code == 404
    assert server.client.get("/v2/models/asked/ready").status_code in (404, 503)
    assert server.client.post("/v2/repository/models/asked/unload").status_code == 200
    assert server.client.post("/v2/repository/models/nothing/load").status_code == 404
    assert server.client.post("/v2/repository/models/nothing/unload").status_code == 404


def test_the_others_serve_while_one_loads(server: Server) -> None:
    nets.scale(server.models / "prompt/1/model.onnx")
    ready(server, "prompt")
    fake(server.models, "crawling", load_ms=3000)
    server.wait_for(lambda: state(server, "crawling") == "LOADING", 20, "the slow one")
    assert server.client.get("/v2/models/prompt/ready").status_code == 200
    assert answer(infer(server.client, "prompt", 1)) == [2.0] * 4
    assert server.client.post("/v2/repository/models/crawling/load").status_code == 200
    assert state(server, "crawling") == "READY"


def test_a_required_model_decides_readiness(folder: Path) -> None:
    nets.scale(folder / "models/scale/1/model.onnx")
    fake(folder / "models", "needed", "required = true", load_error="not today")
    fake(folder / "models", "spare", load_error="not today")
    server = Server(folder)
    with ending(server):
        server.start(ready=False)
        server.wait_for(lambda: server.index().get(("needed", "1"), {}).get("reason"), 20, "its error")
        ready(server, "scale")
        got = server.client.get("/ready")
        assert got.status_code == 503 and list(got.json()["missing"]) == ["needed"]
        assert server.client.get("/v2/health/ready").status_code == 503
        assert server.status()["state"] == "degraded"
        assert answer(infer(server.client, "scale", 1)) == [2.0] * 4
        fake(folder / "models", "needed", "required = true")
        server.wait_ready(20)
        assert server.client.get("/v2/health/ready").status_code == 200


def test_everything_is_as_before_after_a_restart(folder: Path) -> None:
    """Also what the API was last told, and an older version that serves beside a broken newer one."""
    models = folder / "models"
    nets.scale(models / "plain/model.onnx", 3)
    nets.scale(models / "older/1/model.onnx", 4)
    for name in ("loaded", "waiting"):
        nets.scale(models / f"{name}/1/model.onnx", 5)
        (models / f"{name}/model.toml").write_text('load = "manual"\n')
    nets.scale(models / "unloaded/1/model.onnx", 6)
    nets.scale(models / "spoilt/1/model.onnx", 7)
    nets.scale(models / "overwritten/1/model.onnx", 8)
    with Server(folder) as server:
        assert server.client.post("/v2/repository/models/loaded/load").status_code == 200
        assert server.client.post("/v2/repository/models/unloaded/unload").status_code == 200
        (models / "older/.2").mkdir()
        (models / "older/.2/model.onnx").write_bytes(b"this is no model")
        (models / "older/.2").rename(models / "older/2")
        (models / "spoilt/model.toml").write_text("instances = 'many'\n")
        (models / "overwritten/1/model.onnx").write_bytes(b"this is no model")

        def noticed() -> bool:
            index = server.index()
            return all(
                index.get(key, {}).get("reason") for key in (("older", "2"), ("spoilt", "1"), ("overwritten", "1"))
            )

        server.wait_for(noticed, 20, "the errors")

        def picture() -> dict[str, Any]:
            names = ("plain", "older", "loaded", "waiting", "unloaded", "spoilt")
            return {name: (got := infer(server.client, name, 1)).status_code == 200 and answer(got) for name in names}

        before = picture()
        assert before == {
            "plain": [3.0] * 4,
            "older": [4.0] * 4,
            "loaded": [5.0] * 4,
            "waiting": False,
            "unloaded": False,
            "spoilt": [7.0] * 4,
        }
        index = server.index()
        assert answer(infer(server.client, "overwritten", 1)) == [8.0] * 4
        os.kill(server.engine_pid, signal.SIGKILL)
        restarted(server, 1)
        assert picture() == before
        # Its old file is gone for good: it is said at once, not at a deadline.
        got = infer(server.client, "overwritten", 1)
        assert got.status_code == 404 and "not served" in got.text
        changed = index.pop(("overwritten", "1")), (now := server.index()).pop(("overwritten", "1"))
        assert [entry["state"] for entry in changed] == ["READY", "UNAVAILABLE"]
        assert now == index


def test_the_folder_itself_goes_and_comes_back(folder: Path) -> None:
    nets.scale(folder / "models/scale/1/model.onnx", 2)
    with Server(folder) as server:
        shutil.move(server.models, folder / "aside")
        server.wait_for(lambda: not server.index(), 30, "its end")
        shutil.rmtree(server.models, ignore_errors=True)
        nets.scale(folder / "aside/zoom/1/model.onnx", 3)
        shutil.copytree(folder / "aside", server.models, dirs_exist_ok=True)
        ready(server, "scale")
        ready(server, "zoom")
        nets.scale(server.models / "late.onnx", 4)
        ready(server, "late")
