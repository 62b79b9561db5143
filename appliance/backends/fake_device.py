"""A device that is only numbers: it fills up and runs out like a real one, at the same points."""

import threading

from appliance.errors import InsufficientMemory


class FakeDevice:
    """``total`` bytes, shared by all fake models of an engine that name it. Thread-safe."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._used = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Raises InsufficientMemory when less than ``size`` bytes are free."""
        with self._lock:
            if self._used + size > self.total:
                free = self.total - self._used
                raise InsufficientMemory(f"the fake device is out of memory ({size} bytes asked for, {free} free)")
            self._used += size

    def give(self, size: int) -> None:
        with self._lock:
            self._used -= size

    def memory(self) -> tuple[int, int, int]:
        """(total, free, ours)."""
        with self._lock:
            return self.total, self.total - self._used, self._used
