"""The ledger of one device's memory: what there is, what models and runs hold, and who may start. Pure.

    capacity = min(total × fraction − reserve, free + ours − reserve)
    a run may start while   Σ in-flight cost + cost ≤ (capacity − Σ weights) × narrowing

A run that would have the device to itself may also start if its surest cost fits what is free without the reserve:
waiting would not make more room for it. All sizes in bytes, all times in seconds of the caller's clock.
"""

from collections.abc import Collection, Hashable, Mapping

import msgspec


class Memory(msgspec.Struct, frozen=True):
    """A reading of a device. ``ours``: what this appliance's engine holds of it (weights, arenas, runs)."""

    total: int
    free: int
    ours: int


class Share(msgspec.Struct, frozen=True):
    """How much of a device may be used: a ``fraction`` of all of it, less a ``reserve``."""

    fraction: float
    reserve: int


class _Reservation(msgspec.Struct, frozen=True):
    run: Hashable
    cost: int
    least: int


_NARROWER = 0.7
_NARROWEST = 0.25
_NARROW_EVERY_S = 1.0  # many runs that run out at once are one event
_WIDER = 0.1
_WIDEN_EVERY_S = 10.0


class Ledger:
    """Book-keeping of one device. Without a reading (a device that does not tell) memory limits nothing.

    A *reservation* is made for one waiting run that was overtaken long enough: from then on others may start only
    if they leave room for it.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self._memory: Memory | None = None
        self._weights: dict[Hashable, tuple[int, str]] = {}  # bytes, and the engine that holds them
        self._flights: dict[Hashable, tuple[int, str]] = {}
        self._reservation: _Reservation | None = None
        self._narrowing = 1.0
        self._narrowed_at = 0.0
        self.out_of_memory = 0

    def reshare(self, share: Share) -> None:
        """Other bounds from now on. What models and runs hold stays theirs."""
        self._share = share

    def read(self, memory: Memory | None) -> None:
        """Take over a fresh reading of the device."""
        self._memory = memory

    @property
    def known(self) -> bool:
        """True once the device has told its memory."""
        return self._memory is not None

    @property
    def ceiling(self) -> int:
        """The most this device could ever give, with no other program on it."""
        if self._memory is None:
            return 0
        return max(0, int(self._memory.total * self._share.fraction) - self._share.reserve)

    @property
    def capacity(self) -> int:
        """What it can give now: other programs' use shrinks it."""
        if self._memory is None:
            return 0
        now = self._memory.free + self._memory.ours - self._share.reserve
        return max(0, min(self.ceiling, now))

    @property
    def total(self) -> int:
        """All memory of the device."""
        return self._memory.total if self._memory else 0

    @property
    def free(self) -> int:
        """What nobody holds."""
        return self._memory.free if self._memory else 0

    @property
    def ours(self) -> int:
        """What this appliance's engine holds: weights, arenas, runs."""
        return self._memory.ours if self._memory else 0

    @property
    def others(self) -> int:
        """What other programs hold of the device."""
        if self._memory is None:
            return 0
        return max(0, self._memory.total - self._memory.free - self._memory.ours)

    @property
    def weights(self) -> int:
        return sum([size for size, _ in self._weights.values()])

    @property
    def in_flight(self) -> int:
        return sum([size for size, _ in self._flights.values()])

    @property
    def flights(self) -> Collection[Hashable]:
        """What is booked now: runs, and loads."""
        return self._flights.keys()

    @property
    def narrowing(self) -> float:
        """1.0, or less for a while after an out-of-memory."""
        return self._narrowing

    @property
    def room(self) -> int:
        """What could start now; negative when other programs have taken what was ours to use."""
        return int((self.capacity - self.weights) * self._narrowing) - self.in_flight

    @property
    def alone(self) -> int:
        """The most that one run may take which has the device to itself. The reserve is not kept from it where
        other programs have taken the rest: the alternative is to stand still."""
        if self._memory is None:
            return 0
        return max(0, min(self.ceiling, self._memory.free + self._memory.ours) - self.weights)

    @property
    def models(self) -> Mapping[Hashable, int]:
        """The weights of each model on the device."""
        return {model: size for model, (size, _) in self._weights.items()}

    def weight_of(self, model: Hashable) -> int:
        return self._weights.get(model, (0, ""))[0]

    def flights_of(self, engine: str) -> Collection[Hashable]:
        """What is booked now in one engine."""
        return [run for run, (_, owner) in self._flights.items() if owner == engine]

    def loaded(self, model: Hashable, size: int, engine: str = "") -> None:
        """A model's weights are on the device, in that engine."""
        self._weights[model] = max(0, size), engine

    def unloaded(self, model: Hashable) -> None:
        self._weights.pop(model, None)

    def cleared(self, engine: str = "") -> None:
        """An engine is gone and everything with it. What waits, waits on: a reservation stays."""
        for held in (self._weights, self._flights):
            for key in [key for key, (_, owner) in held.items() if owner == engine]:
                del held[key]

    def never_fits(self, least: int) -> bool:
        """True if a run that surely takes ``least`` could not start even if nothing else ran."""
        return self.known and least > self.ceiling - self.weights

    def fits(self, run: Hashable, cost: int, least: int | None = None, *, first: bool = False) -> bool:
        """True if ``run`` may start now.

        ``run`` is only compared with the reservation's. ``least``: the part of the cost that is sure (all of it by
        default). ``first``: it goes before everything, also before the one that has the reservation.
        """
        if not self.known:
            return True
        held = 0 if first else self._held(run)
        if not self._flights and not held and (cost if least is None else least) <= self.alone:
            return True
        return cost + held <= self.room

    def _held(self, run: Hashable) -> int:
        """What is kept for another run. Nothing while that one could not start even alone: it waits for other
        programs, and whom would it help if ours waited with it?"""
        kept = self._reservation
        if kept is None or kept.run == run or kept.least > self.alone:
            return 0
        return kept.cost

    def start(self, run: Hashable, cost: int, engine: str = "") -> None:
        """Book a run in an engine; a reservation of its own is used up."""
        self._flights[run] = cost, engine
        self.release(run)

    def end(self, run: Hashable) -> None:
        self._flights.pop(run, None)

    def reserve(self, run: Hashable, cost: int, least: int | None = None) -> bool:
        """Keep room free for ``run``; False if another run has the one reservation."""
        if self._reservation is None or self._reservation.run == run:
            self._reservation = _Reservation(run, cost, cost if least is None else least)
            return True
        return False

    def release(self, run: Hashable) -> bool:
        """``run`` waits no longer (answered, gone): its reservation is given back. True if it had it."""
        if self._reservation is not None and self._reservation.run == run:
            self._reservation = None
            return True
        return False

    @property
    def reserved(self) -> int:
        return self._reservation.cost if self._reservation else 0

    def narrow(self, now: float) -> None:
        """An out-of-memory: admit less for a while."""
        self.out_of_memory += 1
        if self._narrowing == 1.0 or now - self._narrowed_at >= _NARROW_EVERY_S:
            self._narrowing = max(_NARROWEST, self._narrowing * _NARROWER)
            self._narrowed_at = now

    def widen(self, now: float) -> bool:
        """One step back towards all of the capacity, every ten seconds; True if something changed."""
        if self._narrowing < 1.0 and now - self._narrowed_at >= _WIDEN_EVERY_S:
            self._narrowing = min(1.0, self._narrowing + _WIDER)
            self._narrowed_at = now
            return True
        return False
