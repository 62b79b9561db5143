"""The gate: every run of every model passes here. It owns the queues and the lanes' places; the engine has none.

Lives in the server's event loop; no method blocks. The engine is given as a ``Runner`` (the engine client, or a
fake in tests).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from appliance.engine.client import EngineDied, OnChunk, OnResult, RunResult
from appliance.errors import (
    ApplianceError,
    Cancelled,
    EngineRestarting,
    InferenceTimeout,
    InvalidInput,
    ModelError,
    Paused,
    QueueFull,
    QueueTimeout,
    WarmingUp,
)
from appliance.gate.limits import DrainRate, retry_after_s
from appliance.gate.queue import WaitingQueue
from appliance.gate.stats import ModelStats
from appliance.gate.ticket import Outputs, Ticket
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Tensor

_REMEMBERED = 1024
_GRACE_S = 5.0


class Runner(Protocol):
    """What the gate needs of an engine."""

    def run(
        self,
        handle: int,
        items: list[tuple[Tensor, ...]],
        outputs: tuple[str, ...],
        on_result: OnResult,
        on_chunk: OnChunk | None = None,
    ) -> int: ...

    def cancel(self, run_id: int) -> None: ...


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


class Gate:
    """All queues of one device. ``on_hang(reason)`` is called when a run did not end after it was cancelled."""

    def __init__(
        self,
        limits: Limits,
        observer: Observer,
        on_hang: Callable[[str], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.limits = limits
        self.observer = observer
        self.on_hang = on_hang
        self.clock = clock or asyncio.get_running_loop().time
        self.paused = False
        self.closing = False
        self.engine_up = False
        self.rate = DrainRate()
        self.queues: dict[tuple[str, str], ModelQueue] = {}
        self.requests: OrderedDict[str, Ticket] = OrderedDict()
        self.waiting = 0
        self.running = 0

    def queue(self, model: str, version: str) -> "ModelQueue":
        """The queue of a model version; made on first use and kept over reloads and engine restarts."""
        key = (model, version)
        if key not in self.queues:
            self.queues[key] = ModelQueue(self, model, version)
        return self.queues[key]

    def forget(self, model: str, version: str, reason: ApplianceError) -> None:
        """The version is gone for good: what waits for it is answered with ``reason``."""
        queue = self.queues.pop((model, version), None)
        if queue is not None:
            queue.detach()
            queue.fail_waiting(reason)

    def pause(self) -> None:
        """Requests queue up (and may wait out their deadline); running ones go on."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        for queue in list(self.queues.values()):
            queue.dispatch()

    def close(self) -> None:
        """The appliance ends: nothing new is taken, what waits is answered 503, what runs may finish."""
        self.closing = True
        for queue in self.queues.values():
            queue.fail_waiting(Paused("the appliance is shutting down", retry_after_s=5))

    async def drained(self) -> None:
        """Returns when no run is in flight."""
        while self.running:
            await asyncio.sleep(0.01)

    def remember(self, ticket: Ticket) -> None:
        """Keep the ticket for ``/api/requests``; the oldest are forgotten."""
        self.requests[ticket.id] = ticket
        if len(self.requests) > _REMEMBERED + self.waiting + self.running:
            for old in self.requests.values():
                if old.finished:
                    del self.requests[old.id]
                    break


class _Batch:
    """A run in flight."""

    __slots__ = ("abandoned", "id", "tickets", "timer")

    def __init__(self, tickets: list[Ticket]) -> None:
        self.tickets = tickets
        self.id = 0
        self.abandoned = False
        self.timer: asyncio.TimerHandle | None = None


