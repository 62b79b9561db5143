"""The monitoring pack: rules and dashboard against Prometheus' own tools, and a Prometheus that asks an appliance.

Debian's package ``prometheus`` has both programs; without them what needs them is skipped.
"""

import json
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from appliance.metrics import Metrics
from tests.http.conftest import fake
from tests.http.helpers import entry, infer, patiently
from tests.support import nets, speech
from tests.support.server import ROOT, Server

PACK = ROOT / "assets" / "monitoring"
RULES = PACK / "alerts.yml"
DASHBOARD: dict[str, Any] = json.loads((PACK / "grafana-dashboard.json").read_text("utf-8"))

promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (package prometheus) is not here")

# What cannot have data on a machine without a GPU.
ONLY_A_GPU_TELLS = ("appliance_device_temperature_celsius", "appliance_device_power_watts",
                    "appliance_device_power_limit_watts")  # fmt: skip


def run(*command: str, send: bytes | None = None) -> str:
    """What a tool says; it must end well."""
    done = subprocess.run(command, input=send, capture_output=True, timeout=60, check=False)
    words = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, words
    return words


def queries() -> Iterator[tuple[str, str]]:
    """(panel's title, query) of the dashboard."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def variables() -> Iterator[tuple[str, str]]:
    """(name, query) of the dashboard's variables that Prometheus is asked for."""
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def alerts() -> dict[str, str]:
    """Each alert's name and the text of its rule."""
    _, *parts = re.split(r"(?m)^ +- alert: (?=\w+$)", RULES.read_text("utf-8"))
    return dict(part.split("\n", 1) for part in parts)


# --- what needs no Prometheus ----------------------------------------------------------------------------------


def test_the_pack_asks_only_for_what_there_is() -> None:
    known: set[str] = set()
    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        known |= {f"{name}{end}" for end in ("_bucket", "_sum", "_count")} if family.type == "histogram" else {name}
    asked = " ".join([*alerts().values(), *(q for _, q in queries()), *(q for _, q in variables())])
    named = set(re.findall(r"\bappliance_\w+", asked))
    assert len(named) > 30
    assert named <= known


def test_every_alert_stands_in_the_page_and_nothing_else() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    assert re.findall(r"(?m)^### (\w+)$", page) == list(alerts())
    for name, rule in alerts().items():
        assert re.search(r"severity: (critical|warning)\n", rule), name
        assert "summary: " in rule and "description: " in rule, name


def test_the_dashboard_s_panels_are_told_apart_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        places = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not places & taken, panel["title"]
        taken |= places
    for panel in panels:
        for part in [panel, *panel.get("targets", ())]:
            assert part.get("datasource", {"uid": "${datasource}"})["uid"] == "${datasource}", panel["title"]


# --- promtool --------------------------------------------------------------------------------------------------


