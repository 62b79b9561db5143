"""What another thread (the tray's) may do with the running appliance. Part of the composition root."""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from appliance.errors import ApplianceError
from appliance.gate.gate import Gate
from appliance.keys import Keyring
from appliance.serving.catalog import Catalog
from appliance.serving.drain import Drain
from appliance.tray.actions import ControlError

T = TypeVar("T")

_SHORT_S = 5.0  # for what takes the server's loop no time
_SLACK_S = 10.0  # beyond what a load or an unload may take by itself


class LoopControls:
    """Does all of it in the server's loop. ``restart(reason)``: of all engines; ``load_s``: the longest that the
    catalog lets one wait; ``changed`` is called when something was done that no event tells of."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        catalog: Catalog,
        gate: Gate,
        restart: Callable[[str], None],
        drain: Drain,
        load_s: float,
        changed: Callable[[], None],
        keys: Keyring,
    ) -> None:
        self._loop = loop
        self._catalog = catalog
        self._gate = gate
        self._restart = restart
        self._drain = drain
        self._load_s = load_s + _SLACK_S
        self._changed = changed
        self._keys = keys

    def dashboard(self) -> str:
        """What stands behind the address of the dashboard: nothing, or the code that opens it."""
        return f"/#code={self._keys.invite(time.monotonic())}" if self._keys.required else "/"

    def pause(self) -> None:
        """Requests wait from now on, within their deadlines; also twice."""
        self._now(self._gate.pause)

    def resume(self) -> None:
        """Requests go on."""
        self._now(self._gate.resume)

    def load(self, model: str) -> None:
        """What lies in the folder now; returns when it is warm."""
        self._wait(self._catalog.load(model), self._load_s)

    def unload(self, model: str) -> None:
        """All versions; running requests end first."""
        self._wait(self._catalog.unload(model), self._load_s)

    def pin(self, model: str, pinned: bool) -> None:
        """A pinned model makes room for no other one."""
        self._wait(self._catalog.pin(model, pinned), _SHORT_S)

    def restart_engine(self) -> None:
        """Requests are kept, and answered by the next engines."""
        self._now(lambda: self._restart("asked for in the tray"))

    def drain(self, within_s: float) -> bool:
        """Take nothing new, answer what is there, then end. False where that is under way already."""

        def begin() -> bool:
            if self._gate.draining:
                return False
            self._drain.begin(within_s)
            return True

        try:
            return self._now(begin)
        except ControlError:
            return False  # the loop has ended, or is stuck: nothing will be answered any more

    def _now(self, what: Callable[[], T]) -> T:
        async def call() -> T:
            return what()

        found = self._wait(call(), _SHORT_S)
        self._changed()
        return found

    def _wait(self, work: Coroutine[Any, Any, T], within_s: float) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise ControlError("the appliance has ended") from None
        try:
            return future.result(within_s)
        except ApplianceError as error:
            raise ControlError(error.message) from None
        except TimeoutError:
            future.cancel()
            raise ControlError(f"the appliance did not do it within {within_s:g} s") from None
        except concurrent.futures.CancelledError:
            raise ControlError("the appliance has ended") from None
