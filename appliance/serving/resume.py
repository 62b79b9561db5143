"""What is done when the machine has slept: the GPU's memory, or the GPU itself, may not be what it was."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

import structlog

from appliance.engine.client import EngineDied
from appliance.engine.supervisor import Cause
from appliance.gate.gate import Gate
from appliance.serving.events import Events

log = structlog.get_logger("power")

_RUNS_S = 10.0  # for the runs that the sleep interrupted
_CHECK_S = 30.0  # for the canaries of all models
_DEATH_S = 10.0  # for a killed engine to be gone


class Checkable(Protocol):
    """What of an engine's client is needed."""

    async def check(self) -> int: ...


class Keeper(Protocol):
    """What of the supervisor is needed."""

    @property
    def client(self) -> Checkable | None: ...

    def kill(self, reason: str, cause: Cause = "hang") -> None: ...


class Resume:
    """``engines``: as they are now; ``notes``: the status's list, which tells while the check lasts."""

    def __init__(self, gate: Gate, engines: Mapping[str, Keeper], events: Events, notes: list[str]) -> None:
        self._gate = gate
        self._engines = engines
        self._events = events
        self._notes = notes

    async def after(self, slept_s: float) -> None:
        """Requests wait, runs end, every model's canary runs. If one differs, or anything takes too long, its engine
        is started again. Then requests go on."""
        words = f"this machine has slept for {slept_s:.0f} s, the models are being checked"
        log.info("slept", seconds=round(slept_s))
        self._events.publish("power", slept_s=round(slept_s), state="checking")
        self._notes.append(words)
        self._gate.hold()
        self._gate.woke()
        try:
            ended = await drained(self._gate)
            states = await asyncio.gather(
                *(
                    self._check(keeper, ended or not self._gate.turn(name).running)
                    for name, keeper in self._engines.items()
                )
            )
            state = "restarting" if "restarting" in states or not states else "well"
        finally:
            self._notes.remove(words)
            self._gate.release()
        self._events.publish("power", slept_s=round(slept_s), state=state)

    async def _check(self, keeper: Keeper, ended: bool) -> str:
        """``ended``: all of its runs have."""
        client = keeper.client
        if client is None:
            return "restarting"  # every model is loaded and warmed up anyway
        try:
            if not ended:
                reason = f"a run did not end in {_RUNS_S:g} s after the machine had slept"
            else:
                async with asyncio.timeout(_CHECK_S):
                    log.info("the models are as they were", canaries=await client.check())
                return "well"
        except EngineDied as error:
            log.warning("the engine did not survive the sleep", reason=str(error))
            return "restarting"
        except TimeoutError:
            reason = f"the models' canaries did not end in {_CHECK_S:g} s after the machine had slept"
        keeper.kill(reason)
        await gone(keeper, client)
        return "restarting"


async def drained(gate: Gate) -> bool:
    """False if a run goes on for longer than it should."""
    try:
        async with asyncio.timeout(_RUNS_S):
            await gate.drained()
    except TimeoutError:
        return False
    return True


async def gone(supervisor: Keeper, client: Checkable) -> None:
    """Returns when the engine that is being killed has ended: nothing is to be sent into it any more."""
    try:
        async with asyncio.timeout(_DEATH_S):
            while supervisor.client is client:  # noqa: ASYNC110 - rare and short
                await asyncio.sleep(0.02)
    except TimeoutError:
        log.warning("the engine is killed and does not end")
