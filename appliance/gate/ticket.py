"""A request on its way: what it asks for, until when, and where it stands."""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Literal

from appliance.errors import ApplianceError
from appliance.models.tensors import Tensor

State = Literal["queued", "running", "done", "failed"]
Outputs = tuple[Tensor, ...]
Waiter = Callable[[Outputs | ApplianceError], object]


class Ticket:
    """One request to one model. Resolved exactly once, with outputs or an error.

    ``rows``: the size of the first axis (1 where the model has no batch axis). ``priority``: the lower first.
    Times are the gate's clock, in seconds. ``key``: requests of one key may share a run; None: never.
    ``tokens``: of a language model's prompt and longest answer together, 0 for other models. ``told``: a part of a
    stream's answer was given out, so it cannot begin anew.
    ``device``: where it last ran. ``position``: the place at admission, 0 if it went straight to a lane. The gate
    remembers finished tickets, so they hold neither inputs nor outputs.
    """

    __slots__ = (
        "_loop",
        "_outcome",
        "_parts",
        "_waiter",
        "blocked_since",
        "created",
        "deaths",
        "device",
        "error",
        "finished",
        "id",
        "inputs",
        "key",
        "model",
        "nbytes",
        "order",
        "outputs",
        "position",
        "priority",
        "queue_deadline",
        "queue_s",
        "retried",
        "rows",
        "run_deadline",
        "run_ns",
        "run_s",
        "shapes",
        "started",
        "state",
        "stream",
        "tokens",
        "told",
        "version",
    )

    def __init__(
        self,
        *,
        id: str,
        model: str,
        version: str,
        inputs: tuple[Tensor, ...],
        outputs: tuple[str, ...],
        rows: int,
        key: object | None,
        priority: int,
        created: float,
        queue_s: float,
        run_s: float,
        stream: bool = False,
        tokens: int = 0,
    ) -> None:
        self.id = id
        self.model = model
        self.version = version
        self.inputs = inputs
        self.outputs = outputs
        self.rows = rows
        self.key = key
        self.priority = priority
        self.created = created
        self.queue_s = queue_s
        self.queue_deadline = created + queue_s
        self.run_s = run_s
        self.stream = stream
        self.tokens = tokens
        self.told = False
        self.order = 0
        self.shapes = tuple([t.shape for t in inputs])
        self.nbytes = sum([t.nbytes for t in inputs])
        self.blocked_since = 0.0
        self.retried = False
        self.position = 0
        self.deaths = 0
        self.device = ""
        self.state: State = "queued"
        self.started = 0.0
        self.finished = 0.0
        self.run_deadline = 0.0
        self.run_ns = 0
        self.error: ApplianceError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the waiter's
        self._waiter: Waiter | None = None
        self._outcome: Outputs | ApplianceError | None = None  # what nobody has taken yet
        self._parts: asyncio.Queue[Outputs | None] | None = asyncio.Queue() if stream else None

    def resolve(self, outcome: Outputs | ApplianceError, now: float) -> bool:
        """Set the end; False (and no effect) when it has one already."""
        if self.state in ("done", "failed"):
            return False
        self.finished = now
        self.inputs = ()  # a finished request holds no input bytes
        if isinstance(outcome, ApplianceError):
            self.state, self.error = "failed", outcome
            # A copy of its own: raising hangs the waiter's frames, and with them its body, on the error.
            outcome = copy.copy(outcome)
        else:
            self.state = "done"
        if self._waiter is None or self._loop is None:
            self._outcome = outcome
        else:
            self._loop.call_soon(self._waiter, outcome)
            self._waiter = None
        if self._parts is not None:
            self._parts.put_nowait(None)
        return True

    def part(self, outputs: Outputs) -> None:
        """One part of a stream's answer has come."""
        if self._parts is not None:
            self.told = True
            self._parts.put_nowait(outputs)

    async def take(self) -> Outputs:
        """Wait for the end; the outputs are handed over, not kept. Once. Raises the request's error."""
        outcome = self._left() if self.state in ("done", "failed") else await self._end()
        if isinstance(outcome, ApplianceError):
            try:
                raise outcome
            finally:
                del outcome  # else error and frame hold each other, and with them the callers' frames and bodies
        return outcome

    async def _end(self) -> Outputs | ApplianceError:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outputs | ApplianceError] = loop.create_future()
        self.hand_to(partial(_settle, future), loop)
        return await future

    def hand_to(self, waiter: Waiter, loop: asyncio.AbstractEventLoop) -> None:
        """``take`` for a caller that is no task: ``loop`` calls it back once, soon after the end."""
        if self.state in ("done", "failed"):
            loop.call_soon(waiter, self._left())
        else:
            self._waiter, self._loop = waiter, loop

    def _left(self) -> Outputs | ApplianceError:
        outcome, self._outcome = self._outcome, None
        assert outcome is not None, "the answer was taken before"
        return outcome

    async def __aiter__(self) -> AsyncIterator[Outputs]:
        """The answer's parts: those of a stream as they come, else the one whole. Raises the request's error."""
        if self._parts is None:
            yield await self.take()
            return
        while (part := await self._parts.get()) is not None:
            yield part
        await self.take()


def _settle(future: "asyncio.Future[Outputs | ApplianceError]", outcome: Outputs | ApplianceError) -> None:
    if not future.done():  # its waiter may have been cancelled
        future.set_result(outcome)
