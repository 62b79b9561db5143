"""``models check``: load models in an engine of its own, so that a bad one harms nobody, and say what is wrong."""

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from appliance.engine.client import EngineClient, EngineDied
from appliance.errors import ApplianceError
from appliance.models.repository import ModelFolder
from appliance.models.spec import ModelSpec
from appliance.pipelines.base import PipelineContext
from appliance.pipelines.build import build
from appliance.serving.loader import PIPELINE, load_message
from appliance.settings import Settings
from appliance.system import paths
from appliance.system.processes import start_child


class Checked(msgspec.Struct, frozen=True):
    """One version's verdict: ``error`` is None when it is fine."""

    name: str
    version: str
    error: str | None
    spec: ModelSpec | None = None
    load_ms: float = 0.0
    notes: tuple[str, ...] = ()


async def check(settings: Settings, folders: Sequence[ModelFolder]) -> AsyncIterator[Checked]:
    """A verdict for each version of each folder, as soon as it is known."""
    handles = itertools.count(1)
    client: EngineClient | None = None
    process: subprocess.Popen[bytes] | None = None
    try:
        for folder in folders:
            if folder.error:
                yield Checked(folder.name, "", folder.error)
            for file in folder.files:
                if folder.config.backend == PIPELINE:
                    yield _pipeline(settings, folder, file.version, None, 0.0)
                    continue
                if client is None:
                    process, client = await start_engine(None, settings.state_folder())
                try:
                    async with asyncio.timeout(settings.load_timeout_ms / 1000):
                        loaded = await client.load(load_message(settings, folder, file, next(handles)))
                    yield _pipeline(settings, folder, file.version, loaded.spec, loaded.load_ms)
                    await client.unload(loaded.handle)
                except ApplianceError as error:
                    yield Checked(folder.name, file.version, error.message)
                except (EngineDied, TimeoutError) as error:
                    died = isinstance(error, EngineDied)
                    told = "it ends the engine process" if died else "it does not load in time"
                    yield Checked(folder.name, file.version, told)
                    if process is not None:
                        process.kill()
                    client = None
    finally:
        if client is not None:
            client.stop()
        if process is not None:
            await asyncio.to_thread(process.wait)


async def start_engine(
    log: IO[bytes] | None = None, state: Path | None = None
) -> tuple[subprocess.Popen[bytes], EngineClient]:
    """An engine of one's own that has said hello; what it prints goes to ``log`` (None: where this process's does).
    ``state``: the state folder, whose runtime packs it may use.

    Raises EngineDied, ChildDidNotConnect, OSError, or TimeoutError after a minute.
    """
    process, connection = await asyncio.to_thread(start_child, paths.engine_command("error", state), None, log)
    client = EngineClient(lambda reason: None)
    try:
        await client.connect(connection)
        await asyncio.wait_for(asyncio.shield(client.hello), 60)
    except BaseException:
        process.kill()
        raise
    return process, client


def _pipeline(
    settings: Settings, folder: ModelFolder, version: str, spec: ModelSpec | None, load_ms: float
) -> Checked:
    notes = (*folder.notes, *(spec.notes if spec else ()))
    try:
        build(PipelineContext(folder.name, folder.config.pipeline, spec, folder.labels, settings.max_pixels))
    except ApplianceError as error:
        return Checked(folder.name, version, error.message, spec, load_ms, notes)
    return Checked(folder.name, version, None, spec, load_ms, notes)
