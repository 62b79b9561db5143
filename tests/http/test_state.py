"""Health, state, events, metrics, docs, and what happens when there is too much to do."""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.conftest import fake, watched
from tests.http.helpers import entry, infer, outputs, patiently, refused, state_of, wait_for_state
from tests.support import nets
from tests.support.server import Server

ONE = "[warmup]\nenabled = false\n[batching]\nmax = 1\n"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Callers beside the test itself."""
    with ThreadPoolExecutor(16) as made:
        yield made


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An appliance whose models come and go."""
    server = Server(tmp_path_factory.mktemp("changing"))
    nets.scale(server.models / "scale.onnx")
    with watched(server):
        yield server


def slow(
    pool: ThreadPoolExecutor, server: Server, name: str, value: float = 1.0, model: str = "slow", **headers: str
) -> "Future[httpx.Response]":
    """A request that takes its time, under a name."""
    return pool.submit(infer, server, model, entry([value], [1, 1]), headers={"X-Request-ID": name, **headers})


# --- health and state -------------------------------------------------------------------------------------------


def test_health_and_readiness(tensors: Server) -> None:
    assert tensors.client.get("/health").json() == {"status": "ok"}
    assert tensors.client.get("/ready").json() == {"ready": True, "missing": {}}
    assert tensors.client.get("/v2/health/live").json() == {"live": True}
    assert tensors.client.get("/v2/health/ready").json() == {"ready": True}
    home = tensors.client.get("/")
    assert home.status_code == 200 and home.headers["content-type"].startswith("text/html")


def test_a_required_model_that_fails_keeps_it_from_being_ready(start: Callable[..., Server]) -> None:
    def prepare(server: Server) -> None:
        fake(server, "needed", 'load_error = "words of mine"', "required = true")
        fake(server, "other")

    server = start(prepare, ready=False)
    server.wait_for(lambda: server.index().get(("needed", "1"), {}).get("reason"), 30, "the failure")
    server.wait_for(lambda: server.index().get(("other", "1"), {}).get("state") == "READY", 30, "the other one")
    patiently(lambda: outputs(infer(server, "other", entry([2], [1, 1]))) == {"y": [4]})
    answer = server.client.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["ready"] is False and "words of mine" in answer.json()["missing"]["needed"]
    assert server.client.get("/v2/health/ready").status_code == 503
    assert server.client.get("/health").status_code == 200 and server.client.get("/v2/health/live").status_code == 200
    assert server.status()["state"] == "degraded"


def test_loading_is_told_apart_from_unknown(start: Callable[..., Server]) -> None:
    server = start(lambda s: fake(s, "late", "load_ms = 4000"), ready=False)
    server.wait_for(lambda: ("late", "1") in server.index(), 30, "the model in the index")
    answer = infer(server, "late", entry([2], [1, 1]))
    if answer.status_code != 200:
        refused(answer, 503, "warming_up", "'late'")
        assert int(answer.headers["retry-after"]) >= 1
        refused(server.client.post("/predict/late", json={"inputs": {"x": [[1]]}}), 503, "warming_up")
        assert server.client.get("/v2/models/late/ready").status_code == 503
        assert server.client.get("/ready").json()["missing"] == {"late": "being loaded"}
    server.wait_ready()
    assert outputs(infer(server, "late", entry([2], [1, 1]))) == {"y": [4]}


def test_status(tensors: Server) -> None:
    status = tensors.status()
    assert {
        "name", "version", "state", "address", "started_at", "device", "devices", "engine", "queue", "models",
        "notes",
    } <= set(status)  # fmt: skip
    assert status["address"] == tensors.url
    assert status["state"] == "degraded"  # one of the models is broken
    assert status["device"] == {"policy": "cpu", "running": "cpu", "reason": None}
    assert status["engine"]["state"] == "running" or status["engine"]["pid"]
    assert status["engine"]["restarts"] == 0 and status["engine"]["deaths"] == []
    assert "onnxruntime" in " ".join(status["engine"]["runtimes"])
    assert {"waiting", "running", "paused"} == set(status["queue"])
    models = {m["name"]: m for m in status["models"]}
    assert models["scale"]["ready"] and models["scale"]["task"] == "tensors" and not models["scale"]["embedded"]
    assert models["broken"]["error"] and not models["broken"]["ready"]
    assert models["manual"]["wanted"] is False
    assert [v["version"] for v in models["versions"]["versions"]] == ["1", "2"]
    (device, *_) = status["devices"]
    assert device["memory_total"] > 0
    before = models["scale"]["versions"][0]["requests"]
    infer(tensors, "scale", entry([1, 2, 3, 4], [1, 4]))
    after = next(m for m in tensors.status()["models"] if m["name"] == "scale")["versions"][0]["requests"]
    assert after == before + 1


