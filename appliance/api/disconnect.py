"""A caller that goes away is noticed, so that its request leaves the queue before it costs anything."""

import asyncio

from appliance.api.body import Receive
from appliance.errors import Cancelled

_AFTER_S = 0.05


class Disconnect:
    """Cancels the current task when its caller closes the connection. Use as a context manager.

    Only requests that last longer than 50 ms are watched: listening costs a task, and a short run is over before a
    cancel would reach it. Raises Cancelled in place of the cancellation it caused.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gone = False

    def __enter__(self) -> "Disconnect":
        self._timer = asyncio.get_running_loop().call_later(_AFTER_S, self._begin)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._gone and self._task is not None:
            self._task.uncancel()
            if kind is asyncio.CancelledError:
                raise Cancelled("the caller went away") from None

    def _begin(self) -> None:
        self._watcher = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._task is not None:
            self._gone = True
            self._task.cancel()
