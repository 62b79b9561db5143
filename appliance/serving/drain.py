"""The way to an end that loses no answer: nothing new is taken, what was taken is answered, then the program ends."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from appliance.gate.gate import Gate

log = structlog.get_logger("appliance")

_LOOK_S = 0.02


class Drain:
    """Lives in the server's loop. ``done`` is called once, when all is answered or the time is over."""

    def __init__(self, gate: Gate, done: Callable[[], None]) -> None:
        self._gate = gate
        self._done = done
        self._until = 0.0
        self._under_way = 0
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around a request from its head to its answer: tasks of several runs are between two of them at times."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def begin(self, within_s: float) -> None:
        """From now on new requests get 503 ``paused``; what waits or runs has ``within_s`` seconds.

        It ends a pause, whose requests would wait for nobody. Called again, it only sets the time anew.
        """
        loop = asyncio.get_running_loop()
        self._until = loop.time() + within_s
        if self._task is None:
            gate = self._gate
            log.info("draining", waiting=gate.waiting, running=gate.running, within_s=within_s)
            gate.drain()
            self._task = loop.create_task(self._run(), name="drain")

    async def _run(self) -> None:
        loop, gate = asyncio.get_running_loop(), self._gate
        # Three counts have to be zero at the same moment; none of them has an event that tells of all three.
        while (gate.waiting or gate.running or self._under_way) and loop.time() < self._until:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        log.info("drained", left=gate.waiting + gate.running)
        self._done()
