"""The doctor by HTTP, for the dashboard: about the machine that the appliance runs on, with its settings."""

import asyncio
import threading
import time
from concurrent.futures import Future

import msgspec
from fastapi import APIRouter, Response

from appliance.api.context import Context
from appliance.doctor.report import Report
from appliance.settings import Settings

_FRESH_S = 10.0


def router(context: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["Health and state"])
    doctor = Doctor()

    @routes.get("/api/doctor", summary="What this machine has, and what keeps the GPU from being used")
    async def look() -> Response:
        """What `appliance doctor` tells. It usually takes a few seconds, and 100 at most. One look is for all who ask
        meanwhile, and for ten seconds more."""
        found = await doctor.look(context.settings)
        return Response(msgspec.json.encode(found), media_type="application/json")

    return routes


class Doctor:
    """One look at a time."""

    def __init__(self) -> None:
        self._alone = asyncio.Lock()
        self._last: Report | None = None
        self._at = 0.0

    async def look(self, settings: Settings) -> Report:
        """A report that is fresh."""
        async with self._alone:
            if self._last is None or time.monotonic() - self._at > _FRESH_S:
                self._last = await _examine(settings)
                self._at = time.monotonic()
            return self._last


async def _examine(settings: Settings) -> Report:
    """In a thread that holds nobody up: the program may end meanwhile."""
    found: Future[Report] = Future()
    found.set_running_or_notify_cancel()  # from now on it cannot be cancelled

    def work() -> None:
        from appliance.doctor.examine import examine  # with what it needs only where it is asked for

        try:
            found.set_result(examine(settings))
        except Exception as error:  # noqa: BLE001 - told to who asked
            found.set_exception(error)

    threading.Thread(target=work, name="doctor", daemon=True).start()
    return await asyncio.wrap_future(found)
