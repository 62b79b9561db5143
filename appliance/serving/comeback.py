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
        self._had: set[tuple[str, str, str]] = set()  # model, version, engine

    @property
    def engines(self) -> set[str]:
        """Those in which a model had a device."""
        return {engine for _, _, engine in self._had}

    def look(self, models: Mapping[str, ServedModel]) -> list[tuple[str, str]]:
        """(model, engine) of those that run elsewhere now, or not at all because they require it."""
        lost = []
        for name, model in models.items():
            for number, version in model.versions.items():
                for engine, copy in version.copies.items():
                    if copy.spec is not None and copy.spec.degraded is None and copy.spec.device[:3] != "cpu":
                        self._had.add((name, number, engine))
                for engine in sorted(e for n, v, e in self._had if (n, v) == (name, number)):
                    if _lacks(model, version, engine):
                        lost.append((name, engine))
        return lost


def _lacks(model: ServedModel, version: ServedVersion, engine: str) -> bool:
    copy = version.copies.get(engine)
    if copy is not None:
        # One that fell from TensorRT to CUDA has its device still.
        spec = copy.spec
        return spec is not None and spec.degraded is not None and spec.device.startswith("cpu")
    required = model.wanted and model.folder.config.device == "require"
    return required and not version.copies and version.error is not None


class Comeback:
    """Starts the engine that lost its device anew, between two runs, a few times after a loss. ``engines``: as they
    are now."""

    def __init__(
        self,
        gate: Gate,
        engines: Mapping[str, Keeper],
        models: Mapping[str, ServedModel],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._gate = gate
        self._engines = engines
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
        up = all(k.client is not None for e, k in self._engines.items() if e in self._losses.engines)
        if not up or not all(m.settled for m in self._models.values()):
            return
        if not lost:
            self._tries, self._next = 0, None
        elif self._next is None:
            if self._tries < len(_WAITS_S):
                self._next = self._clock() + _WAITS_S[self._tries]
        elif self._clock() >= self._next:
            await self._try(*lost[0])

    async def _try(self, name: str, engine: str) -> None:
        keeper = self._engines.get(engine)
        client = keeper.client if keeper is not None else None
        if keeper is None or client is None or self._gate.held:
            return
        self._gate.hold()
        try:
            if await drained(self._gate):  # else at the next look
                self._tries, self._next = self._tries + 1, None
                log.info("is the device back?", model=name, attempt=self._tries)
                words = f"model '{name}' lost its device; a new engine looks whether it is back"
                keeper.kill(words, "asked")
                await gone(keeper, client)
        finally:
            self._gate.release()
