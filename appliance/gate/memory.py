"""Admission by memory: which runs fit now, on which device, and what to do when one ran out. No loop, no probe."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from appliance.engine.messages import CostPoint, DeviceMemory
from appliance.gate.batch import Batch
from appliance.gate.budget import Ledger, Memory, Share
from appliance.gate.costs import Bucket, Cost, Learned, Profile, Source
from appliance.gate.peaks import Seen, Watch
from appliance.gate.ticket import Ticket
from appliance.models.spec import ModelSpec

Key = tuple[str, ...]
"""Of a loaded copy: see ``ModelSpec.key``."""
MIB = 1 << 20
_NOISE = {"cpu": 16 * MIB}  # what a process holds moves by itself; a device's figures do not


class MemoryPlan:
    """One ledger a pool of memory, one cost profile a loaded copy. ``share_of(pool)`` are the settings' bounds.

    A *pool* is what devices share: all CPU engines have the system's memory together (``cpu``), and so have the
    engines of one GPU its memory. ``pools``: device → pool, where they are not the same, as on a Jetson.
    """

    def __init__(self, share_of: Callable[[str], Share], clock: Callable[[], float]) -> None:
        self._share_of = share_of
        self._clock = clock
        self._profiles: dict[Key, Profile] = {}
        self._homes: dict[Key, ModelSpec] = {}  # as last loaded
        self.ledgers: dict[str, Ledger] = {}
        self.pools: dict[str, str] = {}
        self._readings: dict[str, dict[str, DeviceMemory]] = {}  # pool → engine → its newest
        self._watches: dict[tuple[str, str], Watch] = {}  # (pool, engine)
        self.on_press: Callable[[str], None] = lambda engine: None  # see ``press``
        self.untold: set[Key] = set()  # versions that have taught something since it was kept
        self.on_learned: Callable[[], None] = lambda: None
        self.movable: Callable[[str, str], int] = lambda model, device: 0  # weights that may leave for a run

    @property
    def unified(self) -> bool:
        """A GPU takes from the system's memory."""
        return any(pool == "cpu" and device != "cpu" for device, pool in self.pools.items())

    def pool(self, device: str) -> str:
        """The pool of memory that a device takes from: ``cpu:1`` → ``cpu``."""
        return self.pools.get(device) or ("cpu" if device.startswith("cpu") else device)

    def ledger(self, device: str) -> Ledger:
        """The ledger of a device's pool; made on first use."""
        found = self.ledgers.get(device)
        if found is not None:
            return found
        pool = self.pool(device)
        if pool not in self.ledgers:
            self.ledgers[pool] = Ledger(self._share_of(pool))
        return self.ledgers[pool]

    def reshare(self) -> None:
        """The settings' bounds have changed."""
        for device, ledger in self.ledgers.items():
            ledger.reshare(self._share_of(device))

    def read(self, readings: Mapping[str, DeviceMemory], busy: int | None = None, engine: str = "") -> bool:
        """Take over what an engine read; True if more may start than before. ``busy``: runs in its lanes then."""
        for device, found in readings.items():
            pool = self.pool(device)
            if pool != device and pool in readings:
                continue  # the same memory, which its own reading tells of
            ledger, all_ours = self.ledger(pool), self._readings.setdefault(pool, {})
            all_ours[engine] = found
            ledger.read(Memory(found.total, found.free, sum(each.ours for each in all_ours.values())))
            seen = self._watch(pool, engine).read(found.ours, busy == 0, ledger.flights_of(engine))
            if seen is not None:
                self._saw(seen)
        widened = [ledger.widen(self._clock()) for ledger in self.ledgers.values()]
        return any(widened)

    def began(self, batch: Batch) -> None:
        """A run was sent, and is booked."""
        spec = batch.spec
        self.press(spec.device, spec.engine, batch.cost)
        watch = self._watches.get((self.pool(spec.device), spec.engine))
        if watch is not None:
            watch.began(batch, batch.copy.turn.running - 1)

    def press(self, device: str, engine: str, size: int) -> None:
        """A run or a load in an engine is about to take so much. What is ours on a device, but kept by another engine
        for its later runs, it cannot have: where that may be in the way, ``on_press`` is told of those engines."""
        pool = self.pool(device)
        readings = self._readings.get(pool)
        if readings is not None and len(readings) > 1 and size > self.ledgers[pool].free:
            for other in readings:
                if other != engine:
                    self.on_press(other)

    def _watch(self, device: str, engine: str) -> Watch:
        pool = self.pool(device)
        if (pool, engine) not in self._watches:
            self._watches[pool, engine] = Watch(_NOISE.get(pool, MIB))
        return self._watches[pool, engine]

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
            self._watch(home.device, home.engine).unloaded(key)
        self._homes[key] = spec
        self._watch(spec.device, spec.engine).loaded(key, held)
        self.ledger(spec.device).loaded(key, weights, spec.engine)

    def told(self, key: Key) -> tuple[Source, list[tuple[int, int]]]:
        """See ``Profile.told``."""
        profile = self._profiles.get(key)
        return profile.told() if profile is not None else ("estimated", [])

    def unloaded(self, key: Key) -> None:
        """It has left its device. What was learned of its costs is kept, for when it comes back."""
        home = self._homes.get(key)
        if home is not None:
            self.ledger(home.device).unloaded(key)
            self._watch(home.device, home.engine).unloaded(key)

    def disturbed(self, device: str, engine: str = "") -> None:
        """A load has been at work on it, whatever came of it: what is held more than before is no run's."""
        self._watch(device, engine).disturbed()

    def home(self, key: Key) -> str | None:
        """The device that a model version came to when it was last loaded."""
        spec = self._homes.get(key)
        return spec.device if spec is not None else None

    def cleared(self, engine: str = "") -> None:
        """An engine is gone, and everything in its memory with it."""
        for pool, ledger in self.ledgers.items():
            ledger.cleared(engine)
            left = self._readings.get(pool, {})
            if left.pop(engine, None) is not None and left:
                last = next(reversed(left.values()))
                ledger.read(Memory(last.total, last.free, sum(each.ours for each in left.values())))
        for (_, owner), watch in self._watches.items():
            if owner == engine:
                watch.cleared()

    def cost(self, spec: ModelSpec, tickets: Sequence[Ticket]) -> Cost:
        """What to book for these tickets as one run. One that ran out of memory before is given all there is."""
        first = tickets[0]
        if spec.generation is not None:
            size = spec.generation.token_bytes * first.tokens
            return Cost(size, "computed", size)
        profile = self._profiles.get(spec.key)
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
        profile = self._profiles.get(spec.key)
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

    def never(self, spec: ModelSpec, ticket: Ticket) -> str | None:
        """Why it could not even run alone on an idle device, with the arithmetic; None where it could."""
        ledger = self.ledger(spec.device)
        cost = self.cost(spec, [ticket])
        if ledger.never_fits(cost.least) and ledger.never_fits(cost.least - self.movable(spec.name, spec.device)):
            return (
                f"a run of model '{spec.name}' with this input takes {_mib(cost.least)} ({cost.source}); "
                f"{spec.device} can give {_mib(ledger.ceiling)}, of which models hold {_mib(ledger.weights)}"
            )
        return None

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
        profile = self._profiles.get(spec.key)
        if profile is not None and spec.generation is None:
            rows = sum(_rows(spec, t) for t in tickets)
            profile.ran_out(_bucket(spec, tickets[0]), rows, booked, self._all_of(spec))
            self._taught(spec.key)
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
