"""The processor cores that a process may use."""

import contextlib
import os
from collections.abc import Iterable

import psutil


def own_cores() -> list[int]:
    """The numbers of those that this process may use; all of the machine's where the system does not tell."""
    with contextlib.suppress(psutil.Error, AttributeError, OSError):  # macOS has no such question
        return list(psutil.Process().cpu_affinity())
    return list(range(os.cpu_count() or 1))


def keep_to_cores(cores: Iterable[int]) -> None:
    """From now on this process uses these cores only (none named: as before). Where the system cannot do that, the
    number of threads alone keeps engines apart."""
    wanted = list(cores)
    if wanted:
        with contextlib.suppress(psutil.Error, AttributeError, OSError, ValueError):
            psutil.Process().cpu_affinity(wanted)
