"""A line a request: what is in it, and what is left out when there are too many."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import InvalidInput, ModelError, QueueFull, RateLimited
from appliance.gate.gate import Gate
from appliance.serving import request_log
from appliance.serving.request_log import Mode, RequestLog
from tests.unit.gate.gate_helpers import Bench


def looped(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def inside(*args: Any, **more: Any) -> None:
        asyncio.run(test(*args, **more))

    return inside


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Logged:
    """A gate whose ends are told as the appliance tells them."""

    def __init__(self, folder: Path, mode: Mode, **limits: int) -> None:
        self.bench = Bench(**limits)
        self.gate: Gate = self.bench.gate
        self.clock = Clock()
        self.file = folder / "logs" / "requests.log"
        self.log = RequestLog(self.file, self.gate.requests, self.clock)
        self.log.mode = mode
        self.gate.observer = self.log.around(self.bench.ends)

    def lines(self) -> list[dict[str, Any]]:
        self.log.close()
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []


@looped
async def test_a_line_a_request(tmp_path: Path) -> None:
    logged = Logged(tmp_path, "all")
    bench = logged.bench
    bench.submit(1, id="first")
    second, third = bench.submit(2, 3, id="second"), bench.submit(4, id="third")
    bench.runner.finish()
    bench.runner.finish()
    for ticket in (second, third):
        await bench.queue.result(ticket)
    one, two, three = logged.lines()
    assert list(one) == ["timestamp", "id", "model", "code", "version", "queue_ms", "infer_ms", "batch", "device"]
    assert one["timestamp"].endswith("Z")
    assert [(line["id"], line["code"], line["batch"]) for line in (one, two, three)] == [
        ("first", "ok", 1),
        ("second", "ok", 3),
        ("third", "ok", 3),
    ]
    run_ns = bench.ends.batches[0][3]  # the one behind is told of as well
    assert (one["model"], one["version"], one["device"]) == ("m", "1", bench.spec.device)
    assert one["infer_ms"] == round(run_ns / 1e6, 3)
    assert two["queue_ms"] == round((second.started - second.created) * 1000, 3)


@looped
async def test_nothing_of_what_succeeds_unless_all_is_wanted(tmp_path: Path) -> None:
    for mode in ("errors", "off"):
        logged = Logged(tmp_path / mode, mode)  # type: ignore[arg-type]
        assert logged.gate.observer is logged.bench.ends, "it costs nothing"
    logged = Logged(tmp_path, "errors")
    ticket = logged.bench.submit(1, id="bad")
    logged.bench.runner.fail(ModelError('said "secret"'))
    with pytest.raises(ModelError):
        await logged.bench.queue.result(ticket)
    logged.log.failed(ticket)  # as the metrics' observer does it
    (line,) = logged.lines()
    assert (line["id"], line["code"], line["device"]) == ("bad", "model_error", logged.bench.spec.device)
    assert "batch" not in line and "secret" not in str(line)


@looped
async def test_what_is_refused_at_the_door(tmp_path: Path) -> None:
    logged = Logged(tmp_path, "errors")
    error = InvalidInput("no such input")
    logged.log.refused("a", "m", error)
    logged.log.refused("b", "m", error)
    logged.log.refused("c", "other", RateLimited("slow down"))
    found = [(line["id"], line["model"], line["code"]) for line in logged.lines()]
    assert found == [("a", "m", "invalid_input"), ("b", "m", "invalid_input"), ("c", "other", "rate_limited")]
    logged.log.mode = "off"
    logged.log.refused("d", "other", error)
    assert len(logged.lines()) == 3


@looped
async def test_a_request_that_its_ticket_told_of_is_not_told_of_again(tmp_path: Path) -> None:
    logged = Logged(tmp_path, "all")
    ticket = logged.bench.submit(1, id="x")
    logged.bench.runner.fail(ModelError("no"))
    with pytest.raises(ModelError):
        await logged.bench.queue.result(ticket)
    logged.log.refused("x", "m", ModelError("no"))
    logged.log.refused("x", "m", InvalidInput("another fault, of the same id"))
    assert [line["code"] for line in logged.lines()] == ["model_error", "invalid_input"]


@looped
async def test_a_storm_of_refusals_is_told_by_its_number(tmp_path: Path) -> None:
    logged = Logged(tmp_path, "errors")
    for n in range(500):
        logged.log.refused(str(n), "m", QueueFull("full"))
    logged.log.refused("other", "m", InvalidInput("x"))
    logged.clock.now += 1
    logged.log.refused("later", "m", QueueFull("full"))
    lines = logged.lines()
    assert [line["id"] for line in lines] == [*map(str, range(10)), "other", "later"]
    assert lines[-1]["more"] == 490
    assert "more" not in lines[-2]


@looped
async def test_lines_that_the_disk_is_too_slow_for_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "_MOST", 3)
    logged = Logged(tmp_path, "all")
    for n in range(5):
        logged.log.refused(str(n), "m", QueueFull("full"))
    logged.log._write(logged.log._taken())
    logged.log.refused("after", "m", QueueFull("full"))
    lines = logged.lines()
    assert [line["id"] for line in lines] == ["0", "1", "2", "after"]
    assert lines[-1]["lost"] == 2


@looped
async def test_lines_come_by_themselves_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_EVERY_S", 0.001)
    logged = Logged(tmp_path, "all")
    for n in range(200):
        logged.log.refused(str(n), "m", QueueFull("full"))
        if n % 10 == 0:
            await asyncio.sleep(0.002)
    async with asyncio.timeout(20):
        while logged.log._due:
            await asyncio.sleep(0.005)
    assert [json.loads(line)["id"] for line in logged.file.read_text().splitlines()] == [str(n) for n in range(200)]
    logged.log.close()


@looped
async def test_a_folder_that_cannot_be_written_is_borne(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    logged = Logged(tmp_path, "all")
    logged.log.refused("a", "m", QueueFull("full"))
    logged.log.close()
    assert (tmp_path / "logs").read_text() == "in the way"
