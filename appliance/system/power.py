"""Whether the machine has slept: one clock that goes on while it sleeps, beside one that stands still."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

Clocks = Callable[[], tuple[float, float]]
"""(seconds with those asleep, seconds without)."""

_LEAST_S = 2.0  # less is a step of a clock, not a sleep
_EVERY_S = 2.0

if sys.platform == "win32":
    import ctypes

    def clocks() -> tuple[float, float]:
        """GetTickCount64 counts sleep and hibernation, the unbiased interrupt time does not."""
        kernel = ctypes.WinDLL("kernel32")
        kernel.GetTickCount64.restype = ctypes.c_ulonglong
        awake = ctypes.c_ulonglong()
        kernel.QueryUnbiasedInterruptTime(ctypes.byref(awake))
        return kernel.GetTickCount64() / 1e3, awake.value / 1e7

elif sys.platform == "linux":

    def clocks() -> tuple[float, float]:
        """Both are set by nobody, and slewed alike."""
        return time.clock_gettime(time.CLOCK_BOOTTIME), time.clock_gettime(time.CLOCK_MONOTONIC)

else:

    def clocks() -> tuple[float, float]:
        """The wall clock may also be set by a person; that then looks like a sleep, and costs one check."""
        return time.time(), time.monotonic()


class Sleeps:
    """Tells sleeps apart from slow drift: each look compares with the look before."""

    def __init__(self, read: Clocks | None = None) -> None:
        self._read = read or clocks
        self._all, self._awake = self._read()

    def slept(self) -> float:
        """Seconds that the machine slept since the last look, 0 if it did not."""
        before = self._all, self._awake
        self._all, self._awake = self._read()
        gap = (self._all - before[0]) - (self._awake - before[1])
        return gap if gap >= _LEAST_S else 0.0


async def watch(resumed: Callable[[float], Awaitable[None]], read: Clocks | None = None) -> None:
    """Await ``resumed(seconds slept)`` after each sleep, for ever; it is noticed within two seconds."""
    sleeps = Sleeps(read)
    while True:
        await asyncio.sleep(_EVERY_S)
        if seconds := sleeps.slept():
            await resumed(seconds)
