"""Paths of over 260 characters, and where a path really leads.

Windows takes long paths in their plain spelling only where an administrator has allowed it; in the extended spelling
(``\\\\?\\C:\\…``) always.
"""

import os
import stat
import sys
from pathlib import Path

_ROOMY = 120  # a folder of so many characters leaves half of the classic 260 for what lies in it
_EXTENDED, _EXTENDED_UNC = "\\\\?\\", "\\\\?\\UNC\\"
_MORE_DATA = 234  # winerror.h


def extended(path: Path, windows: bool = sys.platform == "win32") -> Path:
    """The same absolute folder in the spelling that lets Windows take paths below it of any length.

    Only where it is needed: a short folder, and any on other systems, stays as it is.
    """
    text = str(path)
    if not windows or len(text) <= _ROOMY or text.startswith(_EXTENDED):
        return path
    return Path(_EXTENDED_UNC + text[2:] if text.startswith("\\\\") else _EXTENDED + text)


def shown(path: Path | str) -> str:
    """A path as a person writes it, and as the file manager takes it: without what `extended` put before it."""
    text = str(path)
    if text.startswith(_EXTENDED_UNC):
        return "\\\\" + text.removeprefix(_EXTENDED_UNC)
    return text.removeprefix(_EXTENDED)


def real_path(path: Path | str, *, strict: bool = False) -> str:
    """``os.path.realpath``, also where the system has no room for an answer of over 260 characters (Wine).

    The path itself is the answer then, if no folder on it is a link; else the OSError.
    """
    try:
        return os.path.realpath(path, strict=strict)
    except OSError as error:
        full = Path(os.path.abspath(path))  # noqa: PTH100 - takes .. out, as realpath does
        if getattr(error, "winerror", None) != _MORE_DATA or any(map(_leads_elsewhere, (full, *full.parents))):
            raise
        return str(full)


def _leads_elsewhere(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISLNK(found.st_mode) or bool(
        getattr(found, "st_file_attributes", 0) & stat.FILE_ATTRIBUTE_REPARSE_POINT
    )
