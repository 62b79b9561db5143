"""What warm-ups measured and proved, and what runs taught since, kept on disk: a restart need not find it out again.

Small JSON files, two a model version, under ``profiles/`` in the state folder. They count only for the same files,
the same ``bounds`` (device policy, largest batch) and the same runtime versions. What cannot be read is not there.
"""

import contextlib
import hashlib
import os
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
import structlog

from appliance.engine.messages import Known
from appliance.gate.costs import Learned

log = structlog.get_logger("profiles")

_VERSION = 3
_KEPT = 512
_MOST_BYTES = 8 << 20

T = TypeVar("T")


class Of(NamedTuple):
    """Whose profile. ``runtimes``: package → version."""

    model: str
    fingerprint: str
    bounds: str
    runtimes: dict[str, str]

    def name(self) -> str:
        """A file name that no other has."""
        key = msgspec.json.encode([self.model, self.fingerprint, self.bounds, sorted(self.runtimes.items())])
        return f"{hashlib.sha256(key).hexdigest()[:32]}.json"


class _Known(msgspec.Struct, frozen=True):
    version: int
    model: str
    known: Known


class _Learned(msgspec.Struct, frozen=True):
    version: int
    model: str
    learned: Learned


class Profiles:
    """All profiles. ``folder`` is made when it is needed; a disk that cannot be written is no fault."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lessons = folder / "learned"

    def find(self, of: Of) -> Known | None:
        """What an earlier warm-up found out, or None."""
        stored = _read(self._folder / of.name(), _Known)
        return stored.known if stored is not None and stored.version == _VERSION else None

    def keep(self, of: Of, known: Known) -> None:
        """Write a profile, whole or not at all; the oldest of very many are dropped."""
        _write(self._folder, of.name(), _Known(_VERSION, of.model, known))

    def learned(self, of: Of) -> Learned | None:
        """What runs taught, or None."""
        stored = _read(self._lessons / of.name(), _Learned)
        return stored.learned if stored is not None and stored.version == _VERSION else None

    def keep_learned(self, of: Of, learned: Learned) -> None:
        """As ``keep``."""
        _write(self._lessons, of.name(), _Learned(_VERSION, of.model, learned))


def _read(file: Path, kind: type[T]) -> T | None:
    """What stands in it; None for none, and, told in the log, for one that is damaged."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise msgspec.DecodeError(f"over {_MOST_BYTES >> 20} MiB")
        return msgspec.json.decode(data, type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        log.warning("a profile cannot be read and is not used", file=file.name, reason=str(error))
        return None


def _write(folder: Path, name: str, stored: msgspec.Struct) -> None:
    draft = folder / f"{name}.{os.getpid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(msgspec.json.encode(stored))
        draft.replace(folder / name)
        files = list(folder.glob("*.json"))
        if len(files) > _KEPT:
            for old in sorted(files, key=lambda f: f.stat().st_mtime)[: len(files) - _KEPT]:
                old.unlink(missing_ok=True)
