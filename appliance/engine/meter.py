"""The peak of a device's memory over a piece of work. (Child side.)"""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_EVERY_S = 0.002


def peak_over(work: Callable[[], T], used: Callable[[], int]) -> tuple[T, int]:
    """``work()`` and the highest ``used()`` (bytes) seen before, during (every 2 ms) and after it.

    Sampling can miss a peak that is shorter than the gap. Allocators that keep what they took (arenas) show it
    afterwards all the same.
    """
    highest = used()
    over = threading.Event()

    def sample() -> None:
        nonlocal highest
        while not over.wait(_EVERY_S):
            highest = max(highest, used())

    sampler = threading.Thread(target=sample, name="meter", daemon=True)
    sampler.start()
    try:
        result = work()
    finally:
        over.set()
        sampler.join()
    return result, max(highest, used())
