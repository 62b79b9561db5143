"""Each execution provider that the appliance uses, tried by running a model of one node, in an engine process."""

import asyncio
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from appliance.doctor.facts import Engine, Trial
from appliance.doctor.model import MODEL, SUM, W, X
from appliance.engine.client import EngineClient, EngineDied, RunResult
from appliance.engine.messages import Load
from appliance.errors import ApplianceError
from appliance.models.spec import ModelConfig
from appliance.models.tensors import Tensor
from appliance.serving.check import start_engine
from appliance.system.cuda import without_folders
from appliance.system.processes import ChildDidNotConnect

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

_TAIL = 64 * 1024


async def try_out(state: Path, indexes: Sequence[int], limit_s: float) -> Engine:
    """Both providers in one engine, the CPU's first; CUDA's on each ``cuda:index``, where the build has it.

    Never raises; within about ``limit_s`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="appliance-doctor-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "model.onnx").write_bytes(MODEL)
        with (Path(folder) / "engine.log").open("w+b") as log:
            found = await _try(Path(folder), state, indexes, limit_s, log)
            log.seek(max(0, log.seek(0, 2) - _TAIL))
            return Engine(
                providers=found.providers, trials=found.trials, fault=found.fault, said=last_error(log.read())
            )


async def _try(folder: Path, state: Path, indexes: Sequence[int], limit_s: float, log: IO[bytes]) -> Engine:
    process: subprocess.Popen[bytes] | None = None
    client: EngineClient | None = None
    providers: tuple[str, ...] = ()
    trials: list[Trial] = []
    fault = None
    try:
        async with asyncio.timeout(limit_s):
            process, client = await start_engine(log, state)
            providers = client.hello.result().providers
            wanted = [(CPU, "cpu"), *((CUDA, f"cuda:{index}") for index in indexes if CUDA in providers)]
            for handle, (provider, device) in enumerate(wanted, 1):
                late = f"it did not end within {limit_s:.0f} s"
                trials.append(Trial(provider=provider, device=device, error=late))
                one = await _one(client, folder, handle, provider, device)
                trials[-1] = msgspec.structs.replace(one, device=device)
    except TimeoutError:
        fault = None if trials else f"the engine process did not start within {limit_s:.0f} s"
    except EngineDied:
        fault = None if trials else "the engine process ended when it was started"
    except ChildDidNotConnect as error:
        fault = str(error)
    except OSError as error:
        fault = f"the engine process cannot be started: {error.strerror}"
    finally:
        if client is not None:
            client.stop()
            client.close()
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.wait)
    return Engine(providers=providers, trials=tuple(trials), fault=fault)


async def _one(client: EngineClient, folder: Path, handle: int, provider: str, device: str) -> Trial:
    """Load it, which runs it too, then run it twice and look at the answer."""
    load = Load(
        handle=handle,
        model=f"doctor-{device.replace(':', '-')}",
        version="1",
        path=str(folder / "model.onnx"),
        root=str(folder),
        backend="onnx",
        device=device,
        config=ModelConfig(),
        threads=1,
        max_batch=1,
    )
    try:
        spec = (await client.load(load)).spec
        if spec.device != device:
            return Trial(provider=provider, error=spec.degraded or f"it ran on {spec.device}")
        await _run(client, handle)
        answer = await _run(client, handle)
    except ApplianceError as error:
        return Trial(provider=provider, error=error.message)
    except EngineDied:
        return Trial(provider=provider, error="the engine process ended while it ran")
    item = answer.items[0]
    if isinstance(item, ApplianceError):
        return Trial(provider=provider, error=item.message)
    if not np.allclose(np.frombuffer(item[0].data, np.float32), SUM):
        return Trial(provider=provider, ran_on=device, error="it gave a wrong answer")
    return Trial(provider=provider, ran_on=device, run_ms=round(answer.run_ns / 1e6, 3))


async def _run(client: EngineClient, handle: int) -> RunResult:
    done: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()

    def end(result: RunResult | ApplianceError | EngineDied) -> None:
        if done.done():
            return
        if isinstance(result, RunResult):
            done.set_result(result)
        else:
            done.set_exception(result)

    client.run(handle, [[_ones("x", X), _ones("w", W)]], ("y",), end)
    return await done


def _ones(name: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, "FP32", shape, np.ones(shape, np.float32).tobytes())


def last_error(log: bytes) -> str | None:
    """The last line of ONNX Runtime's own that tells an error, without where in its source, and without folders."""
    lines = log.decode("utf-8", "replace").splitlines()
    found = next((line for line in reversed(lines) if re.search(r"\[E:onnxruntime|LoadLibrary failed", line)), None)
    if found is None:
        return None
    words = re.sub(r"\x1b\[[\d;]*m", "", found)
    words = re.sub(r"^.*?\[E:onnxruntime[^\]]*\]\s*", "", words)
    return without_folders(" ".join(words.split()))[:300]
