"""Logging: JSON lines in the state folder, readable lines on a console that is there."""

import contextlib
import io
import logging
import logging.handlers
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

_BYTES = 5 << 20
_KEPT = 3
_AGAIN_S = 10.0

_SHARED: list[Any] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


class LogFile(logging.handlers.RotatingFileHandler):
    """A log file that may fail: nothing is raised or printed then, lines are lost, and after ten seconds it is
    tried again. ``fault``: why it cannot be written now, or None."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(file, maxBytes=_BYTES, backupCount=_KEPT, encoding="utf-8", delay=True)
        self._clock = clock
        self._again = self._turn_again = 0.0
        self._lost = 0
        self.fault: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write it, or count it as lost."""
        if self.fault is None or (self._clock() >= self._again and self._mended()):
            super().emit(record)  # it hands whatever goes wrong to `handleError`
        if self.fault is not None:
            self._lost += 1

    def probe(self) -> str | None:
        """The fault now. A file that is not open is opened; after ten seconds of a fault it is tried again."""
        self.acquire()
        try:
            if self.fault is not None and self._clock() >= self._again:
                self._mended()
            elif self.fault is None and self.stream is None:
                try:
                    self.stream = self._open()
                except OSError:
                    self.handleError(_record(""))
        finally:
            self.release()
        return self.fault

    def _mended(self) -> bool:
        """Try with a line that says what was missed."""
        why, self.fault = self.fault, None
        super().emit(_record(f"the log could not be written ({why}), lines lost: {self._lost}"))
        if self.fault is None:
            self._lost = 0
        return self.fault is None

    def shouldRollover(self, record: logging.LogRecord) -> bool:
        return self._clock() >= self._turn_again and bool(super().shouldRollover(record))

    def doRollover(self) -> None:
        """A file that cannot be moved (another program has it open) goes on growing for a while."""
        try:
            super().doRollover()
        except OSError:
            self._turn_again = self._clock() + _AGAIN_S
            if self.stream is None:
                self.stream = self._open()

    def _open(self) -> io.TextIOWrapper:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self.fault, self._again = error.strerror or type(error).__name__, self._clock() + _AGAIN_S
        stream, self.stream = self.stream, None  # opened again by the next line that is tried
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()  # what it still holds cannot be written either


def _record(words: str) -> logging.LogRecord:
    return logging.LogRecord("logs", logging.WARNING, "", 0, words, None, None)


class _Console(logging.StreamHandler[Any]):
    """A console, pipe or file that is gone is no reason for more words about it."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def file_fault() -> str | None:
    """Why the log file cannot be written now, in words, or None."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogFile) and (why := handler.probe()):
            return _words(why)
    return None


def _words(why: str) -> str:
    return f"the log folder cannot be written: {why}"


def set_up(level: str, file: Path | None, console: bool) -> str | None:
    """Set up logging once per process. ``file`` rotates at 5 MB, three old ones are kept.

    Returns why the file cannot be written, or None; the console goes on then, and the file is tried again.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    fault = _add_file(root, file) if file is not None else None
    if console and sys.stderr is not None:
        colours = bool(getattr(sys.stderr, "isatty", lambda: False)())
        stream = _Console(sys.stderr)
        stream.setFormatter(_formatter(structlog.dev.ConsoleRenderer(colors=colours)))
        root.addHandler(stream)
    # Their own words at info level are about each connection or file event.
    for noisy in ("watchfiles", "httpx", "uvicorn.access", "uvicorn.error", "PIL"):
        logging.getLogger(noisy).setLevel("WARNING")
    set_level(level)
    return fault


def set_level(level: str) -> None:
    """The least level that is logged, from now on."""
    logging.getLogger().setLevel(level.upper())
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def set_up_child(level: str) -> None:
    """The engine process writes JSON lines to its standard error, which the host has opened as a file."""
    if sys.stderr is not None:
        stream = _Console(sys.stderr)
        stream.setFormatter(_formatter(structlog.processors.JSONRenderer()))
        logging.getLogger().handlers = [stream]
    set_level(level)


def rotate(file: Path) -> None:
    """Move a file that has grown over 5 MB aside, keeping one old one. A file that cannot be moved stays."""
    try:
        if file.stat().st_size > _BYTES:
            file.replace(file.with_name(file.name + ".1"))
    except OSError:
        return


def _formatter(renderer: Any) -> structlog.stdlib.ProcessorFormatter:
    return structlog.stdlib.ProcessorFormatter(
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        foreign_pre_chain=_SHARED,
    )


def _add_file(root: logging.Logger, file: Path) -> str | None:
    handler = LogFile(file)
    handler.setFormatter(_formatter(structlog.processors.JSONRenderer()))
    root.addHandler(handler)
    why = handler.probe()
    return _words(why) if why else None
