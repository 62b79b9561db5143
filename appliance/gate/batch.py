"""A run in flight, what it runs on, and which requests may share one."""

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from appliance.engine.client import OnChunk, OnResult
from appliance.errors import InvalidInput
from appliance.gate.ticket import Ticket
from appliance.models.padding import filled_shapes
from appliance.models.spec import ModelSpec
from appliance.models.tensors import Tensor, size_of

if TYPE_CHECKING:
    from appliance.gate.copies import Copy


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
    """A run in flight. ``suspect``: it was in a crash before, so it has the engine to itself. ``ahead``: it was sent
    while the lanes were full, and has not begun."""

    __slots__ = ("abandoned", "ahead", "copy", "cost", "id", "kind", "spec", "suspect", "tickets", "timer")

    def __init__(self, copy: "Copy", tickets: list[Ticket]) -> None:
        self.copy = copy  # that runs it
        self.spec = copy.spec
        self.tickets = tickets
        self.suspect = any(ticket.deaths for ticket in tickets)
        self.id = 0
        self.cost = 0  # bytes booked for it
        self.kind: object = None  # what they were found by: the same for runs of the same model, shapes and size
        self.abandoned = False
        self.ahead = False
        self.timer: asyncio.TimerHandle | None = None

    @property
    def model(self) -> tuple[str, ...]:
        """The key of the copy that runs it."""
        return self.spec.key

    @property
    def engine(self) -> str:
        return self.spec.engine

    @property
    def overlaps(self) -> bool:
        """Others of its model may run beside it."""
        return self.spec.lanes > 1


def batch_key(spec: ModelSpec, inputs: tuple[Tensor, ...], outputs: tuple[str, ...]) -> tuple[int, object | None]:
    """(rows, key): the size of the first axis, and what requests must have in common to share a run (None: never).

    Requests of one key differ in nothing but their values and their number of rows; where the model has ``pads``,
    also in lengths that are filled up to the same. Raises InvalidInput.
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
    if spec.pads:
        filled = filled_shapes(spec.pads, {t.name: t.shape for t in inputs})
        key = None if filled is None else (outputs, tuple((t.name, filled[t.name][1:]) for t in inputs))
        return rows, key
    return rows, (outputs, tuple((t.name, t.shape[1:]) for t in inputs))


def fill(ticket: Ticket) -> None:
    """Count the ticket with the shapes that it will run with; its key is of a model with ``pads``."""
    _, rests = cast("tuple[object, tuple[tuple[str, tuple[int, ...]], ...]]", ticket.key)
    ticket.shapes = tuple((ticket.rows, *rest) for _, rest in rests)
    ticket.nbytes = sum(
        t.nbytes if t.datatype == "BYTES" else size_of(t.datatype, shape)
        for t, shape in zip(ticket.inputs, ticket.shapes, strict=True)
    )