class ModelQueue:
    """One model version: its waiting requests, its lanes, and the loaded copy they go to."""

    def __init__(self, gate: Gate, model: str, version: str) -> None:
        self._gate = gate
        self.model = model
        self.version = version
        self.waiting = WaitingQueue()
        self.stats = ModelStats()
        self.spec: ModelSpec | None = None
        self._runner: Runner | None = None
        self._handle = 0
        self._batches: set[_Batch] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        """Runs in flight."""
        return len(self._batches)

    @property
    def attached(self) -> bool:
        return self._runner is not None

    def attach(self, runner: Runner, handle: int, spec: ModelSpec) -> None:
        """From now on requests go to this loaded copy."""
        self._runner, self._handle, self.spec = runner, handle, spec
        self.dispatch()

    def detach(self) -> None:
        """There is no loaded copy for now; requests wait."""
        self._runner = None

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
            rows, key = _batch_key(spec, inputs, outputs)
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
        if self._runner is not None and not self.waiting and self._free() and not gate.paused:
            gate.remember(ticket)
            self._start([ticket])
            return ticket
        self._check_room(spec)
        ticket.position = self.waiting.push(ticket)
        gate.waiting += 1
        gate.remember(ticket)
        self._arm()
        self.dispatch()
        return ticket

    async def result(self, ticket: Ticket) -> Outputs:
        """Wait for the ticket's end. A waiter that is cancelled takes its request back."""
        try:
            return await ticket.future
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
        while self.waiting and self._runner is not None and self._free() and not self._gate.paused:
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
        batch = _Batch(tickets)
        for ticket in tickets:
            ticket.state, ticket.started, ticket.run_deadline = "running", now, now + ticket.run_s
        self._batches.add(batch)
        gate.running += 1
        on_chunk = tickets[0].part if tickets[0].stream else None
        batch.id = self._runner.run(
            self._handle,
            [t.inputs for t in tickets],
            tickets[0].outputs,
            lambda outcome: self._finished(batch, outcome),
            on_chunk,
        )
        first = min(t.run_deadline for t in tickets)
        batch.timer = asyncio.get_running_loop().call_later(first - now, self._overran, batch)

    def _finished(self, batch: _Batch, outcome: RunResult | ApplianceError | EngineDied) -> None:
        """The engine's answer to a run, or the news of its death."""
        self._batches.discard(batch)
        self._gate.running -= 1
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
        self._arm()

    def _end(self, ticket: Ticket, outcome: Outputs | ApplianceError) -> None:
        now = self._gate.clock()
        if not ticket.resolve(outcome, now):
            return
        self._gate.rate.finished(now)
        queued = (ticket.started or now) - ticket.created
        self.stats.ended(ticket.error is None, now - ticket.created, queued)
        self._gate.observer.request_ended(ticket)

    def _arm(self) -> None:
        """One timer for the whole queue: at the earliest deadline of those that wait."""
        if self._timer is None and (deadline := self.waiting.next_deadline()) is not None:
            delay = max(0.0, deadline - self._gate.clock()) + 0.001
            self._timer = asyncio.get_running_loop().call_later(delay, self._late)

    def _late(self) -> None:
        self._timer = None
        gate = self._gate
        for ticket in self.waiting.expired(gate.clock()):
            gate.waiting -= 1
            wait = retry_after_s(gate.rate.wait_s(len(self.waiting) + 1))
            self._end(ticket, self._why_late(ticket, wait))
        self._arm()

    def _why_late(self, ticket: Ticket, wait: float) -> ApplianceError:
        waited = f"waited {self._gate.clock() - ticket.created:.1f} s for model '{self.model}'"
        if self._gate.paused:
            return Paused(f"{waited}, the appliance is paused", retry_after_s=wait)
        if not self._gate.engine_up:
            return EngineRestarting(f"{waited}, its engine is being restarted", retry_after_s=max(wait, 2))
        if self._runner is None:
            return WarmingUp(f"{waited}, it is being loaded", retry_after_s=max(wait, 2))
        return QueueTimeout(f"{waited}, {len(self.waiting)} requests still wait", retry_after_s=wait)

    def _overran(self, batch: _Batch) -> None:
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

    def _abandon_if_done(self, batch: _Batch) -> None:
        """Nobody waits for this run: it is asked to end, and after a grace the engine is taken for hung."""
        if batch.abandoned or not all(t.finished for t in batch.tickets):
            return
        batch.abandoned = True
        if self._runner is not None:
            self._runner.cancel(batch.id)
        if batch.timer is not None:
            batch.timer.cancel()
        words = f"a run of model '{self.model}' did not end {_GRACE_S:g} s after it was cancelled"
        batch.timer = asyncio.get_running_loop().call_later(_GRACE_S, self._gate.on_hang, words)


def _batch_key(
    spec: ModelSpec, inputs: tuple[Tensor, ...], outputs: tuple[str, ...]
) -> tuple[int, object | None]:
    """(rows, key). Requests of one key differ in nothing but their values and their number of rows."""
    rows = inputs[0].shape[0]
    for tensor in inputs:
        if tensor.shape[0] != rows:
            raise InvalidInput(
                f"input '{tensor.name}' has a batch of {tensor.shape[0]}, input '{inputs[0].name}' of {rows}",
                param=tensor.name,
            )
    if spec.batch_limit and rows > spec.batch_limit:
        raise InvalidInput(
            f"input '{inputs[0].name}' has a batch of {rows}, the model's limit is {spec.batch_limit}",
            param=inputs[0].name,
        )
    if spec.max_batch <= 1 or rows == 0:
        return max(rows, 1), None
    return rows, (outputs, tuple(t.shape[1:] for t in inputs))
