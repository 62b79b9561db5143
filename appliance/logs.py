"""Logging: JSON lines in the state folder, readable lines on a console that is there."""

import logging
import logging.handlers
import sys
from pathlib import Path
from typing import Any

import structlog

_BYTES = 5 << 20
_KEPT = 3

_SHARED: list[Any] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def set_up(level: str, file: Path | None, console: bool) -> str | None:
    """Set up logging once per process. ``file`` rotates at 5 MB, three old ones are kept.

    Returns why the file cannot be written, or None; the console goes on then.
    """
    root = logging.getLogger()
    root.setLevel(level.upper())
    for handler in list(root.handlers):
        root.removeHandler(handler)
    fault = _add_file(root, file) if file is not None else None
    if console and sys.stderr is not None:
        colours = bool(getattr(sys.stderr, "isatty", lambda: False)())
        stream = logging.StreamHandler(sys.stderr)
        stream.setFormatter(_formatter(structlog.dev.ConsoleRenderer(colors=colours)))
        root.addHandler(stream)
    # Their own words at info level are about each connection or file event.
    for noisy in ("watchfiles", "httpx", "uvicorn.access", "uvicorn.error", "PIL"):
        logging.getLogger(noisy).setLevel("WARNING")
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    return fault


def set_up_child(level: str) -> None:
    """The engine process writes JSON lines to its standard error, which the host has opened as a file."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    if sys.stderr is not None:
        stream = logging.StreamHandler(sys.stderr)
        stream.setFormatter(_formatter(structlog.processors.JSONRenderer()))
        root.handlers = [stream]
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


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
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(file, maxBytes=_BYTES, backupCount=_KEPT, encoding="utf-8")
    except OSError as error:
        return f"the log folder cannot be written: {error.strerror}"
    handler.setFormatter(_formatter(structlog.processors.JSONRenderer()))
    root.addHandler(handler)
    return None
