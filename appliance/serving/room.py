"""Room for a model that is to be loaded: idle models leave, it is booked, or refused with the arithmetic."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from appliance.errors import InsufficientMemory, Overloaded
from appliance.gate.budget import Ledger
from appliance.gate.gate import Gate
from appliance.models.repository import ModelFile, ModelFolder
from appliance.serving.served import ServedModel, ServedVersion

log = structlog.get_logger("models")

_GROWTH = 1.1  # a loaded model over its files: the runtime's own structures
_MIB = 1 << 20
_LOOK_EVERY_S = 0.02
_BELIEVED_S = 300.0  # another program may have been the reason

Sleeper = tuple[ServedModel, ServedVersion, str]
"""A copy that may leave: of which version, in which engine."""


class Engine(Protocol):
    """What is needed of the engine client."""

    @property
    def runtimes(self) -> dict[str, str]: ...

    async def unload(self, handle: int) -> None: ...

    def ping(self) -> None: ...


class Target(NamedTuple):
    """Where a model is to be loaded: the place (a device policy), the engine there, and its client."""

    place: str
    engine: str
    client: Engine | None


class Room:
    """Used by one task at a time. ``client_of(engine)``: None while that engine is not up."""

    def __init__(
        self,
        gate: Gate,
        models: Callable[[], Iterable[ServedModel]],
        client_of: Callable[[str], Engine | None],
    ) -> None:
        self._gate = gate
        self._models = models
        self._client_of = client_of
        self._learned: dict[
            tuple[str, str, str], tuple[int, float]
        ] = {}  # file → what did not suffice, and until when

    async def during(
        self,
        model: ServedModel,
        folder: ModelFolder,
        file: ModelFile,
        target: Target,
        load: Callable[[], Awaitable[None]],
        warm_up: int = 0,
    ) -> None:
        """``load`` with its room booked on the device that it will come to, so that no run starts into it.

        ``warm_up``: what its largest run is known to take beside the weights. It is booked too, as far as the device
        has it; models leave for the weights only.

        A load that runs out of memory all the same is tried again as long as idle models can leave for it. Raises
        what ``load`` does; InsufficientMemory, with the arithmetic, for what does not fit; Overloaded where busy
        models or other programs have what it needs for now.
        """
        estimate = await asyncio.to_thread(needed, folder, file)
        file_key = (folder.name, file.fingerprint, target.engine)
        while True:
            device = self.home(folder, file, target)
            ledger = self._gate.memory.ledger(device)
            learned, until = self._learned.get(file_key, (0, 0.0))
            size = max(estimate, learned if self._gate.clock() < until else 0)
            await self._make(model, device, size)
            await self._book(file_key, ledger, size, warm_up)
            self._gate.memory.press(device, target.engine, size)
            try:
                await load()
                if target.client is not None:
                    target.client.ping()  # a reading with the new model in it
                return
            except InsufficientMemory:
                if not ledger.known:
                    raise
                least = max(size, ledger.capacity - ledger.weights) + 1
                self._learned[file_key] = (least, self._gate.clock() + _BELIEVED_S)
            finally:
                ledger.end(file_key)
                self._gate.memory.disturbed(device, target.engine)
                self._gate.more_room()

    async def _make(self, model: ServedModel, device: str, size: int) -> None:
        """One after the other leaves; others may be asked for meanwhile, so each time it is looked at anew."""
        gate = self._gate
        while chosen := leavers(gate, self._models(), model, device, size, gate.clock()):
            other, version, engine = chosen[0]
            number, copy = version.file.version, version.copies[engine]
            log.info("makes room", model=other.name, version=number, for_model=model.name)
            version.made_room(engine)
            gate.queue(other.name, number).detach(engine)
            if client := self._client_of(engine):
                await client.unload(copy.handle)
            if copy.spec is not None:
                gate.memory.unloaded(copy.spec.key)

    async def for_run(self, model: ServedModel, device: str, size: int) -> None:
        """Idle models leave for a run of ``model``. Where none may, it waits on: busy ones end, a keep-alive too."""
        with contextlib.suppress(InsufficientMemory, Overloaded):
            await self._make(model, device, size)
            self._gate.more_room()

    def movable(self, model: str, device: str) -> int:
        """The weights on a device that may leave at some time for a run of ``model``."""
        found = _movable(self._gate, self._models(), model, device, self._gate.clock())
        return sum(weight for _, _, weight, _ in found)

    async def _book(self, key: tuple[str, str, str], ledger: Ledger, size: int, warm_up: int) -> None:
        """Runs in flight may have the room yet: they end, and no others start into it. It goes before what waits:
        that may be waiting for this very model.
        """
        gate, waited, longest = self._gate, 0.0, self._gate.limits.run_timeout_ms / 1000

        def wanted() -> int:
            return max(size, min(size + warm_up, ledger.capacity - ledger.weights))

        try:
            while not ledger.fits(key, wanted(), first=True):
                if waited >= longest:
                    raise Overloaded("runs hold the memory that it needs", retry_after_s=5)
                ledger.reserve(key, wanted())
                await asyncio.sleep(_LOOK_EVERY_S)
                waited += _LOOK_EVERY_S
            ledger.start(key, wanted(), key[2])
        finally:
            if ledger.release(key):
                gate.more_room()

    def home(self, folder: ModelFolder, file: ModelFile, target: Target) -> str:
        """The device that a model will come to, as far as it can be told before it is loaded."""
        place, engine, client = target
        memory = self._gate.memory
        known = [device for device, ledger in memory.ledgers.items() if ledger.known]
        if folder.config.backend == "fake":
            return next((d for d in known if d.startswith("fake")), "cpu")
        before = memory.home((folder.name, file.version, engine) if engine else (folder.name, file.version))
        if before is not None:
            return before
        gpus = sorted(device for device in known if device.startswith("cuda"))
        if place.startswith("cpu"):
            return place
        if client is None and place in gpus and folder.config.device != "cpu":
            return place
        if folder.config.device == "cpu" or not any(
            _for_gpus(name, v) for name, v in (client.runtimes if client else {}).items()
        ):
            return "cpu"
        if place.startswith("cuda:"):
            return place if place in gpus else "cpu"  # a card that does not tell its memory does not run
        return gpus[0] if gpus else "cpu"


def _for_gpus(package: str, version: str) -> bool:
    """``onnxruntime-gpu``, ``onnxruntime-genai-cuda``, ``torch`` ``2.9.0+cu130``: made for NVIDIA's cards."""
    return "gpu" in package or "cuda" in package or (package == "torch" and "+cpu" not in version)


