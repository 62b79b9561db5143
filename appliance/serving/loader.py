"""Brings one model from what is served to what its folder wants: load, warm-up, swap, let go."""

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterable

import msgspec
import structlog

from appliance.engine.client import EngineClient, EngineDied
from appliance.engine.messages import Known, Load
from appliance.errors import ApplianceError, InsufficientMemory, ModelNotFound, Overloaded
from appliance.gate.gate import Gate
from appliance.models.folder import with_line
from appliance.models.repository import ModelFile, ModelFolder
from appliance.models.spec import ModelSpec
from appliance.pipelines.base import Pipeline, PipelineContext
from appliance.pipelines.build import build
from appliance.serving.lessons import Lessons
from appliance.serving.profiles import Of, Profiles
from appliance.serving.room import Room
from appliance.serving.served import ServedModel, ServedVersion
from appliance.settings import Settings

log = structlog.get_logger("models")

PIPELINE = "pipeline"
_MAX_LOAD_DEATHS = 3


class Loader:
    """Used by one task at a time, so loads never overlap."""

    def __init__(self, settings: Settings, gate: Gate, models: Callable[[], Iterable[ServedModel]]) -> None:
        self._settings = settings
        self._room = Room(gate, models, settings.device)
        self._profiles = Profiles(settings.state_folder() / "profiles")
        self._lessons = Lessons(gate.memory, self._profiles)
        self._gate = gate
        self._handles = itertools.count(1)

    async def settle(self, model: ServedModel, client: EngineClient) -> None:
        """Load what is wanted and not served, then let go what is served and not wanted.

        Raises EngineDied when the engine ended meanwhile.
        """
        folder = model.folder
        if folder.error and not folder.files and not model.gone:
            # The folder cannot be read and nothing serves: the index shows the folder's error, not a version.
            model.versions.clear()
            return
        wished = [file for file in folder.files if model.wanted]
        for file in wished:
            await self._serve(model, folder, model.versions[file.version], client)
        serving = any(model.versions[file.version].ready for file in wished)
        for number, version in list(model.versions.items()):
            if any(file.version == number for file in wished):
                continue
            if wished and not serving and version.state != "UNAVAILABLE":
                await self._serve(model, folder, version, client)  # the old one serves until a new one is warm
            else:
                await self._let_go(model, version, client)

    async def _serve(
        self, model: ServedModel, folder: ModelFolder, version: ServedVersion, client: EngineClient
    ) -> None:
        file = version.file
        if version.current or version.asleep:
            return
        if version.tried == file.fingerprint:
            self._failed(model, version, version.error or "it cannot be loaded")
            return
        if version.load_deaths >= _MAX_LOAD_DEATHS:
            self._failed(model, version, f"loading it ended the engine {_MAX_LOAD_DEATHS} times; it is set aside")
            return
        if version.loaded is None:
            version.state = "LOADING"
        try:
            if folder.config.backend == PIPELINE:
                model.pipeline = self._pipeline(folder, file, None)
                version.serves(file, 0, None)
            else:
                of = Of(folder.name, file.fingerprint, self._bounds, client.runtimes)
                known = await asyncio.to_thread(self._profiles.find, of)
                load = functools.partial(self._load, model, folder, file, version, client, of, known)
                warm_up = largest_run(folder, known, self._settings.max_batch)
                await self._room.during(model, folder, file, client, load, warm_up)
        except EngineDied:
            version.load_deaths += 1
            raise
        except TimeoutError:
            words = f"loading took longer than {self._settings.load_timeout_ms} ms"
            self._failed(model, version, words)
            # The engine's one loader thread is stuck in it, so nothing else could be loaded either.
            self._gate.on_hang(f"model '{model.name}': {words}")
        except (InsufficientMemory, Overloaded) as error:
            self._failed(model, version, error.message, error)
            version.refused(error.message, for_now=isinstance(error, Overloaded))
            log.warning("no room", model=model.name, version=file.version, reason=error.message)
        except ApplianceError as error:
            words = await asyncio.to_thread(with_line, folder, error.message)
            self._failed(model, version, words)
            log.warning("not served", model=model.name, version=file.version, reason=words)

    async def _load(
        self,
        model: ServedModel,
        folder: ModelFolder,
        file: ModelFile,
        version: ServedVersion,
        client: EngineClient,
        of: Of,
        known: Known | None,
    ) -> None:
        handle, old = next(self._handles), version.handle
        message = load_message(self._settings, folder, file, handle)
        async with asyncio.timeout(self._settings.load_timeout_ms / 1000):
            loaded = await client.load(
                msgspec.structs.replace(message, known=known, memory_limit=self._limit(folder, file, client))
            )
        try:
            model.pipeline = self._pipeline(folder, file, loaded.spec)
        except ApplianceError:
            await client.unload(handle)
            raise
        found = Known(
            loaded.spec.device, loaded.spec.max_batch, loaded.costs, loaded.warmup_notes, loaded.spec.good_batch
        )
        if loaded.costs and found != known:
            await asyncio.to_thread(self._profiles.keep, of, found)
        learned = await asyncio.to_thread(self._profiles.learned, of)
        version.serves(file, handle, loaded.spec)
        version.load_ms, version.warmup_ms = loaded.load_ms, loaded.warmup_ms
        version.memory_bytes = loaded.memory_bytes
        key = (model.name, file.version)
        self._gate.memory.loaded(
            key, loaded.spec, loaded.memory_bytes, loaded.costs, loaded.held_bytes, learned=learned
        )
        self._lessons.serves(key, of)
        self._gate.queue(*key).attach(client, handle, loaded.spec)
        log.info("served", model=model.name, version=file.version, device=loaded.spec.device)
        if loaded.spec.degraded:
            log.warning("not on the device asked for", model=model.name, reason=loaded.spec.degraded)
        if old:
            await client.unload(old)

    @property
    def _bounds(self) -> str:
        return f"{self._settings.device} {self._settings.max_batch}"

    def movable(self, model: str, device: str) -> int:
        """See ``Room.movable``."""
        return self._room.movable(model, device)

    async def make_room(self, model: ServedModel, device: str, size: int, client: EngineClient) -> None:
        """Idle models leave for a run of ``model`` that no other run's end would ever make room for."""
        await self._room.for_run(model, device, size, client)

    def close(self) -> None:
        """The program ends: what was learned is kept."""
        self._lessons.flush()

    def _limit(self, folder: ModelFolder, file: ModelFile, client: EngineClient) -> int | None:
        """The budget of the GPU it comes to, as a bound for the runtime's own allocator."""
        device = self._room.home(folder, file, client)
        ledger = self._gate.memory.ledger(device)
        return ledger.ceiling if device.startswith("cuda") and ledger.known else None

    def _failed(
        self, model: ServedModel, version: ServedVersion, words: str, error: ApplianceError | None = None
    ) -> None:
        """The newest file cannot be served. Where no older copy does, what waits is answered now, not at its
        deadline."""
        version.failed(words)
        queue = self._gate.queues.get((model.name, version.file.version))
        if queue is not None and not version.ready:
            missing = ModelNotFound(f"model '{model.name}' is not served: {words}", param="model")
            queue.fail_waiting(error or missing)

    async def _drained(self, model: ServedModel, version: ServedVersion) -> None:
        """Returns when nothing waits for the version any more; every request's own deadline bounds it."""
        queue = self._gate.queues.get((model.name, version.file.version))
        while queue is not None and queue.waiting and self._gate.engine_up:  # noqa: ASYNC110 - rare and short
            await asyncio.sleep(0.02)

    async def _let_go(self, model: ServedModel, version: ServedVersion, client: EngineClient) -> None:
        """No new requests; those that were taken are still answered by it."""
        number = version.file.version
        version.state = "UNAVAILABLE"
        if version.loaded is not None:
            await self._drained(model, version)
        gone = ModelNotFound(f"model '{model.name}' version {number} was unloaded")
        self._gate.forget(model.name, number, gone)
        if version.handle:
            await client.unload(version.handle)
        self._gate.memory.unloaded((model.name, number))
        if not model.gone and any(file.version == number for file in model.folder.files):
            model.versions[number] = ServedVersion(version.file)  # known, not loaded
        else:
            model.versions.pop(number, None)
        if not any(v.loaded for v in model.versions.values()):
            model.pipeline = None

    def _pipeline(self, folder: ModelFolder, file: ModelFile, spec: ModelSpec | None) -> Pipeline:
        own = file.path if file.path.is_dir() else file.path.parent
        folders = (own, folder.path) if folder.path.is_dir() and own != folder.path else (own,)
        options, pixels = folder.config.pipeline, self._settings.max_pixels
        if spec is not None and spec.generation is not None and not options:
            options = {"task": "generate"}
        return build(PipelineContext(folder.name, options, spec, folder.labels, pixels, folders))


def largest_run(folder: ModelFolder, known: Known | None, max_batch: int) -> int:
    """What the largest run of a warm-up takes, as far as that is known before it; else 0."""
    memory = folder.config.memory
    if memory.run_bytes is not None or memory.item_bytes is not None:
        return (memory.run_bytes or 0) + (memory.item_bytes or 0) * (folder.config.batching.max or max_batch)
    return max((point.size for point in known.costs), default=0) if known is not None else 0


def load_message(settings: Settings, folder: ModelFolder, file: ModelFile, handle: int) -> Load:
    """What the engine is told of a version to load."""
    config, declared = folder.config, folder.declared
    return Load(
        handle=handle,
        model=folder.name,
        version=file.version,
        path=str(file.path),
        root=str(file.root),
        backend=config.backend or "onnx",
        device=settings.device,
        config=config,
        threads=config.threads or settings.threads,
        max_batch=settings.max_batch,
        labels=folder.labels,
        declared_inputs=declared.inputs if declared else (),
        declared_outputs=declared.outputs if declared else (),
        declared_max_batch=declared.max_batch if declared else None,
    )
