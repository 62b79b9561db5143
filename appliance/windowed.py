"""A program without a console (``appliance.exe``): no stream to print to, and no dialog either.

A command's words are collected instead; if it fails, they stand in the log with its exit code.
"""

import contextlib
import io
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from appliance.system import paths

_MOST = 8_000  # characters of a command's words that are kept
_NO_BOXES = dict.fromkeys(range(0x2500, 0x2580))  # the lines around tables


class Told(io.StringIO):
    """Stands in for the streams of a windowed program; keeps the last of what was told."""

    def write(self, text: str) -> int:
        if self.tell() > _MOST:
            kept = self.getvalue()[-_MOST // 2 :]
            self.seek(0)
            self.truncate()
            super().write(kept)
        return super().write(text)


def streamless() -> bool:
    """Whether this program has no place to print to."""
    return sys.stdout is None or sys.stderr is None or isinstance(sys.stdout, Told)


def as_it_is() -> None:
    """For a command that may run long or looks at the streams itself: no stand-ins, whatever is missing is None."""
    for name in ("stdin", "stdout", "stderr"):
        if isinstance(getattr(sys, name), Told):
            setattr(sys, name, None)


def run(app: Callable[..., Any], arguments: list[str]) -> int:
    """Run a command line; its exit code. Nothing is raised but the end of the process."""
    from typer import Abort

    with _stand_ins() as told:
        try:
            result = app(arguments, prog_name="appliance", standalone_mode=False)
            code = result if isinstance(result, int) else 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Abort:
            code = 1
            told.write("there is nobody to ask")
        except Exception as error:  # noqa: BLE001 - the bootloader would show whatever comes here in a dialog
            code = getattr(error, "exit_code", 1)
            words = getattr(error, "format_message", None)
            if words is None:
                _log(arguments, code, "internal fault", error)
                return 1
            told.write(str(words()))
    if code:
        _log(arguments, code, " ".join(told.getvalue().translate(_NO_BOXES).split()))
    return code


@contextlib.contextmanager
def _stand_ins() -> Iterator[Told]:
    """One text for what was missing of the two outputs; an input that is at its end."""
    told, before = Told(), (sys.stdin, sys.stdout, sys.stderr)
    sys.stdin = sys.stdin if sys.stdin is not None else Told()
    sys.stdout = sys.stdout if sys.stdout is not None else told
    sys.stderr = sys.stderr if sys.stderr is not None else told
    try:
        yield told
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _log(arguments: list[str], code: int, told: str, error: Exception | None = None) -> None:
    import structlog

    from appliance import logs

    if not any(isinstance(handler, logs.LogFile) for handler in logging.getLogger().handlers):
        logs.set_up("info", _state() / "logs" / "appliance.log", console=False)
    structlog.get_logger("appliance").warning(
        "the command did not succeed", arguments=arguments, code=code, told=told, exc_info=error
    )


def _state() -> Path:
    from appliance.settings import SettingsError, load

    try:
        return load().state_folder()
    except SettingsError:
        return paths.default_state()
