"""Whether the host runs short of memory, or of disk where the state is kept."""

import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

_MEMORY_SHARE = 0.05
_DISK_BYTES = 100 << 20
_RELIEF = 1.25  # so much more must be free before it counts as over


def _memory() -> tuple[int, int]:
    found = psutil.virtual_memory()
    return found.available, found.total


class Pressure:
    """``look`` tells in words what is short now. ``memory``: (available, total) in bytes; ``disk``: free bytes of the
    disk that holds a folder."""

    def __init__(
        self,
        folder: Path,
        memory: Callable[[], tuple[int, int]] = _memory,
        disk: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        self._folder = folder
        self._memory = memory
        self._disk = disk
        self._low_memory = self._low_disk = False

    def look(self) -> list[str]:
        """No figures that change with every look."""
        words = []
        available, total = self._memory()
        self._low_memory = available < total * _MEMORY_SHARE * (_RELIEF if self._low_memory else 1)
        if self._low_memory:
            words.append(f"this machine is short of memory: hardly any of its {total / 1e9:.1f} GB is free")
        free = self._free()
        self._low_disk = free is not None and free < _DISK_BYTES * (_RELIEF if self._low_disk else 1)
        if self._low_disk:
            words.append("the disk that holds the state folder is full")
        return words

    def _free(self) -> int | None:
        try:
            # The folder may not exist yet, or not any more.
            return self._disk(next((p for p in (self._folder, *self._folder.parents) if p.exists()), self._folder))
        except OSError:
            return None
