"""One model's requests: where they wait, how they share runs, and how each gets its one end."""

import asyncio
from typing import TYPE_CHECKING

import structlog

from appliance.engine.client import EngineDied, RunResult
from appliance.errors import (
    ApplianceError,
    Cancelled,
    EngineRestarting,
    InferenceTimeout,
    InternalError,
    ModelError,
    Paused,
    QueueFull,
    QueueTimeout,
    WarmingUp,
)
from appliance.gate.batch import Batch, Runner, batch_key
from appliance.gate.limits import retry_after_s
from appliance.gate.queue import WaitingQueue
from appliance.gate.stats import ModelStats
from appliance.gate.ticket import Outputs, Ticket
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Tensor

if TYPE_CHECKING:
    from appliance.gate.gate import Gate

log = structlog.get_logger("gate")

_GRACE_S = 5.0


class ModelQueue:
    """One model version: its waiting requests, its lanes, and the loaded copy they go to."""

    def __init__(self, gate: "Gate", model: str, version: str) -> None:
        self._gate = gate
        self.model = model
        self.version = version
        self.waiting = WaitingQueue()
        self.stats = ModelStats()
        self.spec: ModelSpec | None = None
        self._runner: Runner | None = None
        self._handle = 0
        self._batches: set[Batch] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._gone: ApplianceError | None = None

    @property
    def running(self) -> int:
        """Runs in flight."""
        return len(self._batches)

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
        self._gone = reason
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
    ) -> Ticket:
        """Admit a request whose tensors were checked against the spec.

        Raises QueueFull, Paused, WarmingUp; InvalidInput for a first axis over the declared batch.
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
        )
        if self._runner is not None and not self.waiting and self._free() and gate.may_run(suspect=False):
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
        self._end(ticket, Cancelled("the caller went away"))
        for batch in self._batches:
            if ticket in batch.tickets:
                self._abandon_if_done(batch)

    def dispatch(self) -> None:
        """Fill the free lanes from the queue."""
        while (
            self.waiting
            and self._runner is not None
            and self._free()
            and self._gate.may_run(bool(self.waiting.head.deaths))
        ):
            assert self.spec is not None
            tickets = self.waiting.take(self.spec.max_batch)
            self._gate.waiting -= len(tickets)
            self._start(tickets)

    def fail_waiting(self, error: ApplianceError) -> None:
        """Answer everything that waits with ``error``."""
        for ticket in list(self.waiting):
            self.waiting.remove(ticket)
            self._gate.waiting -= 1
            self._end(ticket, error)

    def _free(self) -> bool:
        assert self.spec is not None
        return len(self._batches) < self.spec.config.instances

    def _check_room(self, spec: ModelSpec) -> None:
        gate = self._gate
        limit = spec.config.limits.queue or gate.limits.queue_per_model
        wait = retry_after_s(gate.rate.wait_s(len(self.waiting)))
        if len(self.waiting) >= limit:
            raise QueueFull(f"{limit} requests wait for model '{self.model}' already", retry_after_s=wait)
        if gate.waiting >= gate.limits.queue_total:
            raise QueueFull(f"{gate.limits.queue_total} requests wait already", retry_after_s=wait)

    def _start(self, tickets: list[Ticket]) -> None:
        assert self._runner is not None
        gate, now = self._gate, self._gate.clock()
        batch = Batch(self._runner, tickets)
        for ticket in tickets:
            ticket.state, ticket.started, ticket.run_deadline = "running", now, now + ticket.run_s
        self._batches.add(batch)
        gate.run_began(batch.suspect)
        on_chunk = tickets[0].part if tickets[0].stream else None
        try:
            batch.id = batch.runner.run(
                self._handle,
                [t.inputs for t in tickets],
                tickets[0].outputs,
                lambda outcome: self._finished(batch, outcome),
                on_chunk,
            )
        except Exception:  # a request that cannot be sent must not keep its lane
            log.exception("a run could not be sent", model=self.model, requests=[t.id for t in tickets])
            self._batches.discard(batch)
            gate.run_ended(batch.suspect)
            for ticket in tickets:
                self._end(ticket, InternalError("the request could not be sent to the engine"))
            return
        first = min(t.run_deadline for t in tickets)
        batch.timer = asyncio.get_running_loop().call_later(first - now, self._overran, batch)

    def _finished(self, batch: Batch, outcome: RunResult | ApplianceError | EngineDied) -> None:
        """The engine's answer to a run, or the news of its death."""
        self._batches.discard(batch)
        self._gate.run_ended(batch.suspect)
        if batch.timer is not None:
            batch.timer.cancel()
        if isinstance(outcome, EngineDied):
            self._interrupted(batch.tickets)
        elif isinstance(outcome, ApplianceError):
            for ticket in batch.tickets:
                self._end(ticket, outcome)
        else:
            rows = sum(t.rows for t in batch.tickets)
            self.stats.ran(rows, outcome.run_ns, outcome.total_ns - outcome.run_ns)
            self._gate.observer.batch_ended(self.model, self.version, rows, outcome.run_ns)
            for ticket, item in zip(batch.tickets, outcome.items, strict=True):
                ticket.run_ns = outcome.run_ns
                self._end(ticket, item)
        self.dispatch()

    def _interrupted(self, tickets: list[Ticket]) -> None:
        """Runs that the engine took with it are put back in front, once; a stream that has begun cannot be."""
        back = []
        for ticket in tickets:
            if ticket.finished:
                continue
            ticket.deaths += 1
            if self._gone is not None:
                self._end(ticket, self._gone)
                continue
            if self._gate.closing:
                self._end(ticket, Paused("the appliance is shutting down", retry_after_s=5))
                continue
            if ticket.deaths > 1 or ticket.stream:
                self._end(ticket, ModelError("the engine ended while it ran this request"))
                continue
            # It has waited already; the time lost to the crash is given back once.
            ticket.queue_deadline = self._gate.clock() + self._gate.limits.queue_timeout_ms / 1000
            ticket.state = "queued"
            back.append(ticket)
        self.waiting.put_back(back)
        self._gate.waiting += len(back)
        if back:
            self._gate.crashed()
        self._arm(self.waiting.next_deadline())

    def _end(self, ticket: Ticket, outcome: Outputs | ApplianceError) -> None:
        now = self._gate.clock()
        if not ticket.resolve(outcome, now):
            return
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
        for ticket in self.waiting.expired(gate.clock()):
            gate.waiting -= 1
            wait = retry_after_s(gate.rate.wait_s(len(self.waiting) + 1))
            self._end(ticket, self._why_late(ticket, wait))
        self._arm(self.waiting.next_deadline())

    def _why_late(self, ticket: Ticket, wait: float) -> ApplianceError:
        waited = f"waited {self._gate.clock() - ticket.created:.1f} s for model '{self.model}'"
        if self._gate.paused:
            return Paused(f"{waited}, the appliance is paused", retry_after_s=wait)
        if not self._gate.engine_up:
            return EngineRestarting(f"{waited}, its engine is being restarted", retry_after_s=max(wait, 2))
        if self._runner is None:
            return WarmingUp(f"{waited}, it is being loaded", retry_after_s=max(wait, 2))
        return QueueTimeout(f"{waited}, {len(self.waiting)} requests still wait", retry_after_s=wait)

    def _overran(self, batch: Batch) -> None:
        """Answer those past their run deadline at once; the run itself is ended when nobody is left."""
        now = self._gate.clock()
        for ticket in batch.tickets:
            if not ticket.finished and ticket.run_deadline <= now + 0.001:
                self._end(ticket, InferenceTimeout(f"model '{self.model}' ran longer than {ticket.run_s:g} s"))
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
        batch.runner.cancel(batch.id)
        if batch.timer is not None:
            batch.timer.cancel()
        words = f"a run of model '{self.model}' did not end {_GRACE_S:g} s after it was cancelled"
        batch.timer = asyncio.get_running_loop().call_later(_GRACE_S, self._gate.on_hang, words)
