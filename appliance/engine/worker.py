"""The engine process: reads frames, loads models in one thread, runs them in lanes, answers. (Child side.)"""

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import structlog

from appliance import backends
from appliance.backends.base import Backend, DeviceLost, LoadRequest, Session, Shrinkable
from appliance.engine import load_rules
from appliance.engine.canary import watch
from appliance.engine.channel import FrameReader, decode_for_engine, frame, send
from appliance.engine.lanes import LoadedModel
from appliance.engine.memory import MemoryReader
from appliance.engine.messages import (
    Cancel,
    Check,
    Checked,
    Done,
    Failed,
    Hello,
    Load,
    Loaded,
    Ping,
    Pong,
    Progress,
    Run,
    Shrink,
    Stop,
    ToHost,
    Unfit,
    Unload,
)
from appliance.engine.padded import PaddedModel
from appliance.engine.reading import ReadingLoop
from appliance.engine.speech import speak
from appliance.engine.warmup import smallest, warm_again, warm_up
from appliance.errors import ApplianceError, ModelLoadError
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Buffer
from appliance.system import collector, devices

log = structlog.get_logger("engine")


class Worker:
    """One engine. ``serve`` returns when the host is gone or says stop. ``packs``: where runtime packs are;
    ``family``: of the backends that it is for."""

    def __init__(self, sock: socket.socket, packs: Path | None = None, family: str = backends.MAIN_FAMILY) -> None:
        self._sock = sock
        self._packs = packs
        self._family = family
        self._reader = FrameReader(sock)
        self._write = threading.Lock()
        self._models: dict[int, LoadedModel] = {}
        self._loads: queue.SimpleQueue[Load | Unload | Shrink] = queue.SimpleQueue()
        self._backends: dict[str, Backend] = {}
        self._memory = MemoryReader(devices.detect(), lambda: list(self._backends.values()))

    def serve(self) -> None:
        """Hear what the host says. Loads and all but short runs happen in other threads, so a heartbeat is always
        answered."""
        threading.Thread(target=self._loader, name="loader", daemon=True).start()
        self._hello()
        ReadingLoop(self._reader, self._act).serve()

    def _act(self, header: bytes, payload: memoryview) -> Callable[[], None] | bool:
        """What to do with a frame; see ``ReadingLoop``."""
        message = decode_for_engine(header)
        match message:
            case Run():
                return self._run(message, payload)
            case Ping():
                busy = sum(m.busy for m in list(self._models.values()))
                self._send(Pong(message.n, self._memory.rss(), busy, self._memory.read()), ())
            case Cancel():
                for model in list(self._models.values()):
                    model.cancel(message.id)
            case Check():
                threading.Thread(target=self._check, args=(message.n,), name="check", daemon=True).start()
            case Load() | Unload() | Shrink():
                self._loads.put(message)
            case Stop():
                return False
        return True

    def _send(self, message: ToHost, payload: Sequence[Buffer]) -> None:
        pieces = frame(message, payload)
        try:
            with self._write:
                send(self._sock, pieces)
        except OSError:
            # The host is gone; the reading loop sees the same and ends the process.
            log.debug("the host does not listen any more")

    def _hello(self) -> None:
        runtimes: dict[str, str] = {}
        providers: tuple[str, ...] = ()
        try:
            for name, family in backends.FAMILIES.items():
                if family == self._family:
                    main = self._backend(name)
                    runtimes, providers = main.runtimes(), main.providers()
        except ModelLoadError as error:
            log.warning("no runtime", reason=error.message)
        collector.calm()  # looking through the modules again and again holds up runs for some 4 ms
        self._send(Hello(os.getpid(), runtimes, providers), ())

    def _backend(self, name: str) -> Backend:
        if name not in self._backends:
            try:
                self._backends[name] = backends.get(name, self._packs)
            except OSError as error:  # what an import raises where a library does not load; its text names paths
                log.error("the runtime does not load", backend=name, reason=str(error))
                words = f"the libraries of backend '{name}' cannot be loaded; see the engine's log"
                raise ModelLoadError(words) from None
        return self._backends[name]

    def _run(self, message: Run, payload: memoryview) -> Callable[[], None] | bool:
        model = self._models.get(message.handle)
        if model is None:
            self._send(Failed("run", message.id, "model_not_found", "the model is not loaded"), ())
        elif model.quick and not message.stream and not self._reader.more:
            return partial(model.run_here, message, payload)
        else:
            model.submit(message, payload)
        return True

    def _check(self, n: int) -> None:
        models = list(self._models.values())
        for model in models:
            if words := model.check():
                log.error("unfit", reason=words)
                self._send(Unfit(words), ())
                return
        self._send(Checked(n, sum(m.has_canary for m in models)), ())

    def _loader(self) -> None:
        while True:
            message = self._loads.get()
            if isinstance(message, Shrink):
                self._shrink()
                continue
            if isinstance(message, Unload):
                model = self._models.pop(message.handle, None)
                if model:
                    model.close()
                    log.info("unloaded", model=model.spec.name, version=model.spec.version)
                self._send(Done(message.handle), ())
                continue
            try:
                self._load(message)
            except ApplianceError as error:
                log.warning("load failed", model=message.model, version=message.version, reason=error.message)
                self._send(Failed("load", message.handle, error.code, error.message), ())
            except DeviceLost as error:
                log.error("the device is lost", model=message.model, reason=str(error))
                self._send(Unfit(f"the device is lost while model '{message.model}' is loaded: {error}"), ())
            except Exception as error:
                log.exception("load failed", model=message.model, version=message.version)
                words = f"{type(error).__name__} while loading"
                self._send(Failed("load", message.handle, "model_error", words), ())

    def _shrink(self) -> None:
        for backend in list(self._backends.values()):
            if isinstance(backend, Shrinkable):
                backend.shrink()

    def _load(self, m: Load) -> None:
        # What a process holds is told in the same way before and after: on a board whose GPU has no memory of its own
        # a reading counts the GPU's part too.
        before = {device: r.ours for device, r in self._memory.read().items()} | {"cpu": self._memory.rss()}
        started = time.perf_counter()
        request = LoadRequest(
            model=m.model,
            path=Path(m.path),
            root=Path(m.root),
            device=m.device,
            threads=m.threads,
            config=m.config,
            memory_limit=m.memory_limit,
            inputs=m.declared_inputs,
            outputs=m.declared_outputs,
            max_batch=m.max_batch if (word := load_rules.declared_batch(m)) is None else word,
            progress=lambda words: self._send(Progress(m.handle, words), ()),
            trusted=m.trusted,
        )
        session = self._backend(m.backend).open(request)
        loaded = time.perf_counter()
        device = session.opened.device
        weights = max(0, self._memory.used(device) - before.get(device, 0))
        try:
            if session.opened.generation is not None:
                self._serve_language(m, session, weights, started, loaded)
                return
            inputs = load_rules.narrowed(m, session.opened)
            candidate, declared = load_rules.batch_candidate(m, session.opened)
            pads = load_rules.pads(m, session.opened)
            used = partial(self._memory.used, device)
            warmed = warm_again(session, m.config.warmup, candidate, m.known, used, pads) if m.known else None
            if warmed is None:
                warmed = warm_up(session, m.config.warmup, candidate, declared, used, pads)
            canary = smallest(session.opened.inputs, m.config.warmup, pads)
            config = msgspec.structs.replace(m.config, warmup=canary)
            health = watch(session, m.model, config, candidate > 0)
        except ApplianceError:
            session.close()
            raise
        opened = session.opened
        spec = ModelSpec(
            name=m.model,
            version=m.version,
            platform=opened.platform,
            backend=m.backend,
            inputs=inputs,
            outputs=opened.outputs,
            max_batch=warmed.max_batch,
            good_batch=warmed.good_batch,
            batch_limit=m.declared_max_batch or 0,
            device=opened.device,
            providers=opened.providers,
            degraded=opened.degraded,
            cpu_nodes=opened.cpu_nodes,
            notes=opened.notes + warmed.notes + load_rules.pads_unused(pads, warmed.max_batch) + health.notes,
            labels=m.labels,
            config=m.config,
            pads=pads if warmed.max_batch > 1 else {},
        )
        kind = PaddedModel if spec.pads else LoadedModel
        model = kind(spec, session, self._send, health=health)
        model.prime()
        self._models[m.handle] = model
        done = time.perf_counter()
        log.info("loaded", model=m.model, version=m.version, device=spec.device, ms=round((done - started) * 1000))
        times = (loaded - started) * 1000, (done - loaded) * 1000
        self._send(Loaded(m.handle, spec, *times, weights, warmed.costs, warmed.notes, warmed.held), ())

    def _serve_language(self, m: Load, session: Session, weights: int, started: float, loaded: float) -> None:
        """A language model: its runs are streams, what they take is computed, and it has no canary."""
        notes = speak(session) if m.config.warmup.enabled else ()
        opened = session.opened
        spec = ModelSpec(
            name=m.model,
            version=m.version,
            platform=opened.platform,
            backend=m.backend,
            inputs=opened.inputs,
            outputs=opened.outputs,
            device=opened.device,
            providers=opened.providers,
            degraded=opened.degraded,
            notes=opened.notes + notes,
            config=m.config,
            generation=opened.generation,
        )
        self._models[m.handle] = LoadedModel(spec, session, self._send)
        done = time.perf_counter()
        log.info("loaded", model=m.model, version=m.version, device=spec.device, ms=round((done - started) * 1000))
        self._send(Loaded(m.handle, spec, (loaded - started) * 1000, (done - loaded) * 1000, weights), ())


def main(sock: socket.socket, packs: Path | None = None, family: str | None = None) -> None:
    """Serve until the host goes, then end at once: lanes may hang in native code and are not waited for."""
    try:
        Worker(sock, packs, family or backends.MAIN_FAMILY).serve()
    finally:
        os._exit(0)
