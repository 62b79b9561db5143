"""Short real benches: against a running appliance, and in one that the command starts."""

import json
import tomllib
from pathlib import Path
from typing import Any

from PIL import Image

from tests.process.helpers import fake
from tests.process.test_cli import call
from tests.support import nets
from tests.support.server import Server


def bench(env: dict[str, str], *arguments: str) -> tuple[Any, dict[str, Any]]:
    """(the finished command, its JSON)."""
    done = call(env, "bench", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return done, json.loads(done.stdout)


def processes(state: Path) -> list[str]:
    """What a bench left in the state folder."""
    return sorted(path.name for path in state.iterdir() if path.name.startswith("bench") and path.suffix != ".lock")


def test_a_running_appliance_is_measured(folder: Path) -> None:
    """Every answer is counted by both sides, and whoever asks for nonsense is told so."""
    nets.mlp(folder / "models/mlp/1/model.onnx")
    fake(folder / "models", "full", top="[limits]\nqueue = 1\n", run_ms=30, batch=False)
    fake(folder / "models", "sleepy", top='load = "lazy"\n')
    with Server(folder, api_key="a-key-for-the-test") as server:
        server.client.headers["authorization"] = "Bearer a-key-for-the-test"
        report = folder / "report"
        short = ("--clients", "3", "--seconds", "0.3", "--rounds", "2")
        _, found = bench(server.env, "mlp", *short, "--report", str(report))
        assert [stage["clients"] for stage in found["stages"]] == [1, 2, 3]
        assert found["payload"] == "random tensors x FP32[1,784] to /v2/models/mlp/infer"
        assert not found["own"] and found["advice"] is None
        good = 0
        for stage in found["stages"]:
            assert stage["errors"] == {} and stage["memory_bytes"] > 1 << 20
            for one in stage["rounds"]:
                good += one["answers"]
                assert round(one["per_second"] * one["seconds"], 6) == one["answers"]
                assert 0 <= one["queue_p50_ms"] <= one["p50_ms"] <= one["p95_ms"] <= one["p99_ms"]
                assert 1 <= one["batch"] <= stage["clients"]
        stats = server.client.get("/v2/models/mlp/stats").json()["model_stats"][0]["inference_stats"]
        assert stats["success"]["count"] >= good and stats["fail"]["count"] == 0
        assert any(note.startswith("Noise: ") for note in found["notes"])
        with Image.open(report / "bench.png") as picture:
            assert picture.width == 2240
        page = (report / "bench.html").read_text("utf-8")
        assert "<svg" in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")
        assert json.loads((report / "bench.json").read_text("utf-8")) == found

        _, found = bench(server.env, "full", "--clients", "4", "--seconds", "0.3", "--rounds", "1")
        assert found["stages"][0]["errors"] == {}
        assert set(found["stages"][-1]["errors"]) == {"queue_full"}  # one runs, one waits, two are refused

        _, found = bench(server.env, "sleepy", "--clients", "1", "--seconds", "0.2", "--rounds", "1")
        assert found["payload"] == "random tensors x FP32[1,4] to /v2/models/sleepy/infer"

        done = call(server.env, "bench", "mlp", "--clients", "1", "--seconds", "0.2", "--rounds", "1")
        assert done.returncode == 0 and "answers/s" in done.stdout and "FP32[1,784]" in done.stdout
        for arguments, code, words in (
            (("nobody",), 1, "no model 'nobody'"),
            (("mlp", "--shape", "x=1,7"), 2, "does not fit"),
            (("mlp", "--goal", "throughput"), 2, "--own"),
        ):
            done = call(server.env, "bench", *arguments)
            assert done.returncode == code and words in done.stderr, done.stderr


def test_without_a_running_appliance(folder: Path) -> None:
    server = Server(folder)
    server.client.close()
    fake(server.models, "moody", load_error="not [today]")
    failing = fake(server.models, "failing", fail_on=0.0) / "model.toml"
    failing.write_text(failing.read_text().replace('"FP32", -1, 4', '"BOOL", -1, 64'))
    done = call(server.env, "bench", "moody")
    assert done.returncode == 1 and "--own" in done.stderr
    done = call(server.env, "bench", "moody", "--own")
    assert done.returncode == 1 and "'moody' cannot be served: not [today]" in done.stderr
    done = call(server.env, "bench", "failing", "--own")
    assert done.returncode == 1 and "the fake model failed" in done.stderr
    assert processes(server.state) == []


def test_settings_are_found_and_written(folder: Path) -> None:
    """20 ms a run whatever its size: two callers are best served by one run of two."""
    server = Server(folder)
    server.client.close()
    file = fake(server.models, "slow", top="# mine\ninstances = 1  # one\n[batching]\nmax = 1 # once\n", run_ms=20)
    file = file / "model.toml"
    text = file.read_text()
    short = ("--own", "--clients", "2", "--seconds", "0.5")
    done, found = bench(server.env, "slow", *short, "--goal", "throughput", "--write")
    advice = found["advice"]
    assert found["own"] and advice["written"]
    assert advice["start"] == {"batch": 1, "instances": 1, "delay_ms": 0.0}
    assert advice["best"] != advice["start"]
    tried = advice["tried"]
    assert tried[0]["setting"] == advice["start"]
    assert tried[1]["setting"] == {"batch": 2, "instances": 1, "delay_ms": 0.0}
    for one in tried[1:]:
        assert len(one["scores"]) == 3 and one["verdict"]
    assert "+max = " in done.stderr or "+instances = " in done.stderr  # the diff, before it is written
    after, best = tomllib.loads(file.read_text()), advice["best"]
    assert after["instances"] == best["instances"]
    assert after["batching"]["max"] == best["batch"]
    assert after["batching"].get("max_delay_ms", 0.0) == best["delay_ms"]
    assert after["backend_options"] == tomllib.loads(text)["backend_options"]
    assert "# mine" in file.read_text() and "# once" in file.read_text() and "# one\n" in file.read_text()
    assert processes(server.state) == []
