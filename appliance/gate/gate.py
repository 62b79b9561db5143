"""The gate: every run of every model passes here. It owns the queues and the lanes' places; the engine has none.

Lives in the server's event loop; no method blocks. The engine is given as a ``Runner`` (the engine client, or a
fake in tests).
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Protocol

from appliance.engine.messages import DeviceMemory
from appliance.errors import ApplianceError, Paused
from appliance.gate.batch import Batch
from appliance.gate.budget import Share
from appliance.gate.copies import Turn
from appliance.gate.limits import DrainRate
from appliance.gate.memory import MemoryPlan
from appliance.gate.model_queue import ModelQueue
from appliance.gate.ticket import Ticket

_REMEMBERED = 1024


class Observer(Protocol):
    """Told of every end, for metrics and events."""

    def request_ended(self, ticket: Ticket) -> None: ...

    def batch_ended(self, model: str, version: str, rows: int, run_ns: int) -> None: ...


class Limits(Protocol):
    """The settings that the gate reads."""

    queue_per_model: int
    queue_total: int
    queue_timeout_ms: int
    run_timeout_ms: int
    max_overtake_ms: int
    memory_fraction: float
    cpu_memory_fraction: float
    memory_reserve_bytes: int


class Gate:
    """All queues, and the turns of all engines. ``on_hang(reason, engine)`` is called when a run did not end after it
    was cancelled, with the engine's id."""

    def __init__(
        self,
        limits: Limits,
        observer: Observer,
        on_hang: Callable[[str, str], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.limits = limits
        self.observer = observer
        self.on_hang = on_hang
        self.clock = clock or time.monotonic  # uvloop's own counts whole milliseconds
        self.paused = False
        self.held = False
        self.draining = False
        self.closing = False
        self.engine_up = False
        self.rate = DrainRate()
        self.memory = MemoryPlan(self._share, self.clock)
        self.blocked = False  # some queue holds a request that did not fit the memory
        self.on_short: Callable[[str, str, int], None] = lambda model, device, size: None  # see ``MemoryPlan.short``
        self.queues: dict[tuple[str, str], ModelQueue] = {}
        self.requests: OrderedDict[str, Ticket] = OrderedDict()
        self.waiting = 0
        self.running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.turns: dict[str, Turn] = {}
        self._after_crash = False  # some that were in a crash may wait

    def _share(self, device: str) -> Share:
        # The memory of a board whose GPU has none of its own is the GPU's as well.
        system = device == "cpu" and not self.memory.unified
        fraction = self.limits.cpu_memory_fraction if system else self.limits.memory_fraction
        return Share(fraction, self.limits.memory_reserve_bytes)

    def limits_changed(self) -> None:
        """``limits`` says something else than before: what waits may fit now."""
        self.memory.reshare()
        self.more_room()

    def memory_read(self, readings: Mapping[str, DeviceMemory], busy: int | None = None, engine: str = "") -> None:
        """An engine has read its devices' memory while ``busy`` runs were in its lanes (None: not known)."""
        if self.memory.read(readings, busy, engine) or self.blocked:
            self._dispatch()

    def turn(self, engine: str) -> Turn:
        """Whose turn it is in an engine; made on first use."""
        if engine not in self.turns:
            self.turns[engine] = Turn(engine)
        return self.turns[engine]

    def queue(self, model: str, version: str) -> ModelQueue:
        """The queue of a model version; made on first use and kept over reloads and engine restarts."""
        key = (model, version)
        if key not in self.queues:
            self.queues[key] = ModelQueue(self, model, version)
        return self.queues[key]

    def forget(self, model: str, version: str, reason: ApplianceError) -> None:
        """The version is gone for good: what waits for it is answered with ``reason``."""
        queue = self.queues.pop((model, version), None)
        if queue is not None:
            queue.forget(reason)

    def pause(self) -> None:
        """Requests queue up (and may wait out their deadline); running ones go on."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._dispatch()

    def hold(self) -> None:
        """No run begins until ``release``: the engine is being looked at. A person's pause is another matter."""
        self.held = True

    def woke(self) -> None:
        """The machine has slept: what waits has its whole time again."""
        for queue in self.queues.values():
            queue.restart_waits()

    def release(self) -> None:
        self.held = False
        self._dispatch()

    def drain(self) -> None:
        """The appliance will end: its doors take nothing new (they look at ``draining``), what waits goes on."""
        self.draining = True
        self.resume()

    def close(self) -> None:
        """The appliance ends: nothing new is taken, what waits is answered 503, what runs may finish."""
        self.draining = self.closing = True
        for queue in self.queues.values():
            queue.fail_waiting(Paused("the appliance is shutting down", retry_after_s=5))

    async def drained(self) -> None:
        """Returns when no run is in flight."""
        await self._idle.wait()

    def may_run(self, turn: Turn, suspect: bool) -> bool:
        """Whether a run may begin now in an engine.

        Requests that were in a crash (``suspect``) run again one at a time, before all others and with nothing
        beside them: the next crash then has one culprit, and takes no innocent request of another lane or model
        along for the second time.
        """
        if self.paused or self.held or turn.alone:
            return False
        if self._after_crash:
            self._after_crash = any(t.deaths for queue in self.queues.values() for t in queue.waiting)
            for each in self.turns.values():
                each.suspect_next = any(queue.suspect_next(each) for queue in self.queues.values())
        return not turn.running if suspect else not turn.suspect_next

    def run_began(self, batch: Batch) -> None:
        """A queue is about to send a run."""
        turn = batch.copy.turn
        self.memory.ledger(batch.spec.device).start(batch, batch.cost, turn.engine)
        self.running += 1
        turn.running += 1
        turn.alone = batch.suspect
        batch.copy.lanes.flying += 1
        self._idle.clear()

    def run_ended(self, batch: Batch) -> None:
        """A run has come back, or is lost."""
        suspect, turn = batch.suspect, batch.copy.turn
        self.memory.ledger(batch.spec.device).end(batch)
        self.running -= 1
        turn.running -= 1
        batch.copy.lanes.flying -= 1
        if suspect:
            turn.alone = False
        if not self.running:
            self._idle.set()
        if suspect or self._after_crash or self.blocked:
            # Other queues may have been held back. Not at once: a death is told of to one run after the other.
            self.more_room()

    def more_room(self) -> None:
        """Memory or a turn was given back: all queues look, soon."""
        asyncio.get_running_loop().call_soon(self._dispatch)

    def copy_gone(self) -> None:
        """A request that was in a crash may have been waited for there."""
        if self._after_crash:
            self.more_room()

    def crashed(self) -> None:
        """Requests that were in a crash wait again."""
        self._after_crash = True

    def _dispatch(self) -> None:
        self.blocked = False
        for queue in list(self.queues.values()):
            queue.dispatch()

    def remember(self, ticket: Ticket) -> None:
        """Keep the ticket for ``/api/requests``; the oldest are forgotten."""
        self.requests[ticket.id] = ticket
        excess = len(self.requests) - _REMEMBERED - self.waiting - self.running
        if excess == 1 and (oldest := next(iter(self.requests.values()))).finished:
            del self.requests[oldest.id]
        elif excess > 0:
            # Those that have not ended stay; nearly always the oldest one has.
            for old in list(islice((t.id for t in self.requests.values() if t.finished), excess)):
                del self.requests[old]
