"""When an engine counts as hung. Pure: the time, and what the process has done, are arguments. (Host side.)"""


class Pulse:
    """A heartbeat must be answered within ``heartbeat_s``. While a model is loaded native code may hold it up: then
    a process that uses the processor is alive, for ``load_s`` at most. Times in seconds of one clock."""

    def __init__(self, heartbeat_s: float, load_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._load_s = load_s
        self._used_s: float | None = None
        self._moved = 0.0

    def wait_s(self, now: float, last_pong: float, most: float) -> float:
        """How long to wait before the next look: not past the moment at which the heartbeat is overdue."""
        return min(most, max(0.1, last_pong + self._heartbeat_s - now))

    def fault(self, now: float, last_pong: float, loading: bool, used_s: float | None) -> str | None:
        """Why it is hung, or None. ``used_s``: processor time of the process so far, None where that is not known."""
        if used_s is None or used_s != self._used_s:
            self._used_s, self._moved = used_s, now
        silent = now - last_pong
        if silent < self._heartbeat_s:
            return None
        if not loading:
            return f"no heartbeat for {self._heartbeat_s:g} s"
        if silent >= self._load_s:
            return f"no heartbeat for {self._load_s:g} s while a model was loaded"
        if now - self._moved >= self._heartbeat_s:
            return f"no heartbeat for {self._heartbeat_s:g} s, and nothing is done while a model is loaded"
        return None
