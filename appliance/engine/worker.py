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
from appliance.backends.base import Backend, DeviceLost, LoadRequest, Opened, Session
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
    Run,
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
from appliance.models import padding
from appliance.models.declared import Declared, check_declared
from appliance.models.spec import ModelSpec, Pad, TensorSpec
from appliance.models.tensors import Buffer
from appliance.system import collector, devices

log = structlog.get_logger("engine")


class Worker:
    """One engine. ``serve`` returns when the host is gone or says stop. ``packs``: where runtime packs are."""

    def __init__(self, sock: socket.socket, packs: Path | None = None) -> None:
        self._sock = sock
        self._packs = packs
        self._reader = FrameReader(sock)
        self._write = threading.Lock()
        self._models: dict[int, LoadedModel] = {}
        self._loads: queue.SimpleQueue[Load | Unload] = queue.SimpleQueue()
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
            case Load() | Unload():
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
            onnx = self._backend("onnx")
            runtimes, providers = onnx.runtimes(), onnx.providers()
        except ModelLoadError as error:
            log.warning("no runtime", reason=error.message)
        collector.calm()  # looking through the modules again and again holds up runs for some 4 ms
        self._send(Hello(os.getpid(), runtimes, providers), ())

    def _backend(self, name: str) -> Backend:
        if name not in self._backends:
            self._backends[name] = backends.get(name, self._packs)
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

    def _load(self, m: Load) -> None:
        before = self._memory.read()
        started = time.perf_counter()
        request = LoadRequest(
            model=m.model,
            path=Path(m.path),
            root=Path(m.root),
            device=m.device,
            threads=m.threads,
            config=m.config,
            memory_limit=m.memory_limit,
        )
        session = self._backend(m.backend).open(request)
        loaded = time.perf_counter()
        device = session.opened.device
        weights = max(0, self._memory.used(device) - (before[device].ours if device in before else 0))
        try:
            if session.opened.generation is not None:
                self._serve_language(m, session, weights, started, loaded)
                return
            inputs = _narrowed(m, session.opened)
            candidate, declared = _batch_candidate(m, session.opened)
            pads = _pads(m, session.opened)
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
            notes=opened.notes + warmed.notes + _pads_unused(pads, warmed.max_batch) + health.notes,
            labels=m.labels,
            config=m.config,
            pads=pads if warmed.max_batch > 1 else {},
        )
        kind = PaddedModel if spec.pads else LoadedModel
        self._models[m.handle] = kind(spec, session, self._send, health=health)
        done = time.perf_counter()
        log.info("loaded", model=m.model, version=m.version, device=spec.device, ms=round((done - started) * 1000))
        times = (loaded - started) * 1000, (done - loaded) * 1000
        self._send(Loaded(m.handle, spec, *times, weights, warmed.costs, warmed.notes, warmed.held), ())

    def _serve_language(self, m: Load, session: Session, weights: int, started: float, loaded: float) -> None:
        """A language model: its runs are streams, what they take is computed, and it has no canary."""
        notes = speak(session)
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


def _narrowed(m: Load, opened: Opened) -> tuple[TensorSpec, ...]:
    """The file's inputs with the sizes that a foreign config fixes. Raises ModelLoadError where the two differ."""
    declared = Declared(m.declared_inputs, m.declared_outputs, m.declared_max_batch)
    faults = check_declared(declared, opened.inputs, opened.outputs)
    if faults:
        raise ModelLoadError("; ".join(faults[:3]))
    shapes = {t.name: t.shape for t in m.declared_inputs if t.shape}
    return tuple(msgspec.structs.replace(t, shape=shapes.get(t.name, t.shape)) for t in opened.inputs)


def _pads(m: Load, opened: Opened) -> dict[str, Pad]:
    """The lengths that the operator says may be filled up. Raises ModelLoadError where they do not suit the model."""
    found = m.config.batching.pad
    if faults := list(padding.faults(found, opened.inputs, opened.outputs)):
        raise ModelLoadError("; ".join(faults[:3]))
    return found


def _pads_unused(pads: dict[str, Pad], max_batch: int) -> tuple[str, ...]:
    return ("batching.pad is not used, requests are never merged",) if pads and max_batch <= 1 else ()


def _declared_batch(m: Load) -> int | None:
    """The operator's word on merging, from ``model.toml`` or a foreign config; None: not said."""
    return m.config.batching.max if m.config.batching.max is not None else m.declared_max_batch


def _batch_candidate(m: Load, opened: Opened) -> tuple[int, bool]:
    """(most items of a merged run, whether the operator said so); 0: never merged.

    Raises ModelLoadError when a batch is declared that the file's shapes rule out.
    """
    word = _declared_batch(m)
    tensors: tuple[TensorSpec, ...] = (*opened.inputs, *opened.outputs)
    possible = all(t.shape and t.shape[0] == -1 for t in tensors) and bool(opened.inputs)
    if word is None:
        return (m.max_batch if possible and opened.batch_axis else 0), False
    if word <= 1:
        return 0, True
    if not possible:
        fixed = next(t for t in tensors if not t.shape or t.shape[0] != -1)
        raise ModelLoadError(
            f"a batch of {word} is declared, but '{fixed.name}' {fixed.describe()} has no free first axis"
        )
    return word, True


def main(sock: socket.socket, packs: Path | None = None) -> None:
    """Serve until the host goes, then end at once: lanes may hang in native code and are not waited for."""
    try:
        Worker(sock, packs).serve()
    finally:
        os._exit(0)
