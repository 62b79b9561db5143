"""The threads in which pipelines decode, prepare and finish: never in the server's loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from appliance.errors import Paused

T = TypeVar("T")


class WorkPool:
    """``await pool(work, *args)`` in the server's loop. Raises what ``work`` raises; Paused once it is closed.

    A thread cannot be ended: what is in one when the pool closes goes on, but nobody waits for it any more.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pipeline")
        self._jobs: set[asyncio.Future[Any]] = set()
        self._closed = False

    async def __call__(self, work: Callable[..., T], *args: Any) -> T:
        if self._closed:
            raise _paused()
        job: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        try:
            return await job
        except asyncio.CancelledError:
            if self._closed:
                raise _paused() from None
            raise

    async def drained(self) -> None:
        """Returns when no work is under way."""
        while self._jobs:
            await asyncio.wait(self._jobs)

    def close(self) -> None:
        """Whoever still waits is told to try later."""
        self._closed = True
        for job in list(self._jobs):
            job.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _paused() -> Paused:
    return Paused("the appliance is shutting down", retry_after_s=5)
