"""What warm-ups measured and proved, kept on disk, so that a restart need not do it again.

One small JSON file a model version under ``profiles/`` in the state folder. It counts only for the same files, the
same ``bounds`` (device policy, largest batch) and the same runtime versions. What cannot be read is not there.
"""

import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from appliance.engine.messages import Known

_VERSION = 1
_KEPT = 512


class _Stored(msgspec.Struct, frozen=True):
    version: int
    model: str
    known: Known


class Profiles:
    """All profiles. ``folder`` is made when it is needed; a disk that cannot be written is no fault."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, model: str, fingerprint: str, bounds: str, runtimes: dict[str, str]) -> Known | None:
        """What is known of this version, or None."""
        try:
            data = self._file(model, fingerprint, bounds, runtimes).read_bytes()
            stored = msgspec.json.decode(data, type=_Stored)
        except (OSError, msgspec.MsgspecError):
            return None
        return stored.known if stored.version == _VERSION else None

    def keep(self, model: str, fingerprint: str, bounds: str, runtimes: dict[str, str], known: Known) -> None:
        """Write a profile, whole or not at all; the oldest of very many are dropped."""
        file = self._file(model, fingerprint, bounds, runtimes)
        draft = file.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(msgspec.json.encode(_Stored(_VERSION, model, known)))
            draft.replace(file)
            self._trim()

    def _file(self, model: str, fingerprint: str, bounds: str, runtimes: dict[str, str]) -> Path:
        key = msgspec.json.encode([model, fingerprint, bounds, sorted(runtimes.items())])
        return self._folder / f"{hashlib.sha256(key).hexdigest()[:32]}.json"

    def _trim(self) -> None:
        files = list(self._folder.glob("*.json"))
        if len(files) > _KEPT:
            for old in sorted(files, key=lambda f: f.stat().st_mtime)[: len(files) - _KEPT]:
                old.unlink(missing_ok=True)
