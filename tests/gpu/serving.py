"""Ordinary service: who runs the models, the first request, what is booked, two families, and a full card."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.gpu import nets, reference
from tests.gpu.client import Answer, Client, Job, Watch, many, only, tally
from tests.gpu.filler import Filler
from tests.gpu.lab import MIB, Group, Lab, engine, ledger, unified, version
from tests.gpu.report import Row, judged, median, off, skipped, told, worst
from tests.support.server import ROOT, Server

BATCHES = (1, 2, 4, 8)
TOLERANCE = 1e-2
_CPU_BUDGET = 640 * MIB


def settings(lab: Lab) -> dict[str, Any]:
    """On the CPU the budget is made small, in place of a full card."""
    if lab.gpu:
        return {"queue_timeout_ms": 120_000}
    share = (_CPU_BUDGET + 256 * MIB) / psutil.virtual_memory().total
    return {"queue_timeout_ms": 120_000, "cpu_memory_fraction": min(1.0, share)}


def models(lab: Lab, folder: Path) -> None:
    import torch

    times, side = lab.sizes.row // 512, lab.sizes.side
    inputs = {"x": ("FP32", [-1, nets.WIDTH])}
    nets.script(folder / "broad", nets.Broad(times), inputs, "[batching]\nmax = 8", instances=4)
    nets.program(folder / "broad-program", nets.Broad(times), torch.rand(3, nets.WIDTH), toml="[batching]\nmax = 8")
    example = torch.rand(3, 3, side, side)
    nets.program(folder / "pictures", nets.Pictures(), example, toml="[batching]\nmax = 8")
    nets.program(folder / "pictures-cpu", nets.Pictures(), example, device="cpu")
    if lab.machine.onnx.told:
        shutil.copytree(ROOT / "assets/models/classify", folder / "classify")
        shutil.copytree(ROOT / "assets/models/classify", folder / "classify-cpu")
        with (folder / "classify-cpu/model.toml").open("r+", encoding="utf-8") as toml:
            rest = toml.read()
            toml.seek(0)
            toml.write(f'device = "cpu"\n{rest}')


def fresh(lab: Lab, server: Server) -> Iterator[Row]:
    """What is booked is what the warm-up measured only as long as no request has taught more, and the first request
    comes once: so these are before all other checks."""
    booked = {model: version(server, model)["cost"] for model in ("broad", "broad-program", "pictures")}
    yield from first_requests(lab, server)
    yield from costs(lab, server, booked)


def first_requests(lab: Lab, server: Server) -> Iterator[Row]:
    with Client(server.url) as client:
        for model in ("pictures", "broad", *(["classify"] if lab.machine.onnx.told else [])):
            inputs = _input(lab, server, model)
            first, later = client.infer(model, inputs), [client.infer(model, inputs) for _ in range(lab.sizes.asked)]
            p50 = median([answer.seconds for answer in later])
            runs = f"run {first.infer_ms:.2f} ms against {median([a.infer_ms for a in later]):.2f} ms"
            figures = f"{first.seconds * 1e3:.2f} ms against {p50 * 1e3:.2f} ms ({runs})"
            good = first.status == 200 and first.seconds <= 1.5 * p50
            check, goal = f"first request after ready: {model}", "at most 1.5 × p50"
            yield judged(check, goal, f"{first.seconds / p50:.2f} ×: {figures}", good, speed=first.status == 200)


def providers(lab: Lab, server: Server) -> Iterator[Row]:
    for model, runtime, why in (
        ("broad", f"PyTorch {lab.machine.torch.told['version']}", ""),
        ("classify", f"ONNX Runtime {lab.machine.onnx.told.get('version')}", lab.machine.onnx.why),
    ):
        check = f"real device: {runtime}" if not why else "real device: ONNX Runtime"
        if why:
            yield skipped(check, why)
            continue
        found = version(server, model)
        reason = f", because: {found['device_reason']}" if found["device_reason"] else ""
        if model == "classify" and lab.gpu and "CUDAExecutionProvider" not in lab.machine.onnx.told["providers"]:
            yield skipped(check, f"this build is without CUDA; it runs on {found['device']}{reason}")
            continue
        with Client(server.url) as client:
            header = client.infer(model, _input(lab, server, model)).device
        good = found["device"] == header == lab.device and not found["device_reason"]
        nodes = f", {found['cpu_nodes']} nodes on the CPU" if found["cpu_nodes"] else ""
        yield judged(check, lab.device, f"{found['device']} (X-Device: {header}){nodes}{reason}", good)
    yield from _same_on_cpu(lab, server)
    yield from _readings(lab, server)


def _same_on_cpu(lab: Lab, server: Server) -> Iterator[Row]:
    for model in ("pictures", "classify"):
        check = f"the same answer as on the CPU: {model}"
        if model == "classify" and not lab.machine.onnx.told:
            yield skipped(check, lab.machine.onnx.why)
            continue
        inputs = _input(lab, server, model)
        with Client(server.url) as client:
            here, there = (client.infer(name, inputs) for name in (model, f"{model}-cpu"))
        apart = difference(here, there)
        yield judged(check, f"within {TOLERANCE:g} of the largest", f"{apart:.1e}", apart <= TOLERANCE)


def _readings(lab: Lab, server: Server) -> Iterator[Row]:
    """What the ledger knows of the card, against what PyTorch says of it."""
    check = "the card's memory is read"
    if not lab.gpu:
        yield skipped(check, "needs CUDA")
        return
    book = ledger(server, lab.device)
    total = lab.machine.torch.told["devices"][int(lab.device.partition(":")[2])]["total"]
    figures = f"total {mib(book['total'])}, PyTorch says {mib(total)}; ours {mib(book['ours'])}"
    good = off(book["total"], total) <= 0.05 and book["ours"] > 0
    yield judged(check, "total within 5 % of PyTorch's, ours over 0", figures, good)


def costs(lab: Lab, server: Server, known: Mapping[str, Any]) -> Iterator[Row]:
    """What was measured at warm-up (``known``, by model) against PyTorch's own count in another process."""
    side = lab.sizes.side
    for model, file, shape in (
        ("broad", "model.pt", [nets.WIDTH]),
        ("broad-program", "model.pt2", [nets.WIDTH]),
        ("pictures", "model.pt2", [3, side, side]),
    ):
        check, booked = f"measured cost: {model}", {run["batch"]: run["bytes"] for run in known[model]["runs"]}
        counted = reference.peaks(lab.device, server.models / model / file, BATCHES, shape)
        if not lab.gpu:
            assert list(counted.values()) == [None] * len(BATCHES)
            yield skipped(check, f"PyTorch counts only on CUDA; the appliance books {_sizes(booked)}")
            continue
        sizes = accumulate((size or 0 for size in counted.values()), max)  # a larger batch is never booked with less
        own = dict(zip(counted, sizes, strict=True))
        batch, far = worst(booked, own)
        figures = f"worst {far:.1%} at batch {batch}: booked {_sizes(booked)}, PyTorch's peak {_sizes(own)}"
        good = known[model]["source"] == "measured" and far <= 0.05
        yield judged(check, "within 5 % of PyTorch's own peak", figures, good)


