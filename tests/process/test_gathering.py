"""``batching.max_delay_ms`` and ``preferred_sizes`` with a real engine: fewer, fuller runs, and right answers."""

import threading
from pathlib import Path

import httpx
import pytest

from tests.support.nets import scale
from tests.support.server import Server


def sizes(server: Server, model: str) -> dict[int, int]:
    """Batch size → number of runs."""
    stats = server.client.get(f"/v2/models/{model}/stats").json()["model_stats"][0]
    return {entry["batch_size"]: entry["compute_infer"]["count"] for entry in stats["batch_stats"]}


def ask(server: Server, model: str, count: int) -> list[list[float]]:
    """``count`` requests at once, one after the other sent; the answers in order."""
    answers: list[list[float]] = [[] for _ in range(count)]

    def one(number: int) -> None:
        body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [number] * 4}]}
        with httpx.Client(trust_env=False, timeout=30) as client:
            answer = client.post(f"{server.url}/v2/models/{model}/infer", json=body)
            answers[number] = answer.json()["outputs"][0]["data"]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.parametrize(
    ("wish", "count", "expected"),
    [
        ("max_delay_ms = 3000\nmax = 6", 6, {6: 1}),  # ends when the largest batch is there
        ("max_delay_ms = 3000\npreferred_sizes = [3]", 6, {3: 2}),
        ("max_delay_ms = 700", 2, {2: 1}),  # ends when the time is over
    ],
)
def test_a_free_lane_waits_for_more(folder: Path, wish: str, count: int, expected: dict[int, int]) -> None:
    server = Server(folder)
    scale(server.models / "m" / "1" / "model.onnx")
    (server.models / "m" / "model.toml").write_text(f"[batching]\n{wish}\n")
    with server:
        assert ask(server, "m", count) == [[2.0 * number] * 4 for number in range(count)]
        assert sizes(server, "m") == expected
