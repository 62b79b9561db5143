"""What goes wrong on purpose: a run without memory, a device that only a new process cures, a killed engine."""

import platform
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tests.gpu import nets
from tests.gpu.client import Answer, Callers, Client, Job, Watch, many, only, tally
from tests.gpu.filler import Filler
from tests.gpu.lab import Group, Lab, engine, ledger, unified
from tests.gpu.report import Row, judged, skipped, told
from tests.support.server import ROOT, Server

CLIENTS = 8
ASKED = 32
RECOVERY_S = 60.0
RESTART_S = 120.0
_SETTINGS = {"queue_timeout_ms": 120_000}


# --- out of memory ----------------------------------------------------------------------------------------------


def hungry_models(lab: Lab, folder: Path) -> None:
    """Both say that a run takes next to nothing, so that the gate lets it run into the end of the memory."""
    import torch

    times = lab.sizes.item // 4 // lab.sizes.length
    tables = "[batching]\nmax = 8\n[memory]\nrun_bytes = 1048576\n"
    nets.script(folder / "hungry", nets.Hungry(times, not lab.gpu), {"x": ("FP32", [-1, -1])}, tables)
    nets.program(folder / "hungry-program", nets.HungryProgram(times), torch.rand(3, 8), (0, 1), tables)


def out_of_memory(lab: Lab, server: Server) -> Iterator[Row]:
    if lab.gpu and unified(server):
        yield skipped("real out-of-memory", "the GPU's memory is the system's, which is not filled")
        return
    for model in ("hungry", "hungry-program"):
        if model == "hungry-program" and not lab.gpu:
            yield skipped(f"real out-of-memory: {model}", "needs CUDA: only a full card refuses it")
            continue
        yield from _ran_out(lab, server, model)