def test_where_a_request_stands(tensors: Server, pool: ThreadPoolExecutor) -> None:
    first = slow(pool, tensors, "st-1")
    wait_for_state(tensors, "st-1", ["running"])
    second = slow(pool, tensors, "st-2", 2.0)
    wait_for_state(tensors, "st-2", ["queued"])
    told = tensors.client.get("/api/requests/st-2").json()
    assert told["model"] == "slow" and told["version"] == "1" and told["position"] == 1
    assert told["run_ms"] is None and told["error"] is None and told["age_ms"] >= 0
    assert first.result().headers["x-queue-position"] == "0"
    assert second.result().headers["x-queue-position"] == "1"
    assert outputs(second.result()) == {"y": [4]}
    done = tensors.client.get("/api/requests/st-2").json()
    assert done["state"] == "done" and done["position"] == 0 and done["run_ms"] >= 2400
    refused(infer(tensors, "faulty", entry([13.0], [1, 1]), headers={"X-Request-ID": "st-3"}), 500, "model_error")
    failed = tensors.client.get("/api/requests/st-3").json()
    assert failed["state"] == "failed" and failed["error"]["code"] == "model_error"
    refused(tensors.client.get("/api/requests/nobody"), 404, "not_found", "nobody")


# --- too much to do ---------------------------------------------------------------------------------------------


def test_a_full_queue(tensors: Server, pool: ThreadPoolExecutor) -> None:
    running = slow(pool, tensors, "q-0")
    wait_for_state(tensors, "q-0", ["running"])
    waiting = [slow(pool, tensors, f"q-{n}", float(n)) for n in (1, 2)]
    for n in (1, 2):
        wait_for_state(tensors, f"q-{n}", ["queued"])
    answer = slow(pool, tensors, "q-4").result()  # two may wait for this model
    refused(answer, 429, "queue_full", "'slow'", "2")
    assert 1 <= int(answer.headers["retry-after"]) <= 120
    by_task = tensors.client.post("/predict/slow", json={"inputs": {"x": [[1.0]]}})
    refused(by_task, 429, "queue_full")
    assert by_task.json()["error"]["retry_after_ms"] >= 1000
    assert tensors.status()["queue"]["waiting"] == 2
    assert outputs(running.result()) == {"y": [2]}
    assert [outputs(w.result()) for w in waiting] == [{"y": [2]}, {"y": [4]}]


def test_waited_too_long(tensors: Server, pool: ThreadPoolExecutor) -> None:
    running = slow(pool, tensors, "w-0")
    wait_for_state(tensors, "w-0", ["running"])
    late = infer(tensors, "slow", entry([1.0], [1, 1]), parameters={"timeout": 50_000})
    refused(late, 503, "queue_timeout", "'slow'", "waited")
    assert int(late.headers["retry-after"]) >= 1
    refused(slow(pool, tensors, "w-1", **{"X-Timeout-Ms": "50"}).result(), 503, "queue_timeout")
    assert outputs(running.result()) == {"y": [2]}


def test_ran_too_long(tensors: Server) -> None:
    """The model's own limit, and the request's, which can only be shorter. The lane is free again afterwards."""
    x = entry([1.0], [1, 1])
    refused(infer(tensors, "endless", x), 504, "inference_timeout", "'endless'", "1 s")
    refused(infer(tensors, "endless", x, headers={"X-Timeout-Ms": "600000"}), 504, "inference_timeout", "1 s")
    refused(infer(tensors, "endless", x, headers={"X-Timeout-Ms": "500"}), 504, "inference_timeout", "0.5 s")
    by_task = tensors.client.post("/predict/endless", json={"inputs": {"x": [[1.0]]}})
    refused(by_task, 504, "inference_timeout")
    assert tensors.status()["engine"]["restarts"] == 0


def test_failures_of_the_model(tensors: Server) -> None:
    refused(infer(tensors, "faulty", entry([14.0], [1, 1])), 503, "overloaded", "out of memory")  # it was run twice
    refused(infer(tensors, "faulty", entry([13.0], [1, 1])), 500, "model_error", "failed")
    assert outputs(infer(tensors, "faulty", entry([12.0], [1, 1]))) == {"y": [24]}
    assert tensors.status()["engine"]["restarts"] == 0


def test_ends_within_requests(start: Callable[..., Server], pool: ThreadPoolExecutor) -> None:
    """Told to stop, it finishes what runs, answers what waits, and takes nothing new."""
    server = start(lambda s: fake(s, "slow", "run_ms = 1000", ONE))
    running = slow(pool, server, "e-0", 3.0)
    wait_for_state(server, "e-0", ["running"])
    waiting = slow(pool, server, "e-1")
    wait_for_state(server, "e-1", ["queued"])
    assert server.stop() == 0
    assert outputs(running.result()) == {"y": [6]}
    refused(waiting.result(), 503, "paused")


