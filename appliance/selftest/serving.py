"""The checks of what serves: the engine, the server over loopback, right answers, the one instance, the end.

What they try is imported by each itself: a module that is missing or broken is a finding too.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil

from appliance import __version__
from appliance.selftest.answers import Known, turned
from appliance.selftest.context import FAR, Context, Lacking
from appliance.selftest.report import Finding, failed, ok, warning
from appliance.system import paths, ports
from appliance.system.instance import AlreadyRunning, Instance, find_running
from appliance.system.processes import ChildDidNotConnect

AGAIN = "install the program again; if that does not help, the logs in the report say more"

_END_S = 10.0
_ASK_S = 30.0
_READY_S = 80.0
_SECOND_S = 25.0


def engine(context: Context) -> Finding:
    """The engine process starts, says hello and ends when it is told to."""
    from appliance.engine.client import EngineDied

    log = context.folder / "engine-check.log"
    context.logs.append(log)
    try:
        return asyncio.run(_engine(log, context.settings.state_folder()))
    except (EngineDied, ChildDidNotConnect, TimeoutError) as error:
        lines = log.read_text("utf-8", errors="replace").split("\n") if log.exists() else []
        last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        return failed(f"it did not start ({error or 'no hello in time'}): {last[:300]}", AGAIN)


async def _engine(log: Path, state: Path) -> Finding:
    from appliance.serving.check import start_engine

    started = time.monotonic()
    with log.open("wb") as stream:
        process, client = await start_engine(stream, state)
    hello, took = client.hello.result(), time.monotonic() - started
    asked = time.monotonic()
    client.stop()
    try:
        code = await asyncio.to_thread(process.wait, _END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return failed(f"process {hello.pid} did not end within {_END_S:.0f} s of being told to", AGAIN)
    runtimes = ", ".join(f"{name} {version}" for name, version in hello.runtimes.items())
    providers = ", ".join(name.removesuffix("ExecutionProvider") for name in hello.providers)
    words = (
        f"{runtimes} ({providers}); started in {took:.1f} s, ended in {time.monotonic() - asked:.1f} s "
        f"with code {code}"
    )
    if not hello.runtimes:
        return failed("the engine has no runtime: ONNX Runtime cannot be imported", AGAIN)
    return ok(words) if code == 0 else failed(words, AGAIN)


def server(context: Context) -> Finding:
    """The real appliance, in this process, on a free port, until all embedded models are warm."""
    from appliance.app import Appliance

    settings = context.own_settings()
    settings.state_folder().mkdir(parents=True, exist_ok=True)
    context.instance = Instance(settings.state_folder(), settings.port)
    listener = ports.listen(settings.host, settings.port)
    context.appliance = appliance = Appliance(settings, listener, packs=context.settings.state_folder())
    started = time.monotonic()
    appliance.start()
    context.client = client = httpx.Client(base_url=appliance.address, timeout=_ASK_S, trust_env=False)
    if (health := client.get("/health")).status_code != 200:
        return failed(f"/health answers {health.status_code}", AGAIN)
    answered = time.monotonic() - started
    while (got := client.get("/ready")).status_code != 200:
        if appliance.stopped.is_set() or time.monotonic() - started > _READY_S:
            return failed(f"not ready after {_READY_S:.0f} s: {_faults(context) or got.text[:300]}", AGAIN)
        time.sleep(0.1)
    faults = _faults(context)
    words = f"{appliance.address} answers after {answered:.1f} s, ready after {time.monotonic() - started:.1f} s"
    return failed(f"{words}; {faults}", AGAIN) if faults else ok(words)


def _faults(context: Context) -> str:
    """The embedded models that do not serve, with the reason."""
    models = context.status()["models"]
    return "; ".join(
        f"{m['name']}: {next((v['error'] for v in m['versions'] if v['error']), None) or m['error'] or 'not ready'}"
        for m in models
        if m["embedded"] and not m["ready"]
    )


def answer(known: Known, model: str | None = None) -> Callable[[Context], Finding]:
    """A check: the picture of `known`, sent to its model (or to another), gives the known answer."""

    def check(context: Context) -> Finding:
        picture = (paths.assets() / "selftest" / known.picture).read_bytes()
        started = time.monotonic()
        got = context.server.post(f"/predict/{model or known.model}", content=picture)
        if got.status_code != 200:
            return failed(f"{got.status_code}: {_error(got)}", AGAIN)
        finding = known.judge(got.json())
        words = f"{finding.found}, by {got.headers['x-device']} in {(time.monotonic() - started) * 1000:.0f} ms"
        return Finding(finding.verdict, words, finding.cure)

    return check


def far_answer(known: Known) -> Callable[[Context], Finding]:
    """The same of a copy of the model that lies on a path that is hard to bear (see `machine.long_paths`)."""
    ask = answer(known, FAR)

    def check(context: Context) -> Finding:
        if context.models is None:
            return warning("not asked: there is no such path here (see paths)")
        end = time.monotonic() + _ASK_S
        while context.server.get(f"/v2/models/{FAR}/ready").status_code != 200:
            if time.monotonic() > end:
                models = {m["name"]: m for m in context.status()["models"]}
                told = [v["error"] for v in models.get(FAR, {}).get("versions", []) if v["error"]]
                return failed(f"not loaded: {'; '.join(told) or 'it was not seen'}", "keep models at shorter paths")
            time.sleep(0.1)
        finding = ask(context)
        path = context.models / FAR / "1" / "model.onnx"
        return Finding(finding.verdict, f"{len(str(path))} characters: {finding.found}", finding.cure)

    return check


def tensors(context: Context) -> Finding:
    """One inference of the Open Inference Protocol, with binary tensors."""
    import numpy as np
    from PIL import Image

    with Image.open(paths.assets() / "selftest" / "text.png") as picture:
        upright = picture.convert("L").crop((10, 10, 300, 56)).resize((192, 48))
    grey = np.stack([np.asarray(p, np.float32) for p in (upright, upright.transpose(Image.Transpose.ROTATE_180))])
    x = np.repeat(((grey - 127.5) / 127.5)[:, None], 3, axis=1).astype("<f4").tobytes()
    about = {"name": "x", "shape": [2, 3, 48, 192], "datatype": "FP32", "parameters": {"binary_data_size": len(x)}}
    head = json.dumps({"inputs": [about]}).encode()
    got = context.server.post(
        "/v2/models/ocr-orient/infer",
        content=head + x,
        headers={"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"},
    )
    return turned(got.json()["outputs"]) if got.status_code == 200 else failed(f"{got.status_code}: {_error(got)}")


def _error(got: httpx.Response) -> str:
    try:
        told = got.json()["error"]
    except (ValueError, KeyError, TypeError):
        return got.text[:300]
    return str(told.get("message", told) if isinstance(told, dict) else told)[:300]


def port_file(context: Context) -> Finding:
    """Scripts find the program by its port file."""
    if context.instance is None or context.appliance is None:
        return failed("there is no server to tell of: it did not start")
    listener, state = context.server.base_url, context.own_settings().state_folder()
    context.instance.announce(
        host=listener.host, port=listener.port or 0, url=context.appliance.address, version=__version__
    )
    found = find_running(state, 0)
    if found is None or found.url != context.appliance.address or found.pid != os.getpid():
        return failed(f"written, but what is found is {found}", AGAIN)
    return ok(f"written, and it leads to {found.url}")


def second(context: Context) -> Finding:
    """A second start on the same port and state folder is refused: here, and as a process of its own."""
    settings = context.own_settings()
    if context.instance is None:
        return failed("there is no first one: it did not start")
    try:
        Instance(settings.state_folder(), settings.port).release()
    except AlreadyRunning:
        pass
    else:
        return failed("a second one was let in", "the state folder's file system has no file locks: use a local one")
    env = {name: value for name, value in os.environ.items() if not name.startswith("APPLIANCE_")}
    env |= {
        "APPLIANCE_STATE": str(settings.state_folder()),
        "APPLIANCE_MODELS": str(settings.models_folder()),
        "APPLIANCE_PORT": "0",
        "APPLIANCE_EMBEDDED_MODELS": "false",
    }
    nowhere = subprocess.DEVNULL
    try:
        done = subprocess.run(
            [*paths.program_command(), "serve"],
            env=env,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            timeout=_SECOND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return failed(f"the second start did not end within {_SECOND_S:.0f} s", AGAIN)
    if done.returncode != 0:
        return failed(f"the second start ended with code {done.returncode}", AGAIN)
    healthy = context.server.get("/health").status_code == 200
    return ok("it found the first and ended with code 0") if healthy else failed("it hurt the first one", AGAIN)


def stop(context: Context) -> Finding:
    """The server ends, and its engines with it."""
    if context.appliance is None:
        return failed("there is nothing to end: it did not start")
    pids: list[int] = []
    with contextlib.suppress(Lacking, httpx.HTTPError):  # it is to end all the same
        pids = [engine["pid"] for engine in context.status()["engines"] if engine["pid"] is not None]
    context.server.close()
    started = time.monotonic()
    context.appliance.stop()
    took = time.monotonic() - started
    for pid in pids:
        if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            return failed(f"the server ended in {took:.1f} s, its engine (process {pid}) did not")
    if not pids:
        return warning(f"the server ended in {took:.1f} s; it did not tell which process its engine was")
    return ok(f"server and {'engine' if len(pids) == 1 else f'{len(pids)} engines'} ended in {took:.1f} s")
