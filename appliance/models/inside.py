"""What a model file names outside of itself: judged by its words first, then by where it really lies.

Nothing is opened here. A path is looked at (its links, its kind, its size), never read.
"""

import re
import stat
from pathlib import Path

from appliance.errors import ModelLoadError
from appliance.system.long_paths import real_path


def real_inside(path: Path, root: Path) -> Path | None:
    """Where ``path`` really lies, with every link followed; None when that is outside ``root``.

    Raises FileNotFoundError when there is nothing, OSError when a link leads in a circle.
    """
    real = Path(real_path(path, strict=True))
    return real if real.is_relative_to(real_path(root)) else None


def check_location(location: str, what: str) -> None:
    """Raises ModelLoadError unless ``location`` is a relative path that stays in its folder on every system.

    ``what`` begins the sentence: ``external data``.
    """
    told = f"{what} {_quoted(location)}"
    if not location or len(location) > 1024:
        raise ModelLoadError(f"{told}: the location is {'empty' if not location else 'too long'}")
    if re.search(r"[\x00-\x1f\x7f]", location):
        raise ModelLoadError(f"{told}: the location has control characters in it")
    if location.startswith(("\\\\", "//")):
        raise ModelLoadError(f"{told}: the location is on another machine (UNC path)")
    if re.match(r"[A-Za-z]:", location):
        raise ModelLoadError(f"{told}: the location names a drive")
    if location.startswith(("/", "\\")):
        raise ModelLoadError(f"{told}: the location is absolute; it must be relative to the model's folder")
    if "\\" in location:
        raise ModelLoadError(f"{told}: the location has a backslash in it; folders are divided by /")
    if re.search(r'[:*?"<>|]', location):
        # A colon is a stream on Windows, a star begins ONNX Runtime's name for an address in memory.
        raise ModelLoadError(f"{told}: the location has a character that no file name may have")
    if ".." in location.split("/"):
        raise ModelLoadError(f"{told}: the location leads upwards ('..')")


def check_external(folder: Path, root: Path, location: str, what: str) -> int:
    """The size of the regular file that ``location`` names in ``folder``. Raises ModelLoadError in words."""
    check_location(location, what)
    told = f"{what} {_quoted(location)}"
    try:
        real = real_inside(folder / location, root)
        if real is None:
            raise ModelLoadError(f"{told}: a link leads outside of the model's folder")
        found = real.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ModelLoadError(f"{told}: the file is missing") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not a path"
        raise ModelLoadError(f"{told}: the file cannot be looked at: {why}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ModelLoadError(f"{told}: it is not a regular file")
    return found.st_size


def _quoted(location: str) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in location[:120])
    return f"'{shown}{'…' if len(location) > 120 else ''}'"