def _ran_out(lab: Lab, server: Server, model: str) -> Iterator[Row]:
    """Room for two items, and up to eight at once."""
    before, pid = ledger(server, lab.device), engine(server, "torch")["pid"]
    jobs = [_long(lab, model, n) for n in range(ASKED)]
    with Filler(lab.device, lab.sizes.item * 5 // 2) if lab.gpu else nullcontext():
        with Watch(server.url, lab.device) as watch:
            outcomes = many(server.url, jobs, CLIENTS)
        full = ledger(server, lab.device)
    narrowest = min(full["narrowing"], watch.narrowing)
    ran_out = full["out_of_memory"] - before["out_of_memory"]
    right, others = tally(outcomes)
    lost = f"{right} of {ASKED} right{'; ' + others if others else ''}"
    same = engine(server, "torch")["pid"] == pid
    yield judged(f"real out-of-memory: {model}", "at least one run", f"{ran_out} runs", ran_out > 0)
    yield judged(
        f"… split into its requests: {model}",
        "all right, the engine goes on",
        f"{lost}; {'the same engine' if same else 'another engine'}",
        right == ASKED and same,
    )
    started = time.monotonic()
    wide = _comes(lambda: ledger(server, lab.device)["narrowing"] == 1.0, RECOVERY_S)
    took = time.monotonic() - started
    again = ledger(server, lab.device)["out_of_memory"]
    # On the CPU each run of several is refused by what the model asks for, so they come alone.
    outcomes = many(server.url, jobs, CLIENTS if lab.gpu else 1)
    right, _ = tally(outcomes)
    more = ledger(server, lab.device)["out_of_memory"] - again
    yield judged(
        f"… recovery: {model}",
        "all of the budget, no more runs that run out",
        f"narrowed to {narrowest:.0%}, {'all' if wide else 'not all'} of it after {took:.0f} s; then {right} of "
        f"{ASKED} right, {more} runs ran out",
        wide and right == ASKED and more == 0,
    )


def _long(lab: Lab, model: str, number: int) -> Job:
    x = np.full((1, lab.sizes.length), 1 + number, np.float32)
    return Job(model, {"x": x}, lambda found: only(found).tolist() == [[1.0 + number]])


# --- the death of an engine -------------------------------------------------------------------------------------


def lookup_models(lab: Lab, folder: Path) -> None:
    """One that can be brought down, a neighbour in the same engine, one in the other engine."""
    import torch

    nets.script(folder / "lookup", nets.Lookup(), {"x": ("INT64", [-1, 4])}, "[batching]\nmax = 8")
    nets.program(
        folder / "neighbour", nets.Broad(4), torch.rand(3, nets.WIDTH), toml="[batching]\nmax = 8", instances=2
    )
    if lab.machine.onnx.told:
        shutil.copytree(ROOT / "assets/models/classify", folder / "classify")


def sticky_error(lab: Lab, server: Server) -> Iterator[Row]:
    """A request that takes the device with it. It alone may fail."""
    if not lab.gpu and platform.machine().lower() not in ("x86_64", "amd64"):
        yield skipped("a trap in place of a device-side assert (CPU)", "only processors of the kind x86-64 have it")
        return
    what = "device-side assert" if lab.gpu else "a trap in place of it (CPU)"
    poison = Job("lookup", {"x": np.full((1, 4), 1_000_000 if lab.gpu else nets.LEAST_INT64, np.int64)})
    answers: list[Answer] = []

    def strike() -> None:
        with Client(server.url) as client:
            answers.append(client.infer(poison.model, poison.inputs))

    yield from _through_death(lab, server, what, strike, lambda: bool(answers))
    last = answers[-1] if answers else None
    reason = next((death["reason"] for death in reversed(engine(server, "torch")["deaths"])), "none")
    figures = f"{last.status} {last.code}" if last else "no answer"
    good = last is not None and (last.status, last.code) == (500, "model_error")
    yield judged(f"… the request that did it: {what}", "500 model_error", figures, good)
    if lab.gpu:
        yield judged("… taken for what it is", "the engine says that its device is lost", reason, "is lost" in reason)
    else:
        yield told("… how the engine ended", reason)


def killed(lab: Lab, server: Server) -> Iterator[Row]:
    process = psutil.Process(engine(server, "torch")["pid"])
    yield from _through_death(lab, server, "engine killed", process.kill, lambda: True)


def _through_death(
    lab: Lab, server: Server, what: str, strike: Callable[[], None], struck: Callable[[], bool]
) -> Iterator[Row]:
    """All models are asked without a pause; ``strike`` ends the engine of PyTorch; then each must get its answer."""
    before = engine(server, "torch")["restarts"]
    makes = [_lookup] * 6 + [_neighbour] * 2
    onnx = bool(lab.machine.onnx.told)
    with Callers(server.url, [*makes, *([_classify(lab, server)] if onnx else [])]) as callers:
        time.sleep(1)
        begun = time.monotonic()
        striking = threading.Thread(target=strike, daemon=True)
        striking.start()
        back = _comes(lambda: _back(server, before) and struck(), RESTART_S)
        took = time.monotonic() - begun
        seen = len(callers.outcomes)
        _comes(lambda: len(callers.outcomes) >= seen + 200, 30)
        striking.join(RESTART_S)
    main = [pair for pair in callers.outcomes if pair[0].model != "classify"]
    right, others = tally(main)
    longest = max((answer.seconds for _, answer in main), default=0.0)
    restarts = engine(server, "torch")["restarts"] - before
    figures = f"{right} of {len(main)} right{'; ' + others if others else ''}; restarts: {restarts}"
    good = back and right == len(main) and restarts > 0
    yield judged(f"{what}: nothing else is lost", "restarted, all right", figures, good)
    yield told(f"… until all is well again: {what}", f"{took:.1f} s; the longest wait for an answer {longest:.1f} s")
    check = f"… the other engine meanwhile: {what}"
    if not onnx:
        yield skipped(check, lab.machine.onnx.why)
        return
    other = [pair for pair in callers.outcomes if pair[0].model == "classify"]
    right, others = tally(other)
    slow = max((answer.seconds for _, answer in other), default=0.0)
    figures = f"{right} of {len(other)} right{'; ' + others if others else ''}; the longest took {slow * 1e3:.0f} ms"
    yield judged(check, "all right", figures, 0 < right == len(other))


def _lookup(number: int) -> Job:
    x = np.array([[number % 1000, 1, 2, 3]], np.int64)
    return Job("lookup", {"x": x}, lambda found: only(found).tolist() == [[float(x.sum())]])


def _neighbour(number: int) -> Job:
    x = np.full((1, nets.WIDTH), number % 97, np.float32)
    return Job("neighbour", {"x": x}, lambda found: only(found).tolist() == [[2.0 * (number % 97)]])


def _classify(lab: Lab, server: Server) -> Callable[[int], Job]:
    spec = server.client.get("/v2/models/classify").json()["inputs"][0]
    shape = [1 if size < 0 else size for size in spec["shape"]]
    inputs = {spec["name"]: np.random.default_rng(5).random(shape, dtype=np.float32)}
    return lambda number: Job("classify", inputs)


def _back(server: Server, restarts: int) -> bool:
    found = engine(server, "torch")
    return (
        found["restarts"] > restarts and found["state"] == "ready" and server.client.get("/ready").status_code == 200
    )


def _comes(condition: Callable[[], Any], wait_s: float) -> bool:
    """Whether it comes true within that time."""
    deadline = time.monotonic() + wait_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


MEMORY = Group("memory", hungry_models, (out_of_memory,), lambda lab: _SETTINGS)
DEATH = Group("death", lookup_models, (sticky_error, killed), lambda lab: _SETTINGS)
