"""What the program keeps outside its own folder, for the one who wants nothing of it left."""

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from appliance.system import paths


def own_folders() -> list[Path]:
    """State, settings and the default models folder of this user. Folders that a setting names are not among them:
    they are somebody's choice, and may hold other things."""
    return [paths.default_state(), paths.settings_files()[0].parent, paths.default_models()]


def purge(folders: list[Path]) -> list[Path]:
    """Delete them with all that is in them, and what then stays empty around the models; those that could not be.

    A link is deleted, never what it leads to.
    """
    for folder in folders:
        _delete(folder)
    with contextlib.suppress(OSError):  # something of somebody else is in it, or it is gone with the state
        paths.default_models().parent.rmdir()
    return [folder for folder in folders if os.path.lexists(folder)]


def _delete(folder: Path) -> None:
    place = _long(folder)
    if _is_link(place):
        with contextlib.suppress(OSError):
            (Path.rmdir if sys.platform == "win32" else Path.unlink)(place)
        return
    shutil.rmtree(place, onerror=_again)


def _is_link(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISLNK(found.st_mode) or bool(getattr(found, "st_reparse_tag", 0))


def _long(path: Path) -> Path:
    """In the form in which Windows takes paths of any length."""
    if sys.platform != "win32" or str(path).startswith("\\\\"):
        return path
    return Path(f"\\\\?\\{path.absolute()}")


def _again(work: Callable[..., object], path: str, _why: object) -> None:
    """Windows does not delete files that are marked read-only."""
    with contextlib.suppress(OSError):
        Path(path).chmod(stat.S_IWRITE)
        work(path)
