"""Who reads the engine's frames. (Child side.)

A short run is done by the thread that has read it: handing it to a lane costs two thread switches, which is more than
the run. Nobody reads meanwhile, so that is for runs expected to end at once; when one does not, another thread takes
the reading over, and heartbeats and cancellations are heard again.
"""

import threading
import time
from collections.abc import Callable

from appliance.engine.channel import FrameReader

Act = Callable[[bytes, memoryview], Callable[[], None] | bool]
_PATIENCE_S = 0.25


class ReadingLoop:
    """Gives each frame to ``act``, which returns whether to go on, or the work that the reading thread is to do
    itself before it goes on."""

    def __init__(self, reader: FrameReader, act: Act, patience_s: float = _PATIENCE_S) -> None:
        self._reader = reader
        self._act = act
        self._patience_s = patience_s
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._turn = 0  # counts the threads that have read
        self._since: float | None = None  # the reading thread has been at work since then
        self._watched = False

    def serve(self) -> None:
        """Returns at the end of the stream, or when ``act`` said stop. Raises what the first thread met."""
        if not self._read(0):
            self._over.wait()

    def _read(self, turn: int) -> bool:
        """False if this thread was relieved."""
        try:
            while True:
                try:
                    got = self._reader.read()
                except OSError:
                    return True
                if got is None:
                    return True
                told = self._act(*got)
                if told is False:
                    return True
                if told is True:
                    continue
                if not self._work(told, turn):
                    return False
        finally:
            if self._turn == turn:
                self._over.set()

    def _work(self, work: Callable[[], None], turn: int) -> bool:
        """False if this thread was relieved meanwhile."""
        if not self._watched:
            self._watched = True
            threading.Thread(target=self._watch, name="relief", daemon=True).start()
        self._since = time.monotonic()
        work()
        with self._lock:
            if self._turn != turn:
                return False
            self._since = None
            return True

    def _watch(self) -> None:
        while not self._over.wait(self._patience_s):
            with self._lock:
                if self._since is not None and time.monotonic() - self._since > self._patience_s:
                    self._since = None
                    self._turn += 1
                    threading.Thread(target=self._read, args=(self._turn,), name="reader", daemon=True).start()