def needed(folder: ModelFolder, file: ModelFile) -> int:
    """About what loading takes, in bytes: the version's files and a tenth. A fake model says it itself."""
    if folder.config.backend == "fake":
        return int(folder.config.backend_options.get("weight_bytes", 0))
    path = file.path
    if not path.is_dir() and (path.name.startswith("model.") or path.parent.name.isdigit()):
        path = path.parent  # a folder of its own: data beside the model file belongs to it
    files = path.rglob("*") if path.is_dir() else [path]
    return int(sum(_size(p) for p in files) * _GROWTH)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def leavers(
    gate: Gate, models: Iterable[ServedModel], own: ServedModel, device: str, size: int, now: float
) -> list[Sleeper]:
    """The idle versions that have to leave so that ``size`` bytes fit, the longest unused first; [] if it fits as it
    is. What runs hold does not count: they end.

    Never one that is required or pinned, has requests, or was used within its keep-alive. Raises InsufficientMemory
    with the arithmetic if it does not fit beside the required and pinned models; Overloaded if only those that are
    busy, kept alive, or of other programs are in its way.
    """
    ledger = gate.memory.ledger(device)
    room = ledger.capacity - ledger.weights
    if not ledger.known or size <= room:
        return []
    movable = sorted(_movable(gate, models, own.name, device, now), key=lambda entry: entry[0])
    chosen: list[Sleeper] = []
    idle = 0
    for _, busy, weight, sleeper in movable:
        if busy:
            continue
        idle += weight
        if size > room:
            chosen.append(sleeper)
            room += weight
    if size <= room:
        return chosen
    words = _arithmetic(ledger, device, size, idle)
    if size > ledger.ceiling - ledger.weights + sum(weight for _, _, weight, _ in movable):
        raise InsufficientMemory(words)
    raise Overloaded(words, retry_after_s=5)


def _movable(
    gate: Gate, models: Iterable[ServedModel], own: str, device: str, now: float
) -> Iterable[tuple[float, bool, int, Sleeper]]:
    """(last used, busy or kept alive, weight, which) of each that may ever leave."""
    models, pool = list(models), gate.memory.pool(device)
    pinned = [model for model in models if model.pinned]
    stay = {own, *(m.name for m in pinned), *(part for m in pinned if m.pipeline for part in m.pipeline.parts)}
    for model in models:
        config = model.folder.config
        if model.name in stay or config.required or not model.wanted:
            continue
        for number, version in model.versions.items():
            queue = gate.queues.get((model.name, number))
            if not version.ready or queue is None:
                continue
            busy = bool(queue.running or queue.waiting) or now - queue.last_used < config.keep_alive_s
            for engine, copy in version.copies.items():
                if copy.spec is None or gate.memory.pool(copy.spec.device) != pool:
                    continue
                weight = gate.memory.ledger(device).weight_of(copy.spec.key)
                yield queue.last_used, busy, weight, (model, version, engine)


def _arithmetic(ledger: Ledger, device: str, size: int, idle: int) -> str:
    def mib(n: int) -> str:
        return f"{n / _MIB:.0f} MiB"

    others = f"; other programs hold {mib(ledger.others)}" if ledger.capacity < ledger.ceiling else ""
    return (
        f"it needs about {mib(size)}; {device} can give {mib(ledger.capacity)}, of which models hold "
        f"{mib(ledger.weights)} ({mib(idle)} of it idle) and runs {mib(ledger.in_flight)}{others}"
    )
