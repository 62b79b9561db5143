"""Admission by memory: which runs fit now, on which device, and what to do when one ran out. No loop, no probe."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from appliance.engine.messages import CostPoint, DeviceMemory
from appliance.errors import InsufficientMemory
from appliance.gate.batch import Batch
from appliance.gate.budget import Ledger, Memory, Share
from appliance.gate.costs import Bucket, Cost, Learned, Profile, Source
from appliance.gate.peaks import Seen, Watch
from appliance.gate.ticket import Ticket
from appliance.models.spec import ModelSpec

Key = tuple[str, str]
MIB = 1 << 20
_NOISE = {"cpu": 16 * MIB}  # what a process holds moves by itself; a device's figures do not


class MemoryPlan:
    """One ledger a device, one cost profile a model version. ``share_of(device)`` are the settings' bounds."""

    def __init__(self, share_of: Callable[[str], Share], clock: Callable[[], float]) -> None:
        self._share_of = share_of
        self._clock = clock
        self._profiles: dict[Key, Profile] = {}
        self._homes: dict[Key, ModelSpec] = {}  # as last loaded
        self.ledgers: dict[str, Ledger] = {}
        self._watches: dict[str, Watch] = {}
        self.untold: set[Key] = set()  # versions that have taught something since it was kept
        self.on_learned: Callable[[], None] = lambda: None
        self.movable: Callable[[str, str], int] = lambda model, device: 0  # weights that may leave for a run

    def ledger(self, device: str) -> Ledger:
        """The ledger of a device; made on first use."""
        if device not in self.ledgers:
            self.ledgers[device] = Ledger(self._share_of(device))
        return self.ledgers[device]

    def reshare(self) -> None:
        """The settings' bounds have changed."""
        for device, ledger in self.ledgers.items():
            ledger.reshare(self._share_of(device))

    def read(self, readings: Mapping[str, DeviceMemory], busy: int | None = None) -> bool:
        """Take over what the engine read; True if more may start than before. ``busy``: runs in its lanes then."""
        for device, found in readings.items():
            ledger = self.ledger(device)
            ledger.read(Memory(found.total, found.free, found.ours))
            seen = self._watch(device).read(found.ours, busy == 0, ledger.flights)
            if seen is not None:
                self._saw(seen)
        widened = [ledger.widen(self._clock()) for ledger in self.ledgers.values()]
        return any(widened)

    def began(self, batch: Batch) -> None:
        """A run was sent, and is booked."""
        device = batch.spec.device
        watch = self._watches.get(device)
        if watch is not None:
            watch.began(batch, len(self.ledgers[device].flights) - 1)

    def _watch(self, device: str) -> Watch:
        if device not in self._watches:
            self._watches[device] = Watch(_NOISE.get(device, MIB))
        return self._watches[device]

    def _saw(self, seen: Seen) -> None:
        """Readings tell what runs of one kind took."""
        batch = seen.run
        assert isinstance(batch, Batch)
        profile, spec, first = self._profiles.get(batch.model), batch.spec, batch.tickets[0]
        if profile is None or self._homes.get(batch.model) != spec or spec.generation is not None:
            return
        rows = sum(_rows(spec, t) for t in batch.tickets)
        if profile.observed(_bucket(spec, first), rows, seen.size, self._all_of(spec)):
            self._taught(batch.model)

    def _taught(self, key: Key) -> None:
        self.untold.add(key)
        self.on_learned()

    def learned(self, key: Key) -> Learned | None:
        """What is to be kept of a model version for the next start."""
        profile, spec = self._profiles.get(key), self._homes.get(key)
        return profile.learned(spec.device) if profile is not None and spec is not None else None

    def loaded(
        self,
        key: Key,
        spec: ModelSpec,
        weights: int,
        costs: Iterable[CostPoint],
        held: int = 0,
        learned: Learned | None = None,
    ) -> None:
        """A model version is on its device; ``costs`` were measured at its warm-up, which left ``held`` bytes taken;
        ``learned``: what was kept of the same files from an earlier start."""
        memory = spec.config.memory
        declared = None
        if memory.run_bytes is not None or memory.item_bytes is not None:
            declared = (memory.run_bytes or 0, memory.item_bytes or 0)
        home = self._homes.get(key)
        # Else another file, other settings or another device: what was learned does not count.
        same = home is not None and msgspec.structs.replace(home, good_batch=spec.good_batch) == spec
        profile = self._profiles[key] = Profile(declared, self._profiles.get(key) if same else None)
        for point in costs:
            profile.measured(point.bucket, point.batch, point.size)
        if not same and learned is not None and learned.device == spec.device:
            profile.recall(learned)
        if home is not None and home.device != spec.device:
            self.ledger(home.device).unloaded(key)
            self._watch(home.device).unloaded(key)
        self._homes[key] = spec
        self._watch(spec.device).loaded(key, held)
        self.ledger(spec.device).loaded(key, weights)

    def told(self, key: Key) -> tuple[Source, list[tuple[int, int]]]:
        """See ``Profile.told``."""
        profile = self._profiles.get(key)
        return profile.told() if profile is not None else ("estimated", [])

    def unloaded(self, key: Key) -> None:
        """It has left its device. What was learned of its costs is kept, for when it comes back."""
        home = self._homes.get(key)
        if home is not None:
            self.ledger(home.device).unloaded(key)
            self._watch(home.device).unloaded(key)

    def disturbed(self, device: str) -> None:
        """A load has been at work on it, whatever came of it: what is held more than before is no run's."""
        self._watch(device).disturbed()

    def home(self, key: Key) -> str | None:
        """The device that a model version came to when it was last loaded."""
        spec = self._homes.get(key)
        return spec.device if spec is not None else None

    def cleared(self) -> None:
        """The engine is gone, and everything in its memory with it."""
        for ledger in self.ledgers.values():
            ledger.cleared()
        for watch in self._watches.values():
            watch.cleared()

    def cost(self, spec: ModelSpec, tickets: Sequence[Ticket]) -> Cost:
        """What to book for these tickets as one run. One that ran out of memory before is given all there is."""
        first = tickets[0]
        if spec.generation is not None:
            size = spec.generation.token_bytes * first.tokens
            return Cost(size, "computed", size)
        profile = self._profiles.get((spec.name, spec.version))
        if profile is None:
            return Cost(0, "estimated", 0)
        if len(tickets) == 1:
            rows, nbytes = _rows(spec, first), first.nbytes
        else:
            rows, nbytes = sum(t.rows for t in tickets), sum(t.nbytes for t in tickets)
        found = profile.cost(_bucket(spec, first), rows, nbytes)
        if first.retried:
            return Cost(max(found.size, self._all_of(spec)), found.source, found.least)
        return found

    def alone_cost(self, spec: ModelSpec, ticket: Ticket) -> int:
        """What an ordinary run of this one ticket is booked with."""
        profile = self._profiles.get((spec.name, spec.version))
        if spec.generation is not None:
            return self.cost(spec, [ticket]).size
        if profile is None:
            return 0
        return profile.cost(_bucket(spec, ticket), _rows(spec, ticket), ticket.nbytes).size

    def _all_of(self, spec: ModelSpec) -> int:
        ledger = self.ledger(spec.device)
        return max(0, ledger.ceiling - ledger.weights)

    def fits(self, spec: ModelSpec, tickets: Sequence[Ticket]) -> bool:
        """True if these tickets may start as one run now. One that was in a crash goes before all others."""
        cost = self.cost(spec, tickets)
        first = tickets[0]
        return self.ledger(spec.device).fits(first, cost.size, cost.least, first=bool(first.deaths))

    def check(self, spec: ModelSpec, ticket: Ticket) -> None:
        """Raises InsufficientMemory, with the arithmetic, for what could not even run alone on an idle device."""
        ledger = self.ledger(spec.device)
        cost = self.cost(spec, [ticket])
        if ledger.never_fits(cost.least) and ledger.never_fits(cost.least - self.movable(spec.name, spec.device)):
            raise InsufficientMemory(
                f"a run of model '{spec.name}' with this input takes {_mib(cost.least)} ({cost.source}); "
                f"{spec.device} can give {_mib(ledger.ceiling)}, of which models hold {_mib(ledger.weights)}"
            )

    def short(self, spec: ModelSpec, ticket: Ticket) -> int:
        """The bytes a waiting ticket needs, if not even an end of all runs would make room for it; else 0."""
        ledger, least = self.ledger(spec.device), self.cost(spec, [ticket]).least
        return least if ledger.known and least > ledger.alone else 0

    def reserve(self, spec: ModelSpec, ticket: Ticket) -> bool:
        """Keep room for a ticket that was overtaken long enough; False if another one has the reservation."""
        cost = self.cost(spec, [ticket])
        return self.ledger(spec.device).reserve(ticket, cost.size, cost.least)

    def release(self, ticket: Ticket) -> bool:
        """The ticket waits no longer. True if it had a reservation, so that others may start now."""
        return any(ledger.release(ticket) for ledger in self.ledgers.values())  # it has one at most

    def ran_out(self, spec: ModelSpec, tickets: Sequence[Ticket], booked: int) -> None:
        """A run went over what was booked for it: it costs more from now on, and less is admitted for a while."""
        profile = self._profiles.get((spec.name, spec.version))
        if profile is not None and spec.generation is None:
            rows = sum(_rows(spec, t) for t in tickets)
            profile.ran_out(_bucket(spec, tickets[0]), rows, booked, self._all_of(spec))
            self._taught((spec.name, spec.version))
        self.ledger(spec.device).narrow(self._clock())

    def hopeless(self, spec: ModelSpec, ticket: Ticket) -> bool:
        """True if this run is known by now to take more than the device has, with no other program to blame."""
        ledger = self.ledger(spec.device)
        return (
            ledger.known and ledger.capacity == ledger.ceiling and self.alone_cost(spec, ticket) >= self._all_of(spec)
        )


def _bucket(spec: ModelSpec, ticket: Ticket) -> Bucket:
    return tuple(shape[1:] for shape in ticket.shapes) if spec.max_batch else ticket.shapes


def _rows(spec: ModelSpec, ticket: Ticket) -> int:
    """The items that a run's cost grows with. Of a model that is never merged, a free first axis counts only where
    the operator says what an item takes: what was measured there, was measured for whole shapes."""
    if spec.max_batch:
        return ticket.rows
    shape = ticket.shapes[0] if ticket.shapes else ()
    free = spec.config.memory.item_bytes is not None and spec.inputs[0].shape[:1] == (-1,)
    return shape[0] if free and shape else 1


def _mib(size: int) -> str:
    return f"{size / MIB:.0f} MiB"
