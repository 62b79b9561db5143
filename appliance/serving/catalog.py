"""Which model versions are served: folders → loads, warm-ups, swaps, unloads. Lives in the server's loop.

One task works off a list of models to look at, so loads never overlap. A new file is loaded and warmed up before
the old copy is let go; a broken one leaves the old copy serving.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from appliance.engine.client import EngineClient, EngineDied
from appliance.errors import (
    EngineRestarting,
    InsufficientMemory,
    ModelLoadError,
    ModelNotFound,
    Overloaded,
    Paused,
    WarmingUp,
)
from appliance.gate.gate import Gate
from appliance.models.repository import ModelFolder, Root, scan
from appliance.serving.events import Events
from appliance.serving.loader import Loader
from appliance.serving.pins import Pins
from appliance.serving.placement import Engines, OneEngine
from appliance.serving.served import ServedModel, ServedVersion
from appliance.settings import Settings

log = structlog.get_logger("models")

_PRESS_EVERY_S = 1.0
_AGAIN_S = 0.2  # between two looks whether there is room


class Catalog:
    """All models. ``roots`` in order of precedence, the user's own folder first; ``engines``: one for everything
    where not given."""

    def __init__(
        self,
        settings: Settings,
        roots: Sequence[Root],
        gate: Gate,
        events: Events,
        engines: Engines | None = None,
    ) -> None:
        self._roots = list(roots)
        self._gate = gate
        self._events = events
        self._clients: dict[str, EngineClient] = {}
        engines = engines or OneEngine(settings.device)
        self._loader = Loader(settings, gate, lambda: list(self.models.values()), engines, self._clients.get)
        self._load_s = settings.load_timeout_ms / 1000
        self._pins = Pins(settings.state_folder() / "pinned.json")
        self._todo: dict[str, None] = {}  # names to look at, in order, once each
        self._at: str | None = None  # the name that is worked on
        self._work = asyncio.Event()
        self._step = asyncio.Event()  # something was worked off, or will never be
        self._closing = False
        self._scan_lock = asyncio.Lock()
        self._scanned = False
        self._short: dict[str, tuple[str, int]] = {}  # model → the device and the bytes that a run of it waits for
        gate.on_short = self._run_waits
        gate.memory.movable = self._loader.movable
        gate.memory.on_press = self._press
        self._pressed: dict[str, float] = {}  # engine → when it was last asked to give memory back
        self.models: dict[str, ServedModel] = {}

    # --- questions -------------------------------------------------------------------------------------------

    def model(self, name: str) -> ServedModel:
        """Raises ModelNotFound; WarmingUp as long as nobody has looked into the folders yet."""
        model = self.models.get(name)
        if model is None and not self._scanned:
            raise WarmingUp("the models folders are being looked at", retry_after_s=1)
        if model is None:
            known = ", ".join(sorted(self.models)[:20]) or "none"
            raise ModelNotFound(f"there is no model '{name[:128]}' (known: {known})", param="model")
        return model

    def version(self, name: str, version: str | None = None) -> ServedVersion:
        """The version that answers requests; without a number the highest that is ready.

        Raises ModelNotFound (also when it failed to load or is not loaded: the message says which) and WarmingUp.
        """
        model = self.model(name)
        if version is None or version == "":
            found = model.newest_ready() or next(reversed(model.versions.values()), None)
        else:
            found = model.versions.get(version)
            if found is None:
                served = ", ".join(model.versions) or "none"
                raise ModelNotFound(f"model '{name}' has no version '{version[:32]}' (served: {served})")
        if found is not None and (found.ready or (found.state == "LOADING" and found.spec is not None)):
            return found  # one that is coming back after an engine's death is known already: requests wait for it
        if model.wanted and (not model.settled or any(v.waking for v in model.versions.values())):
            raise WarmingUp(f"model '{name}' is being loaded", retry_after_s=2)
        why = (found.error if found else None) or model.error
        if found is not None and found.stuck:
            raise EngineRestarting(f"model '{name}': {why}", retry_after_s=5)
        if why:
            raise ModelNotFound(f"model '{name}' is not served: {why}", param="model")
        if model.asleep:
            raise ModelNotFound(f"model '{name}' is not loaded; a request loads it")
        raise ModelNotFound(f"model '{name}' is not loaded; load it with POST /v2/repository/models/{name}/load")

    def model_ready(self, name: str, version: str | None = None) -> bool:
        """True if requests to it would run now; a pipeline is ready when all its parts are. Raises ModelNotFound."""
        model = self.model(name)
        found = model.versions.get(version) if version else model.newest_ready()
        if found is None or not found.ready or not self._clients:
            return False
        parts = model.pipeline.parts if model.pipeline else ()
        return all(part in self.models and self.model_ready(part) for part in parts)

    def ready(self) -> bool:
        """True when every model that must be loaded is warm: none is on its way, and no required one failed."""
        return (
            self._scanned
            and bool(self._clients)
            and all(m.settled for m in self.models.values())
            and all(self.model_ready(m.name) for m in self.models.values() if m.folder.config.required and m.wanted)
        )

    def ready_but_failed(self) -> bool:
        """True when nothing is on its way any more and still a required model does not serve."""
        return self._scanned and bool(self._clients) and all(m.settled for m in self.models.values())

    async def wake(self, name: str, wait_s: float) -> None:
        """Load a model that is asleep; returns when that is done (or has failed: asking for it says why).

        Raises InsufficientMemory when there is no room for it; Overloaded when there was none for now in ``wait_s``
        seconds, WarmingUp when it took longer than that; ModelNotFound, Paused.
        """
        model = self.model(name)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            for number, version in model.versions.items():
                if version.asleep:
                    version.wake()
                if queue := self._gate.queues.get((name, number)):
                    queue.last_used = self._gate.clock()  # it is wanted now: others leave first
            try:
                async with asyncio.timeout_at(until):
                    await self._look_at_and_wait(name)
            except TimeoutError:
                raise WarmingUp(f"model '{name}' is being loaded", retry_after_s=2) from None
            refused = next((v for v in model.versions.values() if v.no_room), None)
            if refused is None:
                return
            words = f"model '{name}': {refused.error}"
            if not refused.for_now:
                raise InsufficientMemory(words)
            if loop.time() + _AGAIN_S > until:
                raise Overloaded(words, retry_after_s=2)
            await asyncio.sleep(_AGAIN_S)

    # --- wishes ----------------------------------------------------------------------------------------------

    async def load(self, name: str) -> None:
        """Load (or load again) what lies in the folder now. Raises ModelNotFound, ModelLoadError."""
        await self.rescan()
        model = self.model(name)
        model.wanted = True
        if model.folder.error:
            raise ModelLoadError(f"model '{name}': {model.folder.error}")
        for version in model.versions.values():
            version.wake()
            version.load_deaths.clear()
        await self._look_at_and_wait(name)
        failed = [v for v in model.versions.values() if v.error]
        if failed or not model.versions:
            why = failed[-1].error if failed else "no version of it can be served"
            if failed and failed[-1].stuck:
                raise EngineRestarting(f"model '{name}': {why}", retry_after_s=5)
            if failed and failed[-1].no_room:
                if failed[-1].for_now:
                    raise Overloaded(f"model '{name}': {why}", retry_after_s=5)
                raise InsufficientMemory(f"model '{name}': {why}")
            raise ModelLoadError(f"model '{name}': {why}")

    async def unload(self, name: str) -> None:
        """Let all versions go; running requests end first. Raises ModelNotFound."""
        self.model(name).wanted = False
        await self._look_at_and_wait(name)

    async def pin(self, name: str, pinned: bool) -> None:
        """A pinned model makes room for no other one, also after a restart. Raises ModelNotFound."""
        self.model(name).pinned = pinned
        await asyncio.to_thread(self._pins.keep, name, pinned)
        self._events.publish("model", name=name)

    async def rescan(self) -> None:
        """Read the folders again and work off what has changed."""
        async with self._scan_lock:
            folders = await asyncio.to_thread(scan, self._roots)
            for name in [*folders, *(n for n in self.models if n not in folders)]:
                self._apply(name, folders.get(name))
            self._scanned = True

    def close(self) -> None:
        """The appliance ends: whoever waits for a load or an unload is told so."""
        self._closing = True
        self._step.set()
        self._loader.close()

    # --- the engine's comings and goings ---------------------------------------------------------------------

    def engine_up(self, client: EngineClient, engine: str = "") -> None:
        """A fresh engine: everything wanted there is loaded into it."""
        self._clients[engine] = client
        self._gate.engine_up = True
        client.on_memory = partial(self._gate.memory_read, engine=engine)
        for name, model in self.models.items():
            for version in model.versions.values():
                version.fresh(engine, require=model.folder.config.device == "require")
            self._look_at(name)
        self._work.set()

    def engine_down(self, reason: str, engine: str = "") -> None:
        """An engine is gone: its copies with it; requests that only it could answer wait in the gate."""
        self._clients.pop(engine, None)
        self._gate.engine_up = bool(self._clients)
        self._gate.memory.cleared(engine)
        for queue in self._gate.queues.values():
            queue.detach(engine, lost=True)
        for name, model in self.models.items():
            for version in model.versions.values():
                if engine in version.copies:
                    version.lost(engine)
                    self._look_at(name)  # another device may take it, if this engine does not come back
        self._events.publish("engine", state="down", reason=reason, engine=engine)

    def engine_failing(self, engine: str) -> None:
        """An engine does not come back for now: what waits for it is loaded elsewhere, or says why it is not."""
        for name, model in self.models.items():
            if model.wanted and any(not (v.current or v.error or v.asleep) for v in model.versions.values()):
                self._look_at(name)

    # --- the one worker --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work off the list for ever."""
        while True:
            if self._short and self._clients:
                await self._make_room()
                continue
            if not self._todo or not self._clients:
                self._work.clear()
                await self._work.wait()
                continue
            self._at = name = next(iter(self._todo))
            model = self.models.get(name)
            del self._todo[name]
            if model is not None:
                await self._settle(model)
                self._events.publish("model", name=name)
            self._at = None
            self._step.set()

    def _run_waits(self, name: str, device: str, size: int) -> None:
        """The gate: a run waits for memory that no other run's end will give."""
        self._short[name] = device, size
        self._work.set()

    def _press(self, engine: str) -> None:
        """The gate: memory that an engine only keeps is needed in another one."""
        client, now = self._clients.get(engine), self._gate.clock()
        if client is not None and now - self._pressed.get(engine, -_PRESS_EVERY_S) >= _PRESS_EVERY_S:
            self._pressed[engine] = now
            client.shrink()

    async def _make_room(self) -> None:
        name, (device, size) = self._short.popitem()
        model = self.models.get(name)
        try:
            if model is not None:
                await self._loader.make_room(model, device, size)
        except Exception:
            log.exception("internal fault", model=name)

    async def _settle(self, model: ServedModel) -> None:
        try:
            await self._loader.settle(model)
        except EngineDied:
            self._look_at(model.name)  # again, with the next engine
        except Exception:
            log.exception("internal fault", model=model.name)
            for version in model.versions.values():
                version.failed("internal fault while loading; see the log")
        if model.gone and not model.versions:
            self.models.pop(model.name, None)

    def _look_at(self, name: str) -> None:
        self._todo[name] = None
        self._work.set()

    async def _look_at_and_wait(self, name: str) -> None:
        """Also waits for an engine that the model needs and that is not up yet. Raises Paused when the appliance
        ends, WarmingUp when it takes longer than a load may."""
        self._look_at(name)
        try:
            async with asyncio.timeout(self._load_s):
                while name in self._todo or self._at == name or self._on_its_way(name):
                    if self._closing:
                        raise Paused("the appliance is shutting down", retry_after_s=5)
                    self._step.clear()
                    await self._step.wait()
        except TimeoutError:
            raise WarmingUp(f"model '{name}' is still being worked on", retry_after_s=5) from None

    def _on_its_way(self, name: str) -> bool:
        """It is to be loaded as soon as its engine is up."""
        model = self.models.get(name)
        return (
            model is not None
            and model.wanted
            and any(v.state == "LOADING" and not v.stuck for v in model.versions.values())
        )

    def _apply(self, name: str, folder: ModelFolder | None) -> None:
        """Take over what the folder says now; only a change makes work."""
        model = self.models.get(name)
        if folder is None:
            if model is not None and not model.gone:
                model.gone, model.wanted = True, False
                self._look_at(name)
            return
        if model is None:
            model = self.models[name] = ServedModel(folder)
            model.pinned = name in self._pins
        elif model.folder == folder and not model.gone:
            return
        else:
            model.replace(folder)
        self._look_at(name)
