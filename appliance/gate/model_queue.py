"""One model's requests: where they wait, who is next, and how each gets its one end."""

import asyncio
from typing import TYPE_CHECKING

from appliance.errors import (
    ApplianceError,
    Cancelled,
    EngineRestarting,
    Paused,
    QueueFull,
    QueueTimeout,
    WarmingUp,
)
from appliance.gate import gathering
from appliance.gate.batch import Runner, batch_key, fill
from appliance.gate.flights import Flights
from appliance.gate.limits import retry_after_s, stood_still
from appliance.gate.queue import WaitingQueue
from appliance.gate.stats import ModelStats
from appliance.gate.ticket import Outputs, Ticket
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Tensor

if TYPE_CHECKING:
    from appliance.gate.gate import Gate


class ModelQueue:
    """One model version: its waiting requests, its lanes, and the loaded copy they go to."""

    def __init__(self, gate: "Gate", model: str, version: str) -> None:
        self._gate = gate
        self.model = model
        self.version = version
        self.waiting = WaitingQueue()
        self.stats = ModelStats()
        self.last_used = gate.clock()
        self.spec: ModelSpec | None = None
        self._runner: Runner | None = None
        self._handle = 0
        self.flights = Flights(gate, self)
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._holding: asyncio.TimerHandle | None = None
        self.gone: ApplianceError | None = None  # why the version will not come back

    @property
    def running(self) -> int:
        """Runs in flight."""
        return len(self.flights)

    @property
    def suspect_next(self) -> bool:
        """The next request was in a crash, and there is a loaded copy to run it."""
        return self._runner is not None and bool(self.waiting) and bool(self.waiting.head.deaths)

    def attach(self, runner: Runner, handle: int, spec: ModelSpec) -> None:
        """From now on requests go to this loaded copy."""
        self._runner, self._handle, self.spec = runner, handle, spec
        self.dispatch()

    def detach(self) -> None:
        """There is no loaded copy for now; requests wait."""
        self._runner = None

    def forget(self, reason: ApplianceError) -> None:
        """The version is gone for good: what waits, or comes back from a crash, is answered with ``reason``."""
        self.gone = reason
        self.detach()
        self.fail_waiting(reason)

    def submit(
        self,
        request_id: str,
        inputs: tuple[Tensor, ...],
        outputs: tuple[str, ...],
        *,
        priority: int = 0,
        queue_s: float,
        run_s: float,
        stream: bool = False,
        tokens: int = 0,
    ) -> Ticket:
        """Admit a request whose tensors were checked against the spec.

        Raises QueueFull, Paused, WarmingUp; InvalidInput for a first axis over the declared batch;
        InsufficientMemory for what could never fit the device.
        """
        gate, spec = self._gate, self.spec
        if gate.closing:
            raise Paused("the appliance is shutting down", retry_after_s=5)
        if spec is None:
            raise WarmingUp(f"model '{self.model}' is being loaded", retry_after_s=2)
        rows, key = 1, None
        if spec.max_batch or spec.batch_limit:
            rows, key = batch_key(spec, inputs, outputs)
        ticket = Ticket(
            id=request_id,
            model=self.model,
            version=self.version,
            inputs=inputs,
            outputs=outputs,
            rows=rows,
            key=None if stream else key,
            priority=priority,
            created=gate.clock(),
            queue_s=queue_s,
            run_s=run_s,
            stream=stream,
            tokens=tokens,
        )
        if spec.pads and ticket.key is not None:
            fill(ticket)
        self.last_used = ticket.created
        gate.memory.check(spec, ticket)
        gathers = spec.config.batching.max_delay_ms > 0 and ticket.key is not None
        at_once = self._runner is not None and not self.waiting and self._free() and gate.may_run(suspect=False)
        at_once = at_once and not gathers
        if at_once and gate.memory.fits(spec, [ticket]):
            gate.remember(ticket)
            self._start([ticket])
            return ticket
        self._check_room(spec)
        ticket.position = self.waiting.push(ticket)
        gate.waiting += 1
        gate.remember(ticket)
        self._arm(ticket.queue_deadline)
        self.dispatch()
        return ticket

    async def result(self, ticket: Ticket) -> Outputs:
        """Wait for the ticket's end. A waiter that is cancelled takes its request back."""
        try:
            return await ticket.take()
        except asyncio.CancelledError:
            self.cancel(ticket)
            raise

    def cancel(self, ticket: Ticket) -> None:
        """Nobody wants the answer any more: leave the queue, or end the run if all of its requests are gone."""
        if self.waiting.remove(ticket):
            self._gate.waiting -= 1
        self.end(ticket, Cancelled("the caller went away"))
        self.flights.given_up(ticket)

    def dispatch(self) -> None:
        """Fill the free lanes from the queue."""
        while self.waiting and self._runner is not None and self._gate.may_run(bool(self.waiting.head.deaths)):
            head, ahead = self.waiting.head, not self._free()
            if ahead and not self._worth_ahead(head):
                return
            most = self._most()
            if most is None or (ahead and not self._fits([head])):
                return
            tickets = self.waiting.take(most, self._fits)
            if not tickets or tickets[0] is not head:
                self._wait_for_memory(head)
            if not tickets:
                return
            self._gate.waiting -= len(tickets)
            self._start(tickets, ahead)

    def _worth_ahead(self, head: Ticket) -> bool:
        """As ``Flights.worth_ahead``, and no later request could still join the run."""
        assert self.spec is not None
        if len(self.flights) > self.spec.lanes or not self.flights.worth_ahead(head, self.spec):
            return False
        most = self.spec.good_batch or self.spec.max_batch
        return most <= 1 or head.key is None or self.waiting.rows_like_head() >= most

    def _most(self) -> int | None:
        """The most items of the next run, or None while it is worth waiting for more (then a timer is set)."""
        assert self.spec is not None
        most, wish = self.spec.max_batch, self.spec.config.batching
        if most <= 1 or not (wish.max_delay_ms or wish.preferred_sizes):
            return self.spec.good_batch or most
        rows = self.waiting.rows_like_head()
        if not rows:
            return most
        age = self._gate.clock() - self.waiting.head.created
        goal = gathering.goal_of(wish.preferred_sizes, most)
        hold = gathering.hold_s(rows, goal, age, wish.max_delay_ms / 1000)
        if hold > 0:
            if self._holding is None:
                self._holding = asyncio.get_running_loop().call_later(hold, self._held)
            return None
        return gathering.rows_to_take(rows, wish.preferred_sizes, most)

    def _held(self) -> None:
        self._holding = None
        self.dispatch()

    def _start(self, tickets: list[Ticket], ahead: bool = False) -> None:
        assert self._runner is not None and self.spec is not None
        self.flights.start(self._runner, self._handle, self.spec, tickets, ahead=ahead)

    def _fits(self, tickets: list[Ticket]) -> bool:
        return self.spec is not None and self._gate.memory.fits(self.spec, tickets)

    def _wait_for_memory(self, head: Ticket) -> None:
        """The head does not fit now: smaller ones may overtake it for a while, then room is kept for it."""
        gate = self._gate
        gate.blocked = True
        if self.spec is not None and (size := gate.memory.short(self.spec, head)):
            gate.on_short(self.model, self.spec.device, size)
        if not head.blocked_since:
            head.blocked_since = gate.clock()
            # One that ran out of memory was overtaken before, by those that took it.
            wait = 0.0 if head.retried else gate.limits.max_overtake_ms / 1000
            asyncio.get_running_loop().call_later(wait, self._reserve, head)

    def _reserve(self, ticket: Ticket) -> None:
        if self.spec is not None and ticket.blocked_since and self.waiting.place(ticket):
            if not self._gate.memory.reserve(self.spec, ticket):
                # Another one has the reservation; this one is next to ask.
                asyncio.get_running_loop().call_later(0.1, self._reserve, ticket)
            self.dispatch()

    def fail_waiting(self, error: ApplianceError) -> None:
        """Answer everything that waits with ``error``."""
        for ticket in list(self.waiting):
            self.waiting.remove(ticket)
            self._gate.waiting -= 1
            self.end(ticket, error)

    def _free(self) -> bool:
        assert self.spec is not None
        return len(self.flights) < self.spec.lanes

    def _check_room(self, spec: ModelSpec) -> None:
        gate = self._gate
        limit = spec.config.limits.queue or gate.limits.queue_per_model
        if len(self.waiting) < limit and gate.waiting < gate.limits.queue_total:
            return
        wait = retry_after_s(gate.rate.wait_s(len(self.waiting)))
        if len(self.waiting) >= limit:
            raise QueueFull(f"{limit} requests wait for model '{self.model}' already", retry_after_s=wait)
        raise QueueFull(f"{gate.limits.queue_total} requests wait already", retry_after_s=wait)

    def wait_again(self, tickets: list[Ticket], begun: bool = True) -> None:
        """Runs that came to nothing go back in front, or to their place if they had not ``begun``; they were admitted
        already."""
        for ticket in tickets:
            ticket.state = "queued"
        if begun:
            self.waiting.put_back(tickets)
        else:
            self.waiting.back_in_place(tickets)
        self._gate.waiting += len(tickets)
        self._arm(self.waiting.next_deadline())

    def end(self, ticket: Ticket, outcome: Outputs | ApplianceError) -> None:
        """The ticket's answer; only the first counts."""
        now = self._gate.clock()
        if not ticket.resolve(outcome, now):
            return
        if ticket.blocked_since and self._gate.memory.release(ticket):
            self._gate.more_room()
        if ticket.started:  # what only waited says nothing of how fast runs end
            self._gate.rate.finished(now)
        queued = (ticket.started or now) - ticket.created
        self.stats.ended(ticket.error is None, now - ticket.created, queued)
        self._gate.observer.request_ended(ticket)

    def _arm(self, deadline: float | None) -> None:
        """One timer for the whole queue: at the earliest deadline of those that wait."""
        if deadline is None or (self._timer is not None and deadline >= self._armed_for):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = deadline
        delay = max(0.0, deadline - self._gate.clock()) + 0.001
        self._timer = asyncio.get_running_loop().call_later(delay, self._late)

    def _late(self) -> None:
        self._timer = None
        gate = self._gate
        if stood_still(gate.clock(), self._armed_for):
            self.restart_waits()
        for ticket in self.waiting.expired(gate.clock()):
            gate.waiting -= 1
            self.end_late(ticket)
        self._arm(self.waiting.next_deadline())

    def restart_waits(self) -> None:
        """What waits has its whole time again: nothing could run meanwhile."""
        now = self._gate.clock()
        for ticket in self.waiting:
            ticket.queue_deadline = max(ticket.queue_deadline, now + ticket.queue_s)  # a crash may have given more
        self.flights.restart_waits()
        if self._timer is not None:  # else it would find the same sleep once more
            self._timer.cancel()
            self._timer = None
        self._arm(self.waiting.next_deadline())

    def end_late(self, ticket: Ticket) -> None:
        """It has waited until its queue deadline."""
        self.end(ticket, self._why_late(ticket, retry_after_s(self._gate.rate.wait_s(len(self.waiting) + 1))))

    def _why_late(self, ticket: Ticket, wait: float) -> ApplianceError:
        waited = f"waited {self._gate.clock() - ticket.created:.1f} s for model '{self.model}'"
        if self._gate.paused:
            return Paused(f"{waited}, the appliance is paused", retry_after_s=wait)
        if not self._gate.engine_up:
            return EngineRestarting(f"{waited}, its engine is being restarted", retry_after_s=max(wait, 2))
        if self._runner is None:
            return WarmingUp(f"{waited}, it is being loaded", retry_after_s=max(wait, 2))
        return QueueTimeout(f"{waited}, {len(self.waiting)} requests still wait", retry_after_s=wait)
