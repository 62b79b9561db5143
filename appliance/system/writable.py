"""Whether a folder can be written, found out by doing it."""

import contextlib
import os
from pathlib import Path


def write_fault(folder: Path) -> str | None:
    """Why a file cannot be written there, or None. What had to be made for it is removed again."""
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    probe = folder / f".tried-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"tried")
        return None if probe.read_bytes() == b"tried" else "what is read is not what was written"
    except OSError as error:
        return error.strerror or type(error).__name__
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
            for parent in made:
                parent.rmdir()
