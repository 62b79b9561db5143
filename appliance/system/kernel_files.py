"""Reading the small files in which a kernel tells about the machine. Nothing here raises."""

import re
from pathlib import Path


def text(file: Path) -> str | None:
    """The file's text without the zero that ends texts of the device tree; None if it cannot be read."""
    try:
        return file.read_bytes().decode(errors="replace").replace("\0", " ").strip()
    except OSError:
        return None


def number(file: Path) -> int | None:
    """The whole number that is all of the file; None if it is none or cannot be read."""
    return whole(text(file))


def whole(words: str | None) -> int | None:
    """The whole number that is all of a text; None if it is none."""
    return int(words) if words is not None and re.fullmatch(r"-?\d+", words) else None
