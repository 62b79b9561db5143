"""One model's requests that do not fit the memory: refused, or waiting until they have been overtaken long enough."""

import asyncio
from typing import TYPE_CHECKING

from appliance.errors import InsufficientMemory
from appliance.gate.copies import by_load
from appliance.gate.ticket import Ticket
from appliance.models.spec import ModelSpec

if TYPE_CHECKING:
    from appliance.gate.gate import Gate
    from appliance.gate.model_queue import ModelQueue

_NEXT_S = 0.1  # until one that found a reservation of another's asks again


class Shortage:
    """A request waits for one device at a time: that of the copy which will have the memory for it first."""

    def __init__(self, gate: "Gate", queue: "ModelQueue") -> None:
        self._gate = gate
        self._queue = queue

    def check(self, ticket: Ticket) -> None:
        """Raises InsufficientMemory, with the arithmetic, for what could never run on a device that has a copy."""
        why, spec = None, self._queue.spec
        for found in [copy.spec for copy in self._queue.copies] or ([spec] if spec is not None else []):
            why = self._gate.memory.never(found, ticket)
            if why is None:
                return
        if why is not None:
            raise InsufficientMemory(why)

    def waits(self, head: Ticket) -> None:
        """It does not fit now: smaller ones may overtake it for a while, then room is kept for it."""
        gate, spec = self._gate, self._hope(head)
        gate.blocked = True
        if size := gate.memory.short(spec, head):
            gate.on_short(self._queue.model, spec.device, size)
        if not head.blocked_since:
            head.blocked_since = gate.clock()
            # One that ran out of memory was overtaken before, by those that took it.
            wait = 0.0 if head.retried else gate.limits.max_overtake_ms / 1000
            asyncio.get_running_loop().call_later(wait, self._reserve, head)

    def moved(self) -> None:
        """A copy is gone, and others are left: room that was kept for a request may have been kept there."""
        for ticket in self._queue.waiting:
            if ticket.blocked_since:
                self._gate.memory.release(ticket)
                ticket.blocked_since = 0.0

    def _hope(self, head: Ticket) -> ModelSpec:
        """The copy for it: where it can ever run, and there rather where runs that end make the room."""
        memory, copies = self._gate.memory, by_load(self._queue.copies)
        if len(copies) > 1:
            copies = sorted(copies, key=lambda c: (bool(memory.never(c.spec, head)), memory.short(c.spec, head) > 0))
        spec = copies[0].spec if copies else self._queue.spec
        assert spec is not None
        return spec

    def _reserve(self, ticket: Ticket) -> None:
        if ticket.blocked_since and self._queue.waiting.place(ticket):
            if not self._gate.memory.reserve(self._hope(ticket), ticket):
                # Another one has the reservation; this one is next to ask.
                asyncio.get_running_loop().call_later(_NEXT_S, self._reserve, ticket)
            self._queue.dispatch()