# --- events -----------------------------------------------------------------------------------------------------


class Listener:
    """Reads ``/api/events`` in a thread of its own."""

    def __init__(self, server: Server) -> None:
        self.events: list[tuple[str, Any]] = []
        self.ended = threading.Event()
        self.content_type = ""
        self._client = httpx.Client(base_url=server.url, timeout=60, trust_env=False)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._client, self._client.stream("GET", "/api/events") as answer:
            self.content_type = answer.headers["content-type"]
            kind = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    self.events.append((kind, json.loads(line[6:])))
        self.ended.set()

    def wait_for(self, check: Callable[[str, Any], bool]) -> Any:
        """The first event that fits."""
        return patiently(lambda: next((data for kind, data in list(self.events) if check(kind, data)), None))


def test_events(changing: Server) -> None:
    listener = Listener(changing)
    status = listener.wait_for(lambda kind, _: kind == "status")
    assert listener.content_type.startswith("text/event-stream")
    assert status["name"] == "inference-appliance" and status["models"][0]["name"] == "scale"
    changing.client.post("/v2/repository/models/scale/unload")
    assert listener.wait_for(lambda kind, data: kind == "model" and data["name"] == "scale")
    listener.wait_for(lambda kind, data: kind == "status" and not data["models"][0]["ready"])
    told = len([1 for kind, _ in listener.events if kind == "model"])
    changing.client.post("/v2/repository/models/scale/load")
    patiently(lambda: len([1 for kind, _ in listener.events if kind == "model"]) > told)
    listener.wait_for(lambda kind, data: kind == "status" and data["models"][0]["ready"])
    nets.scale(changing.models / "new.onnx", 9.0)
    listener.wait_for(lambda kind, data: kind == "model" and data["name"] == "new")
    assert outputs(infer(changing, "new", entry([1, 1, 1, 1], [1, 4]))) == {"y": [9] * 4}


def test_events_end_when_it_stops(start: Callable[..., Server]) -> None:
    server = start(lambda s: fake(s, "double"))
    listeners = [Listener(server) for _ in range(3)]
    for listener in listeners:
        listener.wait_for(lambda kind, _: kind == "status")
    server.client.get("/health")
    assert server.stop(signal.SIGTERM) == 0
    for listener in listeners:
        assert listener.ended.wait(20)


# --- metrics and docs -------------------------------------------------------------------------------------------


def samples(server: Server) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """(name, labels) → value, read by Prometheus' own parser."""
    answer = server.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(answer.text)
        for s in family.samples
    }


def test_metrics(tensors: Server) -> None:
    def of(name: str, **labels: str) -> float:
        return samples(tensors).get((name, frozenset(labels.items())), 0.0)

    engine = tensors.client.get("/api/status").json()["engines"][0]["id"]
    fixed = {"model": "fixed", "version": "1"}
    ok = of("appliance_requests_total", **fixed, code="ok")
    took = of("appliance_request_seconds_count", **fixed)
    wrong = of("appliance_refused_total", code="invalid_input")
    failed = of("appliance_requests_total", model="faulty", version="1", code="model_error")
    for _ in range(3):
        infer(tensors, "fixed", entry([1, 2, 3, 4, 5, 6], [2, 3]))
    for _ in range(2):
        infer(tensors, "fixed", entry([1], [1]))
    infer(tensors, "faulty", entry([13.0], [1, 1]))
    assert of("appliance_requests_total", **fixed, code="ok") == ok + 3
    assert of("appliance_request_seconds_count", **fixed) == took + 3
    assert of("appliance_run_seconds_count", **fixed) == of("appliance_batch_rows_count", **fixed)
    assert of("appliance_requests_total", model="faulty", version="1", code="model_error") == failed + 1
    assert of("appliance_refused_total", code="invalid_input") >= wrong + 2
    assert of("appliance_ready") == 1 and of("appliance_engine_up", engine=engine) == 1
    assert of("appliance_engine_restarts_total", engine=engine, reason="crash") == 0
    assert of("appliance_models", state="READY") == sum(e["state"] == "READY" for e in tensors.index().values())
    assert of("appliance_queue_length") == 0 and of("appliance_body_bytes") == 0
    assert of("appliance_host_memory_bytes") > 1 << 20
    assert of("appliance_engine_memory_bytes", engine=engine) > 1 << 20
    assert of("appliance_device_memory_bytes", device="cpu", kind="total") > 1 << 28


