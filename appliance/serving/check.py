"""``models check``: load models in an engine of its own, so that a bad one harms nobody, and say what is wrong."""

import asyncio
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from appliance.backends import MAIN_FAMILY
from appliance.engine.client import EngineClient, EngineDied
from appliance.engine.fleet import family_of, places_here
from appliance.errors import ApplianceError
from appliance.models.folder import with_line
from appliance.models.repository import ModelFile, ModelFolder
from appliance.models.spec import ModelConfig, ModelSpec
from appliance.pipelines.base import PipelineContext
from appliance.pipelines.build import build
from appliance.serving.load_order import load_message
from appliance.serving.loader import PIPELINE
from appliance.serving.placement import allowed, backend_name
from appliance.settings import Settings
from appliance.system import devices, paths
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
    places = await asyncio.to_thread(_places, settings.device)
    engines = _Engines(settings.state_folder())
    try:
        for folder in folders:
            if folder.error:
                yield Checked(folder.name, "", folder.error)
            for file in folder.files:
                if folder.config.backend == PIPELINE:
                    yield await asyncio.to_thread(_pipeline, settings, folder, file, None, 0.0)
                else:
                    yield await _version(settings, folder, file, places, engines, handles)
    finally:
        await engines.stop()


async def _version(
    settings: Settings,
    folder: ModelFolder,
    file: ModelFile,
    places: Sequence[str],
    engines: "_Engines",
    handles: Iterator[int],
) -> Checked:
    """Loaded on each device that it names, or on the first that may take it."""
    family = family_of(backend_name(folder, file))
    message = load_message(settings, folder, file, 0)
    verdict: Checked | None = None
    client = await engines.client(family)
    try:
        for device in _devices(folder.config, places):
            async with asyncio.timeout(settings.load_timeout_ms / 1000):
                loaded = await client.load(msgspec.structs.replace(message, handle=next(handles), device=device))
            if verdict is None:
                verdict = await asyncio.to_thread(_pipeline, settings, folder, file, loaded.spec, loaded.load_ms)
            await client.unload(loaded.handle)
    except ApplianceError as error:
        return Checked(folder.name, file.version, await asyncio.to_thread(with_line, folder, error.message))
    except (EngineDied, TimeoutError) as error:
        engines.kill(family)
        died = isinstance(error, EngineDied)
        return Checked(
            folder.name, file.version, "it ends the engine process" if died else "it does not load in time"
        )
    assert verdict is not None  # there is a device for each model
    return verdict


def _places(policy: str) -> list[str]:
    probe = devices.detect()
    try:
        return [place.device for place in places_here(policy, probe.read())]
    finally:
        probe.close()


def _devices(config: ModelConfig, places: Sequence[str]) -> list[str]:
    """As an engine is told them: its shares of the cores are the supervisor's business."""
    found = allowed(config, places)
    wanted = found if config.devices else found[:1]
    return list(dict.fromkeys("cpu" if place.startswith("cpu") else place for place in wanted))


class _Engines:
    """An engine for each family of backends, started when a model needs it."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._clients: dict[str, EngineClient] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: list[subprocess.Popen[bytes]] = []

    async def client(self, family: str) -> EngineClient:
        """Raises what ``start_engine`` does."""
        if family not in self._clients:
            self._processes[family], self._clients[family] = await start_engine(None, self._state, family)
        return self._clients[family]

    def kill(self, family: str) -> None:
        """The next model has a fresh one."""
        self._clients.pop(family)
        process = self._processes.pop(family)
        process.kill()
        self._ended.append(process)

    async def stop(self) -> None:
        for client in self._clients.values():
            client.stop()
        for process in [*self._processes.values(), *self._ended]:
            await asyncio.to_thread(process.wait)


async def start_engine(
    log: IO[bytes] | None = None, state: Path | None = None, family: str = MAIN_FAMILY
) -> tuple[subprocess.Popen[bytes], EngineClient]:
    """An engine of one's own that has said hello; what it prints goes to ``log`` (None: where this process's does).
    ``state``: the state folder, whose runtime packs it may use; ``family``: of its backends.

    Raises EngineDied, ChildDidNotConnect, OSError, or TimeoutError after a minute.
    """
    command = paths.engine_command("error", state, family)
    process, connection = await asyncio.to_thread(start_child, command, None, log)
    client = EngineClient(lambda reason: None)
    try:
        await client.connect(connection)
        await asyncio.wait_for(asyncio.shield(client.hello), 60)
    except BaseException:
        process.kill()
        raise
    return process, client


def _pipeline(
    settings: Settings, folder: ModelFolder, file: ModelFile, spec: ModelSpec | None, load_ms: float
) -> Checked:
    notes = (*folder.notes, *(spec.notes if spec else ()))
    options, pixels = folder.config.pipeline, settings.max_pixels
    try:
        build(PipelineContext(folder.name, options, spec, folder.labels, pixels, folder.beside(file)))
    except ApplianceError as error:
        return Checked(folder.name, file.version, error.message, spec, load_ms, notes)
    return Checked(folder.name, file.version, None, spec, load_ms, notes)
