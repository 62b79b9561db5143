"""Half precision against single, and several streams against one."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.gpu import nets
from tests.gpu.client import Client, Job, many, only, tally
from tests.gpu.lab import Group, Lab, version
from tests.gpu.report import Row, judged, median, told
from tests.gpu.serving import difference, mib
from tests.support.server import Server

LANES = 4
_ALONE = "[batching]\nmax = 1\n"


def models(lab: Lab, folder: Path) -> None:
    x = {"x": ("FP32", [-1, nets.WIDTH])}
    for name, table in (("fp32", ""), ("fp16", '[pytorch]\ndtype = "fp16"\n')):
        nets.script(folder / name, nets.Deep(*lab.sizes.deep), x, _ALONE + table)
    for name, instances in (("one-stream", 1), ("streams", LANES)):
        nets.script(folder / name, nets.Chain(lab.sizes.links), x, _ALONE, instances=instances)


def half_precision(lab: Lab, server: Server) -> Iterator[Row]:
    x = {"x": np.random.default_rng(7).random((1, nets.WIDTH), dtype=np.float32)}
    runs, last = {}, {}
    with Client(server.url) as client:
        for name in ("fp32", "fp16"):
            answers = [client.infer(name, x) for _ in range(lab.sizes.asked)]
            last[name], runs[name] = answers[-1], median([answer.infer_ms for answer in answers])
    apart = difference(last["fp16"], last["fp32"])
    goal = "within 2 % of the largest, but not the same"
    yield judged("fp16 against fp32: answers", goal, f"{apart:.1e}", 0 < apart <= 0.02)
    figures = (
        f"{runs['fp16']:.2f} ms against {runs['fp32']:.2f} ms a run: {runs['fp32'] / runs['fp16']:.2f} × as fast"
    )
    check = "fp16 against fp32: speed"
    if lab.gpu:
        yield judged(check, "at least as fast", figures, runs["fp16"] <= runs["fp32"], speed=True)
    else:
        yield told(check, figures)
    sizes = {name: version(server, name)["memory_bytes"] for name in runs}
    yield told("fp16 against fp32: memory", f"{mib(sizes['fp16'])} against {mib(sizes['fp32'])}")


def streams(lab: Lab, server: Server) -> Iterator[Row]:
    x = np.random.default_rng(8).random((1, nets.WIDTH), dtype=np.float32)
    with Client(server.url) as client:
        wanted = client.infer("one-stream", {"x": x}).outputs
    rates, lost = {}, []
    for name in ("one-stream", "streams"):
        job = Job(name, {"x": x}, lambda found: bool(np.allclose(only(found), only(wanted), atol=1e-4)))
        many(server.url, [job] * (2 * LANES), 2 * LANES)  # each lane has its stream, and its memory
        started = time.perf_counter()
        outcomes = many(server.url, [job] * (lab.sizes.asked * 4), 2 * LANES)
        rates[name] = len(outcomes) / (time.perf_counter() - started)
        right, others = tally(outcomes)
        if right != len(outcomes):
            lost.append(f"{name}: {others}")
    yield judged(f"{LANES} streams against one: answers", "all right", "; ".join(lost) or "all right", not lost)
    times = rates["streams"] / rates["one-stream"]
    figures = f"{rates['streams']:.0f} against {rates['one-stream']:.0f} requests/s: {times:.2f} ×"
    check = f"{LANES} streams against one: speed"
    if lab.gpu:
        yield judged(check, "at least 0.95 ×", figures, times >= 0.95, speed=True)
    else:
        yield told(check, figures)


GROUP = Group("speed", models, (half_precision, streams), lambda lab: {"queue_timeout_ms": 120_000})
