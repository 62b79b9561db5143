"""What ordinary runs teach about memory is kept on disk, a little later and in another thread.

Lives in the server's loop.
"""

import asyncio
import threading

from appliance.gate.costs import Learned
from appliance.gate.memory import Key, MemoryPlan
from appliance.serving.profiles import Of, Profiles

_SOON_S = 2.0  # many events together are one file

_Kept = list[tuple[Of, Learned]]


class Lessons:
    """Writes for the versions it was told of; ``memory`` tells when there is something new."""

    def __init__(self, memory: MemoryPlan, profiles: Profiles) -> None:
        self._memory = memory
        self._profiles = profiles
        self._of: dict[Key, Of] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._writing = threading.Lock()  # the end of the program may come while a write is under way
        memory.on_learned = self._soon

    def serves(self, key: Key, of: Of) -> None:
        """From now on what this version teaches belongs to these files."""
        self._of[key] = of

    def flush(self) -> None:
        """Write what is new, now; at the end of the program."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._write(self._news())

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SOON_S, self._start)

    def _start(self) -> None:
        self._timer = None
        if self._task is not None and not self._task.done():
            self._soon()  # a slow disk
        elif news := self._news():
            self._task = asyncio.create_task(asyncio.to_thread(self._write, news), name="lessons")

    def _news(self) -> _Kept:
        untold, self._memory.untold = self._memory.untold, set()
        found = [(self._of[key], self._memory.learned(key)) for key in untold if key in self._of]
        return [(of, learned) for of, learned in found if learned is not None]

    def _write(self, news: _Kept) -> None:
        with self._writing:
            for of, learned in news:
                self._profiles.keep_learned(of, learned)
