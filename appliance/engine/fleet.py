"""All engine processes: one per place and backend family. Host side, in the server's loop.

A *place* is where engines run: a GPU, a share of the processor's cores, or what one engine finds by itself. PyTorch
and ONNX Runtime each bring their own CUDA libraries and break each other in one process, so each *family* of backends
has an engine of its own in a place; the second one starts when a model needs it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from appliance.backends import FAMILIES, MAIN_FAMILY
from appliance.engine.client import EngineClient
from appliance.engine.supervisor import Supervisor
from appliance.system import dlls
from appliance.system.cores import own_cores
from appliance.system.devices import DeviceReading

_FAILING = 2  # deaths in a row: from then on the next start is waited for


class Place(msgspec.Struct, frozen=True):
    """``device``: the policy that backends there are given (``auto``, ``cpu``, ``cuda``, ``cuda:N``, ``cpu:N``);
    ``cores``: the processor cores that its engines have, () for all."""

    device: str
    cores: tuple[int, ...] = ()


def places(policy: str, gpus: Sequence[str], cores: Sequence[int]) -> tuple[Place, ...]:
    """The places of a setting ``device``. ``gpus``: ids of the GPUs that can be used here; ``cores``: those that this
    process may use. Pure.

    ``auto`` is every GPU; with one or none of them it is one engine, which finds out by itself. ``cpu:0,cpu:1`` are
    equal shares of the cores.
    """
    wished = list(dict.fromkeys(_plain(part) for part in policy.split(",")))
    if wished == ["auto"] and len(gpus) > 1:
        wished = list(gpus)
    shares = [part for part in wished if part.startswith("cpu:")]
    size = len(cores) // len(shares) if shares else 0
    found = []
    for part in wished:
        at = shares.index(part) if part in shares else 0
        share = tuple(cores[at * size : (at + 1) * size]) if part in shares else ()
        found.append(Place(part, share))
    return tuple(found)


def _plain(part: str) -> str:
    """``cuda:01`` names the same card as ``cuda:1``."""
    kind, colon, number = part.strip().partition(":")
    return f"{kind}:{int(number)}" if colon else kind


def places_here(policy: str, readings: Iterable[DeviceReading]) -> tuple[Place, ...]:
    """The same on this machine. A GPU counts where a runtime that could use it is installed."""
    gpus = [reading.id for reading in readings if reading.id.startswith("cuda")] if dlls.gpu_runtime() else []
    return places(policy, gpus, own_cores())


def engine_id(place: str, family: str) -> str:
    """``cuda:0``, ``cuda:0/torch``."""
    return place if family == MAIN_FAMILY else f"{place}/{family}"


class Fleet:
    """``command(place, family)`` starts an engine; its words go to ``log(engine)``. ``on_up``, ``on_down`` and
    ``on_failing`` (from now on ``failing`` is true of it) are told which engine it is. The main family's engines
    start with ``start``, the others when they are asked for."""

    def __init__(
        self,
        places: Sequence[Place],
        command: Callable[[Place, str], Sequence[str]],
        log: Callable[[str], Path],
        on_up: Callable[[EngineClient, str], None],
        on_down: Callable[[str, str], None],
        on_failing: Callable[[str], None] = lambda engine: None,
        *,
        load_s: float = 300.0,
    ) -> None:
        self._places = {place.device: place for place in places}
        self._command = command
        self._log = log
        self._on_up = on_up
        self._on_down = on_down
        self._on_failing = on_failing
        self._load_s = load_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = False
        self.engines: dict[str, Supervisor] = {}

    @property
    def places(self) -> tuple[str, ...]:
        """Their names, in the order of the setting."""
        return tuple(self._places)

    def start(self) -> None:
        """Start the main family's engine of each place."""
        for place in self._places:
            self.engine(place, MAIN_FAMILY)

    def name(self, place: str, family: str) -> str:
        """The id of an engine, whether it was started or not."""
        return engine_id(place, family)

    def engine(self, place: str, family: str) -> str:
        """The id of an engine, which is started if it was not yet."""
        name = engine_id(place, family)
        if name not in self.engines and not self._stopping:
            supervisor = Supervisor(
                self._command(self._places[place], family),
                self._log(name),
                lambda client: self._on_up(client, name),
                lambda reason: self._on_down(reason, name),
                lambda: self._waits(name),
                load_s=self._load_s,
            )
            self.engines[name] = supervisor
            self._tasks[name] = asyncio.create_task(supervisor.run(), name=f"supervisor {name}")
        return name

    def threads(self, place: str) -> int:
        """Threads of a run in a place that has cores of its own; 0: the settings' or the runtime's choice."""
        return len(self._places[place].cores)

    def failing(self, engine: str) -> bool:
        """True while an engine died soon after each of its starts, and the next start is waited for."""
        supervisor = self.engines.get(engine)
        return supervisor is not None and supervisor.client is None and supervisor.in_a_row >= _FAILING

    def _waits(self, engine: str) -> None:
        if self.failing(engine):
            self._on_failing(engine)

    def kill(self, reason: str, engine: str) -> None:
        """A hang: end that engine at once; it is started again."""
        if engine in self.engines:
            self.engines[engine].kill(reason)

    def restart(self, reason: str) -> None:
        """A person wants fresh engines: all of them."""
        for supervisor in self.engines.values():
            supervisor.kill(reason, "asked")

    @property
    def up(self) -> bool:
        """True while an engine answers."""
        return any(supervisor.client is not None for supervisor in self.engines.values())

    def pids(self) -> list[int]:
        """Of the engines that run."""
        return [s.pid for s in self.engines.values() if s.pid is not None]

    async def stop(self, grace_s: float) -> None:
        """End all engines for good, side by side."""
        self._stopping = True
        await asyncio.gather(*(supervisor.stop(grace_s) for supervisor in self.engines.values()))
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def family_of(backend: str | None) -> str:
    """The family of a backend; the main one's for a backend without a runtime."""
    return FAMILIES.get(backend or "", MAIN_FAMILY)
