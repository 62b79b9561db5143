"""A line a request in ``requests.log``: what it was, how long it took, how it ended. Never what was in it.

Lines are gathered and written a few times a second by another thread: a disk that is slow holds up no request.
"""

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from appliance.errors import ApplianceError
from appliance.gate.gate import Observer
from appliance.gate.ticket import Ticket
from appliance.logs import LogFile

Mode = Literal["off", "errors", "all"]

_EVERY_S = 0.25
_MOST = 20_000  # lines that may wait for a disk that is too slow
_A_SECOND = 10  # lines of one code, where only errors are logged: a storm of refusals is told by its number


class Line(msgspec.Struct, omit_defaults=True):
    """Times in milliseconds. ``batch``: items of the run that answered it; ``more``: requests that ended alike within
    the last seconds and have no line; ``lost``: lines that came too fast for the disk."""

    timestamp: datetime.datetime
    id: str
    model: str
    code: str
    version: str | None = None
    queue_ms: float | None = None
    infer_ms: float | None = None
    batch: int | None = None
    device: str | None = None
    more: int = 0
    lost: int = 0


class _Storm:
    """How many of one code have ended in this second."""

    __slots__ = ("count", "second", "unsaid")

    def __init__(self) -> None:
        self.second = self.count = self.unsaid = 0


class RequestLog:
    """``requests`` are the gate's."""

    def __init__(
        self,
        file: Path,
        requests: Mapping[str, Ticket],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mode: Mode = "errors"
        self._file = LogFile(file)
        self._requests = requests
        self._clock = clock
        self._storms: dict[str, _Storm] = {}
        self._lines: list[bytes] = []
        self._lost = 0
        self._due = False
        self._encode = msgspec.json.Encoder().encode

    def around(self, observer: Observer) -> Observer:
        """What the gate is to tell of its ends. Only where all are logged does it cost requests that succeed."""
        return _All(observer, self) if self.mode == "all" else observer

    def failed(self, ticket: Ticket) -> None:
        """A request that the gate had taken has ended with an error."""
        if self.mode == "errors":
            self.ended(ticket, None)

    def ended(self, ticket: Ticket, rows: int | None) -> None:
        """A request that the gate had taken has ended. ``rows``: items of its run, where it ran to its end."""
        error = ticket.error
        code = "ok" if error is None else error.code
        more = self._unsaid(code)
        if more is None:
            return
        started = ticket.started
        run_s = ticket.run_ns / 1e9 or (ticket.finished - started if started else 0.0)
        self._put(
            Line(
                _now(),
                ticket.id,
                ticket.model,
                code,
                ticket.version,
                round(((started or ticket.finished) - ticket.created) * 1000, 3),
                round(run_s * 1000, 3) if started else None,
                rows,
                ticket.device or None,
                more,
            )
        )

    def refused(self, request_id: str, model: str, error: ApplianceError) -> None:
        """An inference request has ended with an error: at the door, or as its ticket has told. ``model``: "" if it
        never said which."""
        if self.mode == "off":
            return
        ticket = self._requests.get(request_id)
        if ticket is not None and ticket.error is not None and ticket.error.code == error.code:
            return
        more = self._unsaid(error.code)
        if more is not None:
            self._put(Line(_now(), request_id, model[:128], error.code, more=more))

    def close(self) -> None:
        """Write what is left."""
        self._write(self._taken())
        self._file.close()

    def _unsaid(self, code: str) -> int | None:
        """How many of this code had no line since the last one that had; None if this one has none either."""
        if self.mode == "all":
            return 0
        storm, second = self._storms.setdefault(code, _Storm()), int(self._clock())
        if storm.second != second:
            storm.second, storm.count = second, 0
        storm.count += 1
        if storm.count > _A_SECOND:
            storm.unsaid += 1
            return None
        more, storm.unsaid = storm.unsaid, 0
        return more

    def _put(self, line: Line) -> None:
        if len(self._lines) >= _MOST:
            self._lost += 1
            return
        line.lost, self._lost = self._lost, 0
        self._lines.append(self._encode(line))
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(_EVERY_S, self._flush)

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self._write, self._taken()).add_done_callback(self._flushed)

    def _flushed(self, _: "asyncio.Future[None]") -> None:
        """One at a time, so that lines stay in order."""
        self._due = bool(self._lines)
        if self._due:
            asyncio.get_running_loop().call_later(_EVERY_S, self._flush)

    def _taken(self) -> list[bytes]:
        lines, self._lines = self._lines, []
        return lines

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            words = b"\n".join(lines).decode()
            self._file.handle(logging.LogRecord("requests", logging.INFO, "", 0, words, None, None))


class _All:
    """The observer's place where every request has a line."""

    def __init__(self, observer: Observer, log: RequestLog) -> None:
        self._observer = observer
        self._log = log
        self._rows: int | None = None

    def request_ended(self, ticket: Ticket) -> None:
        self._observer.request_ended(ticket)
        self._log.ended(ticket, self._rows if ticket.run_ns else None)

    def batch_ended(self, model: str, version: str, rows: int, run_ns: int) -> None:
        self._observer.batch_ended(model, version, rows, run_ns)
        self._rows = rows  # the gate tells of a run, and then of each of its requests


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