def families(lab: Lab, server: Server) -> Iterator[Row]:
    check = "two engine families on one device"
    if not lab.machine.onnx.told:
        yield skipped(check, lab.machine.onnx.why)
        return
    main, torch = engine(server), engine(server, "torch")
    where = version(server, "classify")["device"]
    if where != lab.device:
        yield skipped(check, f"ONNX Runtime runs on {where} here")
    else:
        books = {pool: book["models"] for pool, book in server.status()["memory"].items()}
        pools = [pool for pool, held in books.items() if {"classify", "pictures"} <= set(held)]
        figures = f"{main['id']} and {torch['id']}, processes {main['pid']} and {torch['pid']}; ledger {pools}"
        good = main["pid"] != torch["pid"] and pools == [lab.device]
        yield judged(check, "two processes, one ledger", figures, good)
    both = []
    for model in ("classify", "pictures"):
        inputs = _input(lab, server, model)
        with Client(server.url) as client:
            alone = client.infer(model, inputs)
        both.append(Job(model, inputs, lambda found, alone=alone: _near(found, alone.outputs)))
    outcomes = many(server.url, both * (lab.sizes.asked // 2), 8)
    right, others = tally(outcomes)
    figures = f"{right} of {len(outcomes)} right{'; ' + others if others else ''}"
    yield judged("both families under load", "all right", figures, right == len(outcomes))


def admission(lab: Lab, server: Server) -> Iterator[Row]:
    """Far more is asked for at once than there is room for."""
    check = f"admission: {lab.sizes.requests} requests with little memory left"
    full = lab.gpu and not unified(server)
    if lab.gpu and not full:
        yield skipped("the card is filled", "its memory is the system's")
    before = ledger(server, lab.device)
    with Filler(lab.device, lab.sizes.leave) if full else nullcontext() as filler:
        if filler is not None:
            now = server.wait_for(lambda: _shrunk(server, lab.device, before["capacity"]), 60, "the ledger to see it")
            others, free = mib(now["others"]), mib(filler.told["free"])
            yield told("the card is filled", f"{mib(filler.told['taken'])} taken, {free} left; seen as {others}")
        with Watch(server.url, lab.device) as watch:
            outcomes = many(server.url, [_broad(n) for n in range(lab.sizes.requests)], 16)
    right, other = tally(outcomes)
    after = ledger(server, lab.device)
    ran_out = after["out_of_memory"] - before["out_of_memory"]
    memory = sum(answer.code in ("insufficient_memory", "overloaded") for _, answer in outcomes)
    figures = (
        f"{right} right, {memory} failed for memory{'; ' + other if other else ''}; {ran_out} runs ran out; at most "
        f"{mib(watch.in_flight)} in flight of {mib(watch.capacity)}, at most {watch.waiting} waited"
    )
    restarts = engine(server, "torch")["restarts"]
    yield judged(check, "all right, none fails for memory", figures, right == len(outcomes) and not restarts)
    yield judged("runs that ran out of memory meanwhile", "0", str(ran_out), ran_out == 0)
    booked = {run["batch"]: run["bytes"] for run in version(server, "broad")["cost"]["runs"]}
    yield told("booked for broad after this load", _sizes(booked))


def _shrunk(server: Server, pool: str, capacity: int) -> Any:
    book = ledger(server, pool)
    return book if book["capacity"] < capacity or book["others"] > book["total"] // 2 else None


def _broad(number: int) -> Job:
    x = np.full((1 + number % 8, nets.WIDTH), 1 + number % 97, np.float32)
    return Job("broad", {"x": x}, lambda found: bool((only(found) == 2 * x[:, :1]).all()))


def _input(lab: Lab, server: Server, model: str) -> dict[str, np.ndarray]:
    """One random item, the same each time."""
    spec = server.client.get(f"/v2/models/{model}").json()["inputs"][0]
    shape = [1 if size < 0 else size for size in spec["shape"]]
    return {spec["name"]: np.random.default_rng(5).random(shape, dtype=np.float32)}


def difference(one: Answer, other: Answer) -> float:
    """The largest difference of two answers, as a share of the largest value; infinite where one is none."""
    if one.status != 200 or other.status != 200:
        return float("inf")
    pairs = [(one.outputs[name].astype(np.float64), other.outputs[name].astype(np.float64)) for name in one.outputs]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs)


def _near(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return all(np.allclose(found[name], wanted[name], rtol=TOLERANCE, atol=TOLERANCE) for name in wanted)


def mib(size: float) -> str:
    return f"{size / MIB:,.0f} MiB"


def _sizes(found: dict[int, int]) -> str:
    return ", ".join(f"{batch}: {mib(size)}" for batch, size in found.items())


GROUP = Group("serving", models, (fresh, providers, families, admission), settings)
