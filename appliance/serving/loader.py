"""Brings one model from what is served to what its folder wants: load, warm-up, swap, let go."""

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec
import structlog

from appliance.engine.client import EngineClient, EngineDied
from appliance.engine.messages import Known
from appliance.errors import ApplianceError, InsufficientMemory, ModelLoadError, ModelNotFound, Overloaded
from appliance.gate.gate import Gate
from appliance.models.folder import with_line
from appliance.models.repository import ModelFile, ModelFolder
from appliance.models.spec import ModelSpec
from appliance.pipelines.base import Pipeline, PipelineContext
from appliance.pipelines.build import build
from appliance.serving.lessons import Lessons
from appliance.serving.load_order import largest_run, load_message
from appliance.serving.placement import Engines, Placement, Seat
from appliance.serving.profiles import Of, Profiles
from appliance.serving.room import Room, Target
from appliance.serving.served import LoadedCopy, ServedModel, ServedVersion
from appliance.settings import Settings

log = structlog.get_logger("models")

PIPELINE = "pipeline"
_MAX_LOAD_DEATHS = 3
_DEADLY = f"loading it ended the engine {_MAX_LOAD_DEATHS} times; it is set aside"

_Outcome = Literal["served", "coming", "failing"]
"""Of one copy: it is there, its engine is being started, or does not come back for now."""


