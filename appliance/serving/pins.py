"""Which models are pinned, kept over a restart in one small file."""

import contextlib
from pathlib import Path

import msgspec
import structlog

log = structlog.get_logger("models")


class Pins:
    """Names of models. A file that cannot be read counts as empty; one that cannot be written is told in the log,
    and the pin holds until the end of the program."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._names: set[str] | None = None  # read when it is first asked for

    def __contains__(self, name: str) -> bool:
        return name in self._known()

    def keep(self, name: str, pinned: bool) -> None:
        """Writes the file; may take a moment."""
        names = self._known()
        if pinned:
            names.add(name)
        else:
            names.discard(name)
        fresh = self._file.with_suffix(".tmp")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.json.encode(sorted(names)))
            fresh.replace(self._file)
        except OSError as error:
            log.warning("pins cannot be kept", reason=error.strerror)

    def _known(self) -> set[str]:
        if self._names is None:
            self._names = set()
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                self._names = msgspec.json.decode(self._file.read_bytes(), type=set[str])
        return self._names
