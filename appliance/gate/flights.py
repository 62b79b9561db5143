"""One model's runs in flight: how they are sent, what becomes of each that ends, and how one is ended early."""

import asyncio
from typing import TYPE_CHECKING

import structlog

from appliance.engine.client import EngineDied, RunResult
from appliance.errors import (
    ApplianceError,
    InferenceTimeout,
    InsufficientMemory,
    InternalError,
    ModelError,
    Overloaded,
    Paused,
)
from appliance.gate.batch import Batch
from appliance.gate.copies import Copy
from appliance.gate.limits import retry_after_s, stood_still
from appliance.gate.ticket import Ticket
from appliance.models.spec import ModelSpec

if TYPE_CHECKING:
    from appliance.gate.gate import Gate
    from appliance.gate.model_queue import ModelQueue

log = structlog.get_logger("gate")

_GRACE_S = 5.0
_AHEAD_BYTES = 64 * 1024
_AHEAD_NS = 100_000_000


class Flights:
    """Every ticket that flies is ended, or goes back to the queue."""

    def __init__(self, gate: "Gate", queue: "ModelQueue") -> None:
        self._gate = gate
        self._queue = queue
        self._batches: dict[Batch, None] = {}  # in the order in which they were sent
        self._usual_ns = 0  # a run's time, as a weighted mean

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def booked(self) -> int:
        """Bytes that the runs in flight are booked with."""
        return sum(batch.cost for batch in self._batches)

    def worth_ahead(self, head: Ticket, copy: Copy) -> bool:
        """The lanes are full: whether the next run is better sent now, so that its bytes are there when a lane frees.

        Only with large inputs, whose way to the engine takes long, and where runs are short: what is sent cannot be
        overtaken any more. One run of a copy at most, and none while a copy before it in its engine is still at work:
        the new one has lanes of its own there, and would begin at once.
        """
        return (
            head.nbytes >= _AHEAD_BYTES
            and 0 < self._usual_ns < _AHEAD_NS
            and not (head.deaths or head.retried or head.stream)
            and not any(
                batch.ahead or batch.spec is not copy.spec
                for batch in self._batches
                if batch.engine == copy.spec.engine
            )
        )

    def start(self, copy: Copy, tickets: list[Ticket], *, ahead: bool = False) -> None:
        """Send these tickets to a copy as one run; the memory is theirs. ``ahead``: all its lanes are full, it begins
        when one frees."""
        gate, spec, now = self._gate, copy.spec, self._gate.clock()
        batch = Batch(copy, tickets)
        batch.ahead = ahead
        booked = batch.kind = gate.memory.cost(spec, tickets)
        batch.cost = booked.size
        for ticket in tickets:
            ticket.state, ticket.started, ticket.run_deadline = "running", now, now + ticket.run_s
            ticket.device = spec.device
            if ticket.blocked_since:
                if gate.memory.release(ticket):
                    gate.more_room()  # it was kept on another device, perhaps
                ticket.blocked_since = 0.0
        self._batches[batch] = None
        gate.run_began(batch)
        gate.memory.began(batch)
        on_chunk = tickets[0].part if tickets[0].stream else None
        try:
            batch.id = copy.runner.run(
                copy.handle,
                [t.inputs for t in tickets],
                tickets[0].outputs,
                lambda outcome: self._finished(batch, outcome),
                on_chunk,
            )
        except Exception:  # a request that cannot be sent must not keep its lane
            log.exception("a run could not be sent", model=spec.name, requests=[t.id for t in tickets])
            self._batches.pop(batch, None)
            gate.run_ended(batch)
            for ticket in tickets:
                self._queue.end(ticket, InternalError("the request could not be sent to the engine"))
            return
        if ahead:
            first = min(t.queue_deadline for t in tickets)
            batch.timer = asyncio.get_running_loop().call_later(max(0.0, first - now), self._late, batch)
        else:
            first = min(t.run_deadline for t in tickets)
            batch.timer = asyncio.get_running_loop().call_later(first - now, self._overran, batch)

    def given_up(self, ticket: Ticket) -> None:
        """Nobody waits for the ticket any more; if it flies with no other that is wanted, its run is ended."""
        for batch in self._batches:
            if ticket in batch.tickets:
                self._abandon_if_done(batch)

    def _finished(self, batch: Batch, outcome: RunResult | ApplianceError | EngineDied) -> None:
        """The engine's answer to a run, or the news of its death."""
        self._batches.pop(batch, None)
        self._gate.run_ended(batch)
        if batch.timer is not None:
            batch.timer.cancel()
        if isinstance(outcome, EngineDied):
            self._interrupted(batch)
        elif isinstance(outcome, InsufficientMemory):
            self._ran_out(batch, dict.fromkeys(batch.tickets, outcome), whole=True)
        elif isinstance(outcome, ApplianceError):
            for ticket in batch.tickets:
                self._queue.end(ticket, outcome)
        else:
            self._landed(batch, outcome)
        if not isinstance(outcome, EngineDied):
            self._next_begins(batch.copy)
        self._queue.dispatch()

    def _next_begins(self, copy: Copy) -> None:
        """A lane of the copy is free: the run that was sent ahead to it, if there is one, has it now."""
        for batch in self._batches:
            if not batch.ahead or batch.copy.lanes is not copy.lanes:
                continue
            batch.ahead = False
            if batch.timer is not None:
                batch.timer.cancel()
            now = self._gate.clock()
            for ticket in batch.tickets:
                if not ticket.finished:
                    ticket.started, ticket.run_deadline = now, now + ticket.run_s
            if batch.abandoned:
                self._grace(batch)
            else:
                self._overran(batch)
            return

    def _late(self, batch: Batch) -> None:
        """Those of a run sent ahead that have waited too long for it to begin are answered."""
        now = self._gate.clock()
        if stood_still(now, min((t.queue_deadline for t in batch.tickets if not t.finished), default=now)):
            self.restart_waits()
        for ticket in batch.tickets:
            if not ticket.finished and ticket.queue_deadline <= now + 0.001:
                ticket.started = 0.0
                self._queue.end_late(ticket)
        left = [t.queue_deadline for t in batch.tickets if not t.finished]
        if left:
            batch.timer = asyncio.get_running_loop().call_later(max(0.0, min(left) - now), self._late, batch)
        else:
            self._abandon_if_done(batch)

    def restart_waits(self) -> None:
        """What was sent ahead has its whole time again; a timer that comes too early for it is set anew then."""
        now = self._gate.clock()
        for batch in self._batches:
            if batch.ahead:
                for ticket in batch.tickets:
                    ticket.queue_deadline = max(ticket.queue_deadline, now + ticket.queue_s)

    def _landed(self, batch: Batch, result: RunResult) -> None:
        queue, rows = self._queue, sum(t.rows for t in batch.tickets)
        queue.stats.ran(rows, result.run_ns, result.total_ns - result.run_ns)
        self._usual_ns += (result.run_ns - self._usual_ns) // (4 if self._usual_ns else 1)
        self._gate.observer.batch_ended(queue.model, queue.version, rows, result.run_ns)
        starved: dict[Ticket, InsufficientMemory] = {}
        for ticket, item in zip(batch.tickets, result.items, strict=True):
            ticket.run_ns = result.run_ns
            if isinstance(item, InsufficientMemory):
                starved[ticket] = item
            else:
                queue.end(ticket, item)
        if result.ran_out or starved:
            self._ran_out(batch, starved, whole=result.ran_out)

    def _ran_out(self, batch: Batch, starved: dict[Ticket, InsufficientMemory], whole: bool) -> None:
        """Out of memory: as a ``whole``, in its items (run one by one then), or both. Each raises a cost."""
        memory, spec, tickets = self._gate.memory, batch.spec, batch.tickets
        # What each was booked with, before any of them raises it. The retry had everything, which says nothing.
        alone = {t: memory.alone_cost(spec, t) for t in starved}
        if len(tickets) == 1 and not tickets[0].retried:
            alone = dict.fromkeys(starved, batch.cost)
        if whole and len(tickets) > 1:
            memory.ran_out(spec, tickets, batch.cost)
        for ticket in starved:
            memory.ran_out(spec, [ticket], alone[ticket])
        self._queue.wait_again([t for t, error in starved.items() if self._again(t, error, spec)])

    def _again(self, ticket: Ticket, error: InsufficientMemory, spec: ModelSpec) -> bool:
        """Whether to run it once more, alone and with all the memory there is; else the caller has an answer."""
        gate, queue = self._gate, self._queue
        if ticket.finished:
            return False
        if ticket.retried and gate.memory.hopeless(spec, ticket):
            queue.end(ticket, error)
        elif ticket.retried or ticket.stream or gate.closing or queue.gone is not None:
            wait = retry_after_s(gate.rate.wait_s(len(queue.waiting) + 1))
            words = f"model '{queue.model}': {error.message}"
            queue.end(ticket, Overloaded(words, retry_after_s=max(2, wait)))
        else:
            ticket.retried = True
        return not ticket.finished

    def _interrupted(self, batch: Batch) -> None:
        """Runs that the engine took with it are put back in front, once; a stream that has begun cannot be."""
        gate, queue, back = self._gate, self._queue, []
        for ticket in batch.tickets:
            if ticket.finished:
                continue
            if not batch.ahead:  # one that had not begun has nothing to do with it
                ticket.deaths += 1
            if queue.gone is not None:
                queue.end(ticket, queue.gone)
            elif gate.closing:
                queue.end(ticket, Paused("the appliance is shutting down", retry_after_s=5))
            elif ticket.deaths > 1 or ticket.told:
                queue.end(ticket, ModelError("the engine ended while it ran this request"))
            else:
                if not batch.ahead:  # it has waited already; the time lost to the crash is given back once
                    ticket.queue_deadline = gate.clock() + max(ticket.queue_s, gate.limits.queue_timeout_ms / 1000)
                back.append(ticket)
        if back and not batch.ahead:
            gate.crashed()
        queue.wait_again(back, begun=not batch.ahead)

    def _overran(self, batch: Batch) -> None:
        """Answer those past their run deadline at once; the run itself is ended when nobody is left."""
        now, queue = self._gate.clock(), self._queue
        if stood_still(now, min((t.run_deadline for t in batch.tickets if not t.finished), default=now)):
            for ticket in batch.tickets:  # its answer may lie there unread, or it stood still as well
                ticket.run_deadline = now + ticket.run_s
        for ticket in batch.tickets:
            if not ticket.finished and ticket.run_deadline <= now + 0.001:
                queue.end(ticket, InferenceTimeout(f"model '{queue.model}' ran longer than {ticket.run_s:g} s"))
        left = [t.run_deadline for t in batch.tickets if not t.finished]
        if left:
            delay = max(0.0, min(left) - now)
            batch.timer = asyncio.get_running_loop().call_later(delay, self._overran, batch)
        else:
            self._abandon_if_done(batch)

    def _abandon_if_done(self, batch: Batch) -> None:
        """Nobody waits for this run: it is asked to end, and after a grace the engine is taken for hung."""
        if batch.abandoned or not all(t.finished for t in batch.tickets):
            return
        batch.abandoned = True
        batch.copy.runner.cancel(batch.id)
        if batch.timer is not None:
            batch.timer.cancel()
        if not batch.ahead:  # else it cannot end before it has begun
            self._grace(batch)

    def _grace(self, batch: Batch) -> None:
        words = f"a run of model '{self._queue.model}' did not end {_GRACE_S:g} s after it was cancelled"
        batch.timer = asyncio.get_running_loop().call_later(_GRACE_S, self._gate.on_hang, words, batch.engine)
