"""One model's requests: where they wait, who is next, to which copy each goes, and how each gets its one end."""

import asyncio
from functools import partial
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
from appliance.gate.copies import Copy, Lanes, Turn, by_load
from appliance.gate.flights import Flights
from appliance.gate.limits import retry_after_s, stood_still
from appliance.gate.queue import WaitingQueue
from appliance.gate.shortage import Shortage
from appliance.gate.stats import ModelStats
from appliance.gate.ticket import Outputs, Ticket
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Tensor

if TYPE_CHECKING:
    from appliance.gate.gate import Gate


class ModelQueue:
    """One model version: its waiting requests, and the loaded copies they go to. Each takes the next when a lane of
    it is free, so a request goes to the one that will start it first."""

    def __init__(self, gate: "Gate", model: str, version: str) -> None:
        self._gate = gate
        self.model = model
        self.version = version
        self.waiting = WaitingQueue()
        self.stats = ModelStats()
        self.last_used = gate.clock()
        self.spec: ModelSpec | None = None  # of the newest copy, also when there is none any more
        self.copies: list[Copy] = []
        self._widest: ModelSpec | None = None
        self._lanes: dict[str, Lanes] = {}  # by engine
        self._lost = False  # the last copy went with its engine
        self.flights = Flights(gate, self)
        self._shortage = Shortage(gate, self)
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._holding: asyncio.TimerHandle | None = None
        self.gone: ApplianceError | None = None  # why the version will not come back

    @property
    def running(self) -> int:
        """Runs in flight."""
        return len(self.flights)

    def suspect_next(self, turn: Turn) -> bool:
        """The next request was in a crash, and that engine has a copy to run it."""
        return (
            bool(self.waiting) and bool(self.waiting.head.deaths) and any(copy.turn is turn for copy in self.copies)
        )

    def attach(self, runner: Runner, handle: int, spec: ModelSpec) -> None:
        """From now on requests go to this loaded copy too, instead of an older one in the same engine."""
        self.detach(spec.engine)
        lanes = self._lanes.setdefault(spec.engine, Lanes())
        self.copies.append(Copy(runner, handle, spec, self._gate.turn(spec.engine), lanes))
        self.spec, self._lost = spec, False
        self._widen()
        self.dispatch()

    def detach(self, engine: str | None = None, lost: bool = False) -> None:
        """There is no loaded copy in that engine for now (None: in any); without one, requests wait. ``lost``: the
        engine is gone."""
        left = [] if engine is None else [copy for copy in self.copies if copy.spec.engine != engine]
        self._lost = lost and not left and (bool(self.copies) or self._lost)
        if left and len(left) < len(self.copies):
            self._shortage.moved()
        self.copies = left
        self._widen()
        self._gate.copy_gone()

    def _widen(self) -> None:
        """Requests are counted and grouped for the copy that merges most."""
        self._widest = max([copy.spec for copy in self.copies], key=lambda spec: spec.max_batch, default=self.spec)

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
        gate, spec = self._gate, self._widest
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
        self._shortage.check(ticket)
        gathers = spec.config.batching.max_delay_ms > 0 and ticket.key is not None
        if not self.waiting and not gathers:
            for copy in by_load(self.copies):
                if copy.free and gate.may_run(copy.turn, False) and gate.memory.fits(copy.spec, [ticket]):
                    gate.remember(ticket)
                    self.flights.start(copy, [ticket])
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
        while self.waiting and self._dispatch_one():
            pass

    def _dispatch_one(self) -> bool:
        """Send the next run to the copy that will start it first. False if none can now."""
        gate, head, several = self._gate, self.waiting.head, len(self.copies) > 1
        short: list[Copy] = []  # that have a lane for the head, and not the memory
        for copy in by_load(self.copies):
            if not gate.may_run(copy.turn, bool(head.deaths)):
                continue
            ahead = not copy.free
            if ahead and not self._worth_ahead(head, copy):
                continue
            if (ahead or several) and not gate.memory.fits(copy.spec, [head]):
                short += [] if ahead else [copy]
                continue
            if (sent := self._send(head, copy, ahead)) is not None:
                return sent
            short.append(copy)
        for copy in short if several else ():
            if (sent := self._send(head, copy)) is not None:  # smaller ones
                return sent
        if short:
            self._shortage.waits(head)
        return False

    def _send(self, head: Ticket, copy: Copy, ahead: bool = False) -> bool | None:
        """Start the next run that the copy's device has the memory for. False if more is to be waited for, None if
        nothing fits."""
        most = self._most(copy.spec)
        if most is None:
            return False
        tickets = self.waiting.take(most, partial(self._gate.memory.fits, copy.spec))
        if not tickets:
            return None
        if tickets[0] is not head:
            self._shortage.waits(head)
        self._gate.waiting -= len(tickets)
        self.flights.start(copy, tickets, ahead=ahead)
        return True

    def _worth_ahead(self, head: Ticket, copy: Copy) -> bool:
        """As ``Flights.worth_ahead``, and no later request could still join the run."""
        if copy.lanes.flying > copy.spec.lanes or not self.flights.worth_ahead(head, copy):
            return False
        most = copy.spec.good_batch or copy.spec.max_batch
        return most <= 1 or head.key is None or self.waiting.rows_like_head() >= most

    def _most(self, spec: ModelSpec) -> int | None:
        """The most items of the next run, or None while it is worth waiting for more (then a timer is set)."""
        most, wish = spec.max_batch, spec.config.batching
        if most <= 1 or not (wish.max_delay_ms or wish.preferred_sizes):
            return spec.good_batch or most
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

    def fail_waiting(self, error: ApplianceError) -> None:
        """Answer everything that waits with ``error``."""
        for ticket in list(self.waiting):
            self.waiting.remove(ticket)
            self._gate.waiting -= 1
            self.end(ticket, error)

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
        if self._lost or not self._gate.engine_up:
            return EngineRestarting(f"{waited}, its engine is being restarted", retry_after_s=max(wait, 2))
        if not self.copies:
            return WarmingUp(f"{waited}, it is being loaded", retry_after_s=max(wait, 2))
        return QueueTimeout(f"{waited}, {len(self.waiting)} requests still wait", retry_after_s=wait)
