"""A gate with everything around it in the test's hands."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import wraps
from typing import Any

from appliance.gate.gate import Gate
from appliance.gate.model_queue import ModelQueue
from appliance.gate.ticket import Ticket
from appliance.models.spec import ModelSpec
from tests.support import virtual_time
from tests.support.fake_runner import FakeRunner, model_spec, rows


@dataclass
class Bounds:
    """The gate's limits."""

    queue_per_model: int = 256
    queue_total: int = 1024
    queue_timeout_ms: int = 30_000
    run_timeout_ms: int = 60_000
    max_overtake_ms: int = 2_000
    memory_fraction: float = 1.0
    cpu_memory_fraction: float = 1.0
    memory_reserve_bytes: int = 0


class Ends:
    """The gate's observer: how often each ticket ended, and the runs' sizes."""

    def __init__(self) -> None:
        self.count: Counter[int] = Counter()
        self.batches: list[tuple[str, str, int, int]] = []

    def request_ended(self, ticket: Ticket) -> None:
        self.count[id(ticket)] += 1

    def batch_ended(self, model: str, version: str, rows: int, run_ns: int) -> None:
        self.batches.append((model, version, rows, run_ns))


class Bench:
    """A gate with one model attached to a fake engine."""

    def __init__(self, spec: ModelSpec | None = None, *, attach: bool = True, **limits: int) -> None:
        self.bounds = Bounds(**limits)
        self.ends = Ends()
        self.hangs: list[str] = []
        self.gate = Gate(
            self.bounds, self.ends, lambda reason, engine: self.hangs.append(reason), asyncio.get_running_loop().time
        )
        self.gate.engine_up = True
        self.spec = spec or model_spec()
        self.runner = FakeRunner()
        self.queue = self.gate.queue("m", "1")
        if attach:
            self.queue.attach(self.runner, 7, self.spec)

    def submit(
        self,
        *values: float,
        queue: ModelQueue | None = None,
        id: str = "r",
        priority: int = 0,
        queue_s: float = 30.0,
        run_s: float = 60.0,
        stream: bool = False,
    ) -> Ticket:
        return (queue or self.queue).submit(
            id, rows(*(values or (1.0,))), ("y",), priority=priority, queue_s=queue_s, run_s=run_s, stream=stream
        )

    def engine_dies(self) -> None:
        """In the order of the real thing: the queues lose their copy, then each run hears of it."""
        self.gate.engine_up = False
        for queue in self.gate.queues.values():
            queue.detach()
        self.runner.die()

    def engine_returns(self) -> FakeRunner:
        self.runner = FakeRunner()
        self.gate.engine_up = True
        for queue in self.gate.queues.values():
            queue.attach(self.runner, 8, queue.spec or self.spec)
        return self.runner

    def counters(self) -> tuple[int, int]:
        return self.gate.waiting, self.gate.running


async def passed(seconds: float) -> None:
    """Let so much (virtual) time pass."""
    await asyncio.sleep(seconds)


def timed(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in virtual time."""

    @wraps(test)
    def inside(*args: Any, **more: Any) -> None:
        virtual_time.run(test(*args, **more))

    return inside