@promtool
def test_the_rules_and_the_example_are_good_ones() -> None:
    told = run("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert f"{len(alerts())} rules found" in told
    assert "SUCCESS" in run("promtool", "check", "config", str(PACK / "prometheus.yml"))


@promtool
def test_each_alert_fires_when_it_should_and_only_then() -> None:
    tests = ROOT / "tests" / "http" / "alerts_test.yml"
    assert set(re.findall(r"alertname: (\w+)", tests.read_text("utf-8"))) == set(alerts())
    assert "SUCCESS" in run("promtool", "test", "rules", str(tests))


@promtool
def test_promtool_finds_no_fault_in_the_metrics(watched_appliance: Server) -> None:
    page = watched_appliance.client.get("/metrics").content
    assert run("promtool", "check", "metrics", send=page) == ""


# --- a Prometheus that asks an appliance -----------------------------------------------------------------------


class Prometheus:
    """A Prometheus with the pack's example and rules, asking one appliance every second."""

    def __init__(self, folder: Path, target: str, key: str = "") -> None:
        example = (PACK / "prometheus.yml").read_text("utf-8")
        assert example.count("127.0.0.1:11711") == 1 and example.count(": 15s") == 2
        if key:
            example, lines = re.subn(r"(?m)^    # (?=authorization|  credentials_file)", "    ", example)
            assert lines == 2
            (folder / "appliance.key").write_text(f"{key}\n")
        config = folder / "prometheus.yml"
        config.write_text(example.replace("127.0.0.1:11711", target).replace(": 15s", ": 1s"))
        (folder / "alerts.yml").write_text(RULES.read_text("utf-8"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.client = httpx.Client(base_url=f"http://{address}", timeout=30, trust_env=False)
        self.log = folder / "prometheus.log"
        command = [
            shutil.which("prometheus") or pytest.skip("prometheus (package prometheus) is not here"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)

    def ask(self, path: str, **parameters: Any) -> Any:
        """The data of an answer, which must be a good one."""
        answer = self.client.get(f"/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, (parameters, answer.text)
        return answer.json()["data"]

    def query(self, query: str) -> list[float]:
        """The values of all samples now, without those that are not a number."""
        values = [float(sample["value"][1]) for sample in self.ask("query", query=query)["result"]]
        return [value for value in values if value == value]

    def points(self, query: str) -> int:
        """How many points a graph of the last minute has."""
        now = time.time()
        found = self.ask("query_range", query=query, start=now - 60, end=now, step=1)["result"]
        return sum(value != "NaN" for series in found for _, value in series["values"])

    def up(self) -> bool:
        """It answers, and has read the appliance."""
        try:
            return self.client.get("/-/ready").status_code == 200 and self.query("up") == [1.0]
        except httpx.TransportError:
            assert self.process.poll() is None, self.log.read_text()
            return False

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.client.close()


@pytest.fixture(scope="module")
def watched_appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("watched"))
    nets.scale(server.models / "scale.onnx")
    nets.mlp(server.models / "mlp.onnx")
    fake(server, "faulty", "fail_on = 13.0\noom_on = 14.0")
    speech.fake_model(server.models / "speaker", "hello", token_ms=1)
    with server:
        yield server


@pytest.fixture(scope="module")
def prometheus(watched_appliance: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has seen an appliance at work, also at failing."""
    server = watched_appliance
    made = Prometheus(tmp_path_factory.mktemp("prometheus"), server.url.removeprefix("http://"))
    try:
        patiently(made.up, 60)
        work(server)
        psutil.Process(server.engine_pid).kill()
        patiently(lambda: made.query("sum(appliance_engine_restarts_total)") == [1], 60)
        server.wait_ready()
        work(server)
        patiently(lambda: (made.query('appliance_requests_total{model="mlp",code="ok"}') or [0])[0] >= 80, 60)
        ran_out = server.status()["memory"]["cpu"]["out_of_memory"]  # the last thing that the work did
        patiently(lambda: made.query("appliance_out_of_memory_total") == [ran_out], 60)
        patiently(lambda: made.query("appliance_ready") == [1], 60)
        yield made
    finally:
        made.stop()


def work(server: Server) -> None:
    """Some of every kind of answer, over about three seconds, so that several readings see it."""
    kinds = [
        ("mlp", entry([0.5] * 784, [1, 784]), {200}),
        ("scale", entry([1, 2, 3, 4], [1, 4]), {200}),
        ("faulty", entry([1], [1, 1]), {200}),
        ("faulty", entry([13], [1, 1]), {500}),
        ("scale", entry([1], [1]), {400}),
    ]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            told = server.client.post("/v1/completions", json={"model": "speaker", "prompt": "x", "max_tokens": 9})
            assert told.status_code == 200, told.text
            calls = [(pool.submit(infer, server, model, tensor), codes) for model, tensor, codes in kinds * 4]
            for call, codes in calls:
                assert call.result().status_code in codes
            time.sleep(0.3)
    assert infer(server, "faulty", entry([14], [1, 1])).status_code == 503


def filled(query: str) -> str:
    """As Grafana fills its variables in, with everything chosen."""
    values = {"$__rate_interval": "1m", '"$instance"': '~".+"', "$model": ".*", "$device": ".*"}
    for name, value in values.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


def test_every_query_of_the_dashboard_gives_data(prometheus: Prometheus) -> None:
    empty = [query for _, query in queries() if not prometheus.query(filled(query))]
    expected = [query for _, query in queries() if query.startswith(ONLY_A_GPU_TELLS)]
    assert empty == expected and len(expected) == len(ONLY_A_GPU_TELLS)
    flat = [query for _, query in queries() if query not in empty and prometheus.points(filled(query)) < 3]
    assert flat == []


def test_every_choice_of_the_dashboard_has_values(prometheus: Prometheus, watched_appliance: Server) -> None:
    found = {}
    for name, query in variables():
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        found[name] = prometheus.ask(f"label/{label}/values", **{"match[]": filled(series)})
    assert found == {
        "instance": [watched_appliance.url.removeprefix("http://")],
        "model": ["faulty", "mlp", "scale", "speaker"],
        "device": ["cpu"],
    }


def test_every_series_that_an_alert_asks_for_is_there(prometheus: Prometheus) -> None:
    """A wrong name or label would make an alert that never fires."""
    for name, rule in alerts().items():
        expression = rule.partition("expr:")[2].partition("labels:")[0]
        selectors = re.findall(r"\b(?:appliance_\w+|up)(?:\{[^}]*\})?", expression)
        assert selectors, name
        for selector in selectors:
            assert prometheus.query(selector), (name, selector)


def test_a_running_prometheus_takes_the_rules(prometheus: Prometheus) -> None:
    def told() -> dict[str, str]:
        (group,) = prometheus.ask("rules")["groups"]
        return {rule["name"]: rule["health"] for rule in group["rules"]}

    patiently(lambda: "unknown" not in told().values())
    assert told() == dict.fromkeys(alerts(), "ok")


def test_the_values_are_those_of_the_appliance(prometheus: Prometheus, watched_appliance: Server) -> None:
    status, ask = watched_appliance.status(), prometheus.query
    assert sum(ask("appliance_engine_restarts_total")) == status["engine"]["restarts"]
    assert ask('appliance_engine_restarts_total{reason="crash"}') == [1]
    assert ask("appliance_start_time_seconds")[0] == pytest.approx(status["started_at"], abs=2)
    assert ask(f'appliance_build_info{{version="{status["version"]}"}}') == [1]
    ran = status["engine"]["runtimes"]
    assert ask("count(appliance_runtime_info)") == [len(ran)] and ran
    (ledger,) = status["memory"].values()
    for kind in ("ceiling", "weights", "in_flight", "reserved"):
        assert ask(f'appliance_memory_budget_bytes{{kind="{kind}"}}') == [ledger[kind]]
    assert ask("sum(appliance_model_memory_bytes)") == [ledger["weights"]]
    assert ask("appliance_out_of_memory_total") == [ledger["out_of_memory"]]
    assert ask('appliance_requests_total{model="faulty",code="model_error"}') == [80]
    assert ask('appliance_refused_total{code="invalid_input"}') == [80]
    assert ask('appliance_refused_total{code="model_error"}') == [80]
    assert ask('appliance_inferences_total{model="scale"}') == [80]
    assert ask('appliance_executions_total{model="scale"}')[0] <= 80
    assert ask('appliance_pending_requests_limit{model="mlp"}') == [256]
    assert ask("appliance_queue_limit") == [1024]


def test_with_a_key_the_commented_lines_of_the_example_do(tmp_path: Path) -> None:
    with Server(tmp_path, api_key="correct horse") as server:
        target = server.url.removeprefix("http://")
        assert server.client.get("/metrics").status_code == 401
        (tmp_path / "with").mkdir()
        made = Prometheus(tmp_path / "with", target, "correct horse")
        try:
            patiently(made.up, 60)
        finally:
            made.stop()
