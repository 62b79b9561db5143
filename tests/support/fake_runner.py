"""The gate's ``Runner`` in a test's hands: a run stays open until the test ends it."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from appliance.engine.client import EngineDied, OnChunk, OnResult, RunResult
from appliance.errors import ApplianceError
from appliance.gate.ticket import Ticket
from appliance.models.spec import Limits, ModelConfig, ModelSpec, TensorSpec
from appliance.models.tensors import Tensor, from_array

Items = list[tuple[Tensor, ...]]


class FakeRun:
    """What the gate sent. ``cancelled``: how often it asked for an early end."""

    def __init__(
        self,
        run_id: int,
        handle: int,
        items: Items,
        outputs: tuple[str, ...],
        on_result: OnResult,
        on_chunk: OnChunk | None,
    ) -> None:
        self.id = run_id
        self.handle = handle
        self.items = items
        self.outputs = outputs
        self.on_result = on_result
        self.on_chunk = on_chunk
        self.cancelled = 0

    @property
    def rows(self) -> int:
        return sum(item[0].shape[0] for item in self.items)

    def echo(self) -> list[tuple[Tensor, ...] | ApplianceError]:
        """Every item's own first input as its output ``y``."""
        return [(Tensor("y", item[0].datatype, item[0].shape, item[0].data),) for item in self.items]


class FakeRunner:
    """``open``: runs in flight by id; ``started``: all, in order; ``refuse``: what the next ``run`` raises."""

    def __init__(self) -> None:
        self.open: dict[int, FakeRun] = {}
        self.started: list[FakeRun] = []
        self.refuse: Exception | None = None
        self.dead: str | None = None
        self.strangers: list[int] = []
        self._ids = itertools.count(1)

    def run(
        self,
        handle: int,
        items: Items,
        outputs: tuple[str, ...],
        on_result: OnResult,
        on_chunk: OnChunk | None = None,
    ) -> int:
        if self.refuse is not None:
            raise self.refuse
        run = FakeRun(next(self._ids), handle, items, outputs, on_result, on_chunk)
        self.started.append(run)
        if self.dead is not None:
            asyncio.get_running_loop().call_soon(on_result, EngineDied(self.dead))
        else:
            self.open[run.id] = run
        return run.id

    def cancel(self, run_id: int) -> None:
        if run_id in self.open:
            self.open[run_id].cancelled += 1
        else:
            self.strangers.append(run_id)

    def finish(
        self, run: FakeRun | None = None, items: Sequence[tuple[Tensor, ...] | ApplianceError] | None = None
    ) -> None:
        """End a run (the oldest) well: by default each item gets its own input back."""
        run = self._pop(run)
        run.on_result(
            RunResult(list(items) if items is not None else run.echo(), run_ns=2_000_000, total_ns=3_000_000)
        )

    def fail(self, error: ApplianceError, run: FakeRun | None = None) -> None:
        """End a run (the oldest) with an error for all of it."""
        self._pop(run).on_result(error)

    def die(self, reason: str = "killed") -> None:
        """The engine is gone: every run hears of it."""
        self.dead = reason
        runs = list(self.open.values())
        self.open.clear()
        for run in runs:
            run.on_result(EngineDied(reason))

    def _pop(self, run: FakeRun | None) -> FakeRun:
        return self.open.pop(run.id if run is not None else next(iter(self.open)))


def model_spec(
    *, max_batch: int = 4, instances: int = 1, queue: int | None = None, batch_limit: int = 0, width: int = 1
) -> ModelSpec:
    """``y`` = ``x``, FP32 [-1, width]."""
    shape = (-1, width)
    return ModelSpec(
        name="m",
        version="1",
        platform="fake",
        backend="fake",
        inputs=(TensorSpec("x", "FP32", shape),),
        outputs=(TensorSpec("y", "FP32", shape),),
        max_batch=max_batch,
        batch_limit=batch_limit,
        config=ModelConfig(instances=instances, limits=Limits(queue=queue)),
    )


def rows(*values: float) -> tuple[Tensor, ...]:
    """One input ``x`` FP32 [len(values), 1]."""
    return (from_array("x", np.array(values, dtype=np.float32).reshape(-1, 1)),)


def numbers(outputs: tuple[Tensor, ...]) -> list[float]:
    """The values of the first output."""
    return [float(v) for v in np.frombuffer(outputs[0].data, dtype=np.float32)]


def ticket(inputs: tuple[Tensor, ...] = (), **other: Any) -> Ticket:
    """A request to version 1 of model ``m`` that is not in any queue; ``other``: what it has of its own."""
    usual = {"id": "r", "model": "m", "version": "1", "outputs": ("y",), "rows": 1, "key": None, "priority": 0}
    return Ticket(inputs=inputs, **(usual | {"created": 0.0, "queue_s": 1.0, "run_s": 1.0} | other))