class Loader:
    """Used by one task at a time, so loads never overlap."""

    def __init__(
        self,
        settings: Settings,
        gate: Gate,
        models: Callable[[], Iterable[ServedModel]],
        engines: Engines,
        client_of: Callable[[str], EngineClient | None],
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._client_of = client_of
        self._room = Room(gate, models, client_of)
        self._placement = Placement(gate, models, engines, client_of, self._room)
        self._profiles = Profiles(settings.state_folder() / "profiles")
        self._lessons = Lessons(gate.memory, self._profiles)
        self._gate = gate
        self._handles = itertools.count(1)

    async def settle(self, model: ServedModel) -> None:
        """Load what is wanted and not served, then let go what is served and not wanted.

        What belongs into an engine that is not up yet is left: it is to be called again when that is. Raises
        EngineDied when an engine ended meanwhile.
        """
        folder = model.folder
        if folder.error and not folder.files and not model.gone:
            # The folder cannot be read and nothing serves: the index shows the folder's error, not a version.
            model.versions.clear()
            return
        wished = [file for file in folder.files if model.wanted]
        for file in wished:
            await self._serve(model, folder, model.versions[file.version])
        serving = any(model.versions[file.version].ready for file in wished)
        for number, version in list(model.versions.items()):
            if any(file.version == number for file in wished):
                continue
            if wished and not serving and version.state != "UNAVAILABLE":
                await self._serve(model, folder, version)  # the old one serves until a new one is warm
            else:
                await self._let_go(model, version)

    async def _serve(self, model: ServedModel, folder: ModelFolder, version: ServedVersion) -> None:
        file = version.file
        if version.asleep or (version.current and not folder.config.devices):
            return
        if version.tried == file.fingerprint:
            self._failed(model, version, version.error or "it cannot be loaded")
            return
        if not folder.config.devices and version.load_deaths.total() >= _MAX_LOAD_DEATHS:
            self._failed(model, version, _DEADLY)
            return
        if version.stuck:
            version.stuck, version.error = False, None
        if not version.copies:
            version.state = "LOADING"
        version.progress = None
        try:
            if folder.config.backend == PIPELINE:
                model.pipeline = await asyncio.to_thread(self._pipeline, folder, file, None)
                version.serves(LoadedCopy(file.fingerprint, 0, None))
                return
            await self._copies(model, folder, version)
        except (InsufficientMemory, Overloaded) as error:
            self._failed(model, version, error.message, error)
            version.refused(error.message, for_now=isinstance(error, Overloaded))
            log.warning("no room", model=model.name, version=file.version, reason=error.message)
        except ApplianceError as error:
            words = await asyncio.to_thread(with_line, folder, error.message)
            self._failed(model, version, words)
            log.warning("not served", model=model.name, version=file.version, reason=words)

    async def _copies(self, model: ServedModel, folder: ModelFolder, version: ServedVersion) -> None:
        """A copy on each device that the folder names, else one where it fits best. A device that cannot take its
        copy keeps no other from it. Raises why, where none could."""
        found: set[_Outcome] = set()
        asked: list[str] = []
        for seats in await self._placement.seats(folder, version):
            engine = seats[0].engine
            if folder.config.devices and version.load_deaths[engine] >= _MAX_LOAD_DEATHS:
                version.barred[engine] = ModelLoadError(_DEADLY)
            if engine in version.barred:
                continue
            asked += [seat.engine for seat in seats]
            try:
                found.add(await self._serve_one(model, folder, version, seats))
            except ApplianceError as error:
                if not folder.config.devices:
                    raise
                error.message = await asyncio.to_thread(with_line, folder, error.message)
                log.warning("no copy", model=model.name, engine=engine, reason=error.message)
                version.barred[engine] = error
        if "served" in found:
            version.lacks()
        elif "failing" in found and "coming" not in found:
            version.waits(f"its engine {' or '.join(asked)} does not start; see the engine's log")
        elif not found and version.barred:
            raise _mildest(version.barred.values())

    async def _serve_one(
        self, model: ServedModel, folder: ModelFolder, version: ServedVersion, seats: list[Seat]
    ) -> _Outcome:
        """One copy, on the first of the seats that has room for it. Raises what loading does."""
        refusals: list[ApplianceError] = []
        for seat in seats:
            if version.has(seat.engine):
                return "served"
            self._engines.engine(seat.place, seat.family)
            client = self._client_of(seat.engine)
            if client is None and not self._engines.failing(seat.engine):
                return "coming"
            if client is None:
                continue
            try:
                await self._serve_at(model, folder, version, Target(seat.place, seat.engine, client), client)
                return "served"
            except (InsufficientMemory, Overloaded) as error:
                refusals.append(error)
        if refusals:
            raise _mildest(refusals)
        return "failing"

    async def _serve_at(
        self, model: ServedModel, folder: ModelFolder, version: ServedVersion, target: Target, client: EngineClient
    ) -> None:
        file = version.file
        of = Of(folder.name, file.fingerprint, f"{target.place} {self._settings.max_batch}", client.runtimes)
        known = await asyncio.to_thread(self._profiles.find, of)
        load = functools.partial(self._load, model, folder, version, target, client, of, known)
        warm_up = largest_run(folder, known, self._settings.max_batch)
        try:
            await self._room.during(model, folder, file, target, load, warm_up)
        except EngineDied:
            version.load_deaths[target.engine] += 1
            raise
        except TimeoutError:
            words = f"loading took longer than {self._settings.load_timeout_ms} ms"
            # The engine's one loader thread is stuck in it, so nothing else could be loaded either.
            self._gate.on_hang(f"model '{model.name}': {words}", target.engine)
            raise ModelLoadError(words) from None

    async def _load(
        self,
        model: ServedModel,
        folder: ModelFolder,
        version: ServedVersion,
        target: Target,
        client: EngineClient,
        of: Of,
        known: Known | None,
    ) -> None:
        file, engine, place = version.file, target.engine, target.place
        handle, old = next(self._handles), version.copies.get(engine)
        message = load_message(self._settings, folder, file, handle)
        message = msgspec.structs.replace(
            message,
            device="cpu" if place.startswith("cpu") else place,
            threads=message.threads or self._engines.threads(place),
            known=known,
            memory_limit=self._limit(folder, file, target),
        )
        async with asyncio.timeout(self._settings.load_timeout_ms / 1000):
            loaded = await client.load(message, functools.partial(setattr, version, "progress"))
        numbered = place.startswith("cpu:") and loaded.spec.device == "cpu"
        spec = msgspec.structs.replace(loaded.spec, engine=engine, device=place if numbered else loaded.spec.device)
        try:
            # It may read files: a tokenizer of some megabytes takes a while.
            pipeline = await asyncio.to_thread(self._pipeline, folder, file, spec)
        except ApplianceError:
            await client.unload(handle)
            raise
        found = Known(
            loaded.spec.device, spec.max_batch, loaded.costs, loaded.warmup_notes, spec.good_batch, spec.providers
        )
        if loaded.costs and found != known:
            await asyncio.to_thread(self._profiles.keep, of, found)
        learned = await asyncio.to_thread(self._profiles.learned, of)
        if self._client_of(engine) is not client:
            raise EngineDied("the engine ended when the model was loaded")
        model.pipeline = pipeline
        copy = LoadedCopy(file.fingerprint, handle, spec, loaded.load_ms, loaded.warmup_ms, loaded.memory_bytes)
        version.serves(copy, engine)
        if not folder.config.devices:
            version.load_deaths.clear()
        self._gate.memory.loaded(
            spec.key, spec, loaded.memory_bytes, loaded.costs, loaded.held_bytes, learned=learned
        )
        self._lessons.serves(spec.key, of)
        queue = self._gate.queue(model.name, file.version)
        others = [e for e, other in version.copies.items() if other.fingerprint != file.fingerprint]
        for other in others:
            queue.detach(other)  # answers are of one file from now on
        queue.attach(client, handle, spec)
        log.info("served", model=model.name, version=file.version, device=spec.device)
        if spec.degraded:
            log.warning("not on the device asked for", model=model.name, reason=spec.degraded)
        if old is not None:
            await client.unload(old.handle)
        for other in others:
            await self._unload(model, version, other)

    async def _unload(self, model: ServedModel, version: ServedVersion, engine: str) -> None:
        copy = version.copies.pop(engine, None)
        if copy is None:  # it went with its engine meanwhile
            return
        if queue := self._gate.queues.get((model.name, version.file.version)):
            queue.detach(engine)
        if client := self._client_of(engine):
            await client.unload(copy.handle)
        if copy.spec is not None:
            self._gate.memory.unloaded(copy.spec.key)

    def movable(self, model: str, device: str) -> int:
        """See ``Room.movable``."""
        return self._room.movable(model, device)

    async def make_room(self, model: ServedModel, device: str, size: int) -> None:
        """Idle models leave for a run of ``model`` that no other run's end would ever make room for."""
        await self._room.for_run(model, device, size)

    def close(self) -> None:
        """The program ends: what was learned is kept."""
        self._lessons.flush()

    def _limit(self, folder: ModelFolder, file: ModelFile, target: Target) -> int | None:
        """The budget of the GPU it comes to, as a bound for the runtime's own allocator."""
        device = self._room.home(folder, file, target)
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
        while queue is not None and queue.waiting and queue.copies:  # noqa: ASYNC110 - rare and short
            await asyncio.sleep(0.02)

    async def _let_go(self, model: ServedModel, version: ServedVersion) -> None:
        """No new requests; those that were taken are still answered by it."""
        number = version.file.version
        version.state = "UNAVAILABLE"
        if version.loaded:
            await self._drained(model, version)
        gone = ModelNotFound(f"model '{model.name}' version {number} was unloaded")
        self._gate.forget(model.name, number, gone)
        for engine in list(version.copies):
            await self._unload(model, version, engine)
        if not model.gone and any(file.version == number for file in model.folder.files):
            model.versions[number] = ServedVersion(version.file)  # known, not loaded
        else:
            model.versions.pop(number, None)
        if not any(v.loaded for v in model.versions.values()):
            model.pipeline = None

    def _pipeline(self, folder: ModelFolder, file: ModelFile, spec: ModelSpec | None) -> Pipeline:
        folders = folder.beside(file)
        options, pixels = folder.config.pipeline, self._settings.max_pixels
        if spec is not None and spec.generation is not None and not options:
            options = {"task": "generate"}
        return build(PipelineContext(folder.name, options, spec, folder.labels, pixels, folders))


def _mildest(errors: Iterable[ApplianceError]) -> ApplianceError:
    """The one that gives most hope: what is full for now, what is full, what is broken."""
    return min(errors, key=lambda e: (not isinstance(e, Overloaded), not isinstance(e, InsufficientMemory)))