def test_docs_need_no_network(tensors: Server) -> None:
    page = tensors.client.get("/docs")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    links = re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)["']""", page.text)
    assert len(links) >= 4
    assert all(link.startswith("/") and not link.startswith("//") for link in links), links
    assert "://" not in page.text
    for link in links:
        asset = tensors.client.get(link)
        assert asset.status_code == 200 and len(asset.content) > 100, link
    style = next(link for link in links if link.endswith(".css"))
    assert not re.search(r"url\(['\"]?(https?:)?//", tensors.client.get(style).text)


def test_openapi_documents_every_route(tensors: Server) -> None:
    document = tensors.client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    expected = {
        ("post", "/v2/models/{model}/infer"), ("post", "/v2/models/{model}/versions/{version}/infer"),
        ("post", "/predict/{model}"), ("get", "/v2"), ("get", "/v2/health/live"), ("get", "/v2/health/ready"),
        ("get", "/v2/models/{model}"), ("get", "/v2/models/{model}/versions/{version}"),
        ("get", "/v2/models/{model}/ready"), ("get", "/v2/models/{model}/versions/{version}/ready"),
        ("get", "/v2/models/{model}/config"), ("get", "/v2/models/{model}/versions/{version}/config"),
        ("get", "/v2/models/{model}/stats"), ("get", "/v2/models/{model}/versions/{version}/stats"),
        ("get", "/v2/models/stats"), ("post", "/v2/repository/index"),
        ("post", "/v2/repository/models/{model}/load"), ("post", "/v2/repository/models/{model}/unload"),
        ("get", "/health"), ("get", "/ready"), ("get", "/api/status"), ("get", "/api/requests/{request_id}"),
        ("post", "/api/pause"), ("post", "/api/resume"), ("post", "/api/engine/restart"),
        ("get", "/api/events"), ("get", "/metrics"),
        ("post", "/api/shutdown"), ("post", "/api/settings/reload"), ("post", "/api/session"),
        ("get", "/api/history"), ("get", "/api/doctor"),
        ("post", "/v1/chat/completions"), ("post", "/v1/completions"), ("post", "/v1/embeddings"),
        ("post", "/v1/rerank"), ("get", "/v1/models"), ("get", "/v1/models/{model}"),
        ("post", "/v2/models/{model}/generate"), ("post", "/v2/models/{model}/generate_stream"),
        ("post", "/v2/models/{model}/versions/{version}/generate"),
        ("post", "/v2/models/{model}/versions/{version}/generate_stream"),
        ("post", "/api/models"), ("post", "/api/models/{model}/pin"), ("post", "/api/models/{model}/unpin"),
    }  # fmt: skip
    documented = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert documented == expected
    for method, path in documented:
        assert document["paths"][path][method]["summary"], path
    for path in ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer", "/predict/{model}"):
        operation = document["paths"][path]["post"]
        assert operation["requestBody"]["content"]["application/json"]["example"]
        assert operation["responses"]["200"]["content"]["application/json"]["example"]
        assert {"400", "404", "413", "415", "429", "500", "503", "504", "507"} <= set(operation["responses"])
        named = {p["name"] for p in operation["parameters"]}
        assert {"model", "X-Request-ID", "X-Priority", "X-Timeout-Ms"} <= named
    assert "multipart/form-data" in document["paths"]["/predict/{model}"]["post"]["requestBody"]["content"]


def test_the_example_of_the_docs_is_what_the_server_takes(pictures: Server) -> None:
    document = pictures.client.get("/openapi.json").json()
    example = document["paths"]["/v2/models/{model}/infer"]["post"]["requestBody"]["content"]["application/json"][
        "example"
    ]
    model = pictures.client.get("/v2/models/classify").json()
    assert example["inputs"][0]["name"] == model["inputs"][0]["name"]
    assert example["inputs"][0]["datatype"] == model["inputs"][0]["datatype"]
    assert example["outputs"][0]["name"] == model["outputs"][0]["name"]


def test_the_state_of_an_unfinished_request_is_not_kept_for_ever(tensors: Server) -> None:
    for n in range(1100):
        infer(tensors, "scale", entry([1, 2, 3, 4], [1, 4]), headers={"X-Request-ID": f"many-{n}"})
    assert state_of(tensors, "many-1099") == "done"
    assert state_of(tensors, "many-0") is None


def test_every_route_is_documented_with_an_example(embedded: Server) -> None:
    paths = embedded.client.get("/openapi.json").json()["paths"]
    without = [
        f"{method} {path}"
        for path, operations in paths.items()
        for method, operation in operations.items()
        if not operation["summary"]
        or not any("example" in kind for kind in operation["responses"]["200"]["content"].values())
    ]
    assert without == []
