"""A device that was lost may come back (the driver restarts, a GPU wakes up late): a fresh engine finds out."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from appliance.gate.gate import Gate
from appliance.serving.events import Events
from appliance.serving.resume import Keeper, drained, gone
from appliance.serving.served import ServedModel, ServedVersion

log = structlog.get_logger("power")

_EVERY_S = 5.0
_WAITS_S = (10.0, 30.0, 120.0, 600.0)  # before each try; then it is believed to be gone


class Losses:
    """Which models had a device and have it no more."""

    def __init__(self) -> None:
        self._had: set[tuple[str, str]] = set()

    def look(self, models: Mapping[str, ServedModel]) -> list[str]:
        """Names of those that run elsewhere now, or not at all because they require it."""
        lost = []
        for name, model in models.items():
            for number, version in model.versions.items():
                if _has(version):
                    self._had.add((name, number))
                elif (name, number) in self._had and _lacks(model, version):
                    lost.append(name)
        return lost


def _has(version: ServedVersion) -> bool:
    spec = version.spec
    return version.ready and spec is not None and spec.degraded is None and spec.device != "cpu"


def _lacks(model: ServedModel, version: ServedVersion) -> bool:
    if version.ready:
        return version.spec is not None and version.spec.degraded is not None
    return model.wanted and version.error is not None and model.folder.config.device == "require"


class Comeback:
    """Starts the engine anew, between two runs, a few times after a loss."""

    def __init__(
        self,
        gate: Gate,
        supervisor: Keeper,
        models: Mapping[str, ServedModel],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._gate = gate
        self._supervisor = supervisor
        self._models = models
        self._clock = clock or gate.clock
        self._losses = Losses()
        self._tries = 0
        self._next: float | None = None

    async def watch(self, events: Events) -> None:
        """Look every 5 s and whenever a model was loaded, until the appliance ends."""
        queue = events.subscribe()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):
                    if await queue.get() is None:
                        return
            await self.look()

    async def look(self) -> None:
        """One look, and a try if it is time for one."""
        lost = self._losses.look(self._models)
        if self._supervisor.client is None or not all(m.settled for m in self._models.values()):
            return
        if not lost:
            self._tries, self._next = 0, None
        elif self._next is None:
            if self._tries < len(_WAITS_S):
                self._next = self._clock() + _WAITS_S[self._tries]
        elif self._clock() >= self._next:
            await self._try(lost[0])

    async def _try(self, name: str) -> None:
        client = self._supervisor.client
        if client is None or self._gate.held:
            return
        self._gate.hold()
        try:
            if await drained(self._gate):  # else at the next look
                self._tries, self._next = self._tries + 1, None
                log.info("is the device back?", model=name, attempt=self._tries)
                words = f"model '{name}' lost its device; a new engine looks whether it is back"
                self._supervisor.kill(words, "asked")
                await gone(self._supervisor, client)
        finally:
            self._gate.release()
