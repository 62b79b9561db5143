"""On which device a model lives: where it fits best, or where its folder says."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from appliance.backends import MAIN_FAMILY
from appliance.engine.fleet import family_of
from appliance.errors import ModelLoadError
from appliance.gate.gate import Gate
from appliance.models.listing import backend_of
from appliance.models.repository import ModelFile, ModelFolder
from appliance.models.spec import ModelConfig
from appliance.serving.room import Engine, Room, Target, needed
from appliance.serving.served import ServedModel, ServedVersion

ALL = "all"
_FOUND_BY_ITSELF = {"auto": {"cuda:0", "cpu"}, "cuda": {"cuda:0"}}
"""Devices that the one engine of a machine with one GPU, or without, has under another name."""


class Engines(Protocol):
    """The engines as the catalog sees them (``engine.fleet.Fleet``). ``places`` are never none."""

    @property
    def places(self) -> Sequence[str]: ...

    def name(self, place: str, family: str) -> str:
        """The id of the engine of a family in a place, whether it was started or not."""
        ...

    def engine(self, place: str, family: str) -> str:
        """The same; it is started if it was not yet."""
        ...

    def threads(self, place: str) -> int:
        """Threads of a run where a place has cores of its own, else 0."""
        ...

    def failing(self, engine: str) -> bool:
        """True while an engine does not come back by itself for now."""
        ...


class OneEngine:
    """One engine for everything, as tests and tools have it. ``policy``: of its device."""

    def __init__(self, policy: str = "auto") -> None:
        self.places: tuple[str, ...] = (policy,)

    def name(self, place: str, family: str) -> str:
        return ""

    def engine(self, place: str, family: str) -> str:
        return ""

    def threads(self, place: str) -> int:
        return 0

    def failing(self, engine: str) -> bool:
        return False


class Seat(msgspec.Struct, frozen=True):
    """A place that could take a model: the engine there, ``room`` in bytes (None: not known), how many copies it has
    and how many runs, whether this model has a copy there, and whether its engine is ``failing``. ``second``: it is
    on the processor, and the model would rather have a card."""

    place: str
    engine: str
    family: str = MAIN_FAMILY
    room: int | None = None
    copies: int = 0
    runs: int = 0
    home: bool = False
    failing: bool = False
    second: bool = False


def allowed(config: ModelConfig, places: Sequence[str]) -> list[str]:
    """The places that may take a model. Raises ModelLoadError where its folder names one that is not used."""
    if config.devices and config.devices != (ALL,):
        if len(places) == 1 and set(config.devices) <= _FOUND_BY_ITSELF.get(places[0], set()):
            return list(places)
        missing = [device for device in config.devices if device not in places]
        if missing:
            raise ModelLoadError(
                f"devices: '{missing[0]}' is not used here (used: {', '.join(places)}; see the setting 'device')"
            )
        return list(dict.fromkeys(config.devices))
    if config.device == "cpu" and not config.devices:
        return [place for place in places if place.startswith("cpu")] or list(places[:1])
    if config.device == "require" and not config.devices:
        return [place for place in places if not place.startswith("cpu")] or list(places)
    return list(places)


def by_fitness(seats: Iterable[Seat], size: int) -> list[Seat]:
    """The best seat for a model of ``size`` bytes first.

    Where it is already, it stays; an engine that does not come back is the last choice. Then come those with room
    for it: a card before the processor, then the most room, in steps of an eighth of the size so that a little more
    of it does not outweigh load, then the fewest copies and runs. The order of the setting decides between equals.
    """

    def rank(seat: Seat) -> tuple[bool, bool, bool, bool, int, int, int]:
        fits = seat.room is None or seat.room >= size
        step = max(size // 8, 1 << 28)
        steps = 0 if seat.room is None else seat.room // step
        return seat.failing, not seat.home, not fits, seat.second, -steps, seat.copies, seat.runs

    return sorted(seats, key=rank)


def backend_name(folder: ModelFolder, file: ModelFile) -> str:
    """What its settings name, else what its file tells."""
    return folder.config.backend or backend_of(file.path.name) or "onnx"


class Placement:
    """Looks at the engines as they are now. ``client_of(engine)``: None while it is not up."""

    def __init__(
        self,
        gate: Gate,
        models: Callable[[], Iterable[ServedModel]],
        engines: Engines,
        client_of: Callable[[str], Engine | None],
        room: Room,
    ) -> None:
        self._gate = gate
        self._models = models
        self._engines = engines
        self._client_of = client_of
        self._room = room

    async def seats(self, folder: ModelFolder, version: ServedVersion) -> list[list[Seat]]:
        """For each copy that is wanted the places where it could be, the best first. Raises ModelLoadError."""
        family = family_of(backend_name(folder, version.file))
        found = [self._seat(folder, version, place, family) for place in allowed(folder.config, self._engines.places)]
        if folder.config.devices:
            return [[seat] for seat in found if seat.engine not in version.away]
        return [by_fitness(found, await asyncio.to_thread(needed, folder, version.file))]

    def _seat(self, folder: ModelFolder, version: ServedVersion, place: str, family: str) -> Seat:
        engine = self._engines.name(place, family)
        device = self._room.home(folder, version.file, Target(place, engine, self._client_of(engine)))
        ledger = self._gate.memory.ledger(device)
        return Seat(
            place,
            engine,
            family,
            ledger.capacity - ledger.weights if ledger.known else None,
            sum(engine in v.copies for m in self._models() for v in m.versions.values()),
            self._gate.turn(engine).running,
            engine in version.copies,
            self._engines.failing(engine),
            place.startswith("cpu") and folder.config.device != "cpu",
        )
