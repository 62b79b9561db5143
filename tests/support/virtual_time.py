"""An event loop whose clock jumps to the next timer instead of waiting, for tests of deadlines."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START = 1000.0
"""The loop's time when it begins."""


class _Jumping(selectors.DefaultSelector):
    """Looks for real input first; where there is none the clock is moved on."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout is None:
            raise AssertionError("nothing is left that could ever happen: a wait without a bound")
        if not found and timeout and timeout > 0:
            self.loop.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time()`` starts at ``START``. Not for code that waits for threads or processes."""

    def __init__(self) -> None:
        selector = _Jumping()
        selector.loop = self
        self.now = START
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
