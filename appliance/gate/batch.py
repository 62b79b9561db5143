"""A run in flight, what it runs on, and which requests may share one."""

import asyncio
from typing import Protocol

from appliance.engine.client import OnChunk, OnResult
from appliance.errors import InvalidInput
from appliance.gate.ticket import Ticket
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Tensor


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


class Batch:
    """A run in flight. ``suspect``: it was in a crash before, so it has the engine to itself."""

    __slots__ = ("abandoned", "cost", "id", "runner", "spec", "suspect", "tickets", "timer")

    def __init__(self, runner: Runner, tickets: list[Ticket], spec: ModelSpec) -> None:
        self.runner = runner
        self.spec = spec  # of the copy that runs it
        self.tickets = tickets
        self.suspect = any(ticket.deaths for ticket in tickets)
        self.id = 0
        self.cost = 0  # bytes booked for it
        self.abandoned = False
        self.timer: asyncio.TimerHandle | None = None


def batch_key(spec: ModelSpec, inputs: tuple[Tensor, ...], outputs: tuple[str, ...]) -> tuple[int, object | None]:
    """(rows, key): the size of the first axis, and what requests must have in common to share a run (None: never).

    Requests of one key differ in nothing but their values and their number of rows. Raises InvalidInput.
    """
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
    return rows, (outputs, tuple((t.name, t.shape[1:]) for t in inputs))
