"""A zip that somebody sent → a model's folder. Nothing in it is believed: not names, not sizes, not kinds."""

import re
import stat
import zipfile
from pathlib import Path, PurePosixPath

from appliance.errors import InputTooLarge, InvalidInput
from appliance.models.listing import MAX_DEPTH, MAX_FILES, ignored

MAGIC = b"PK\x03\x04"

_KINDS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_PIECE = 1 << 20
# What no file may be called on some system; a name that ends with a dot or a space is another one on Windows.
_BAD = re.compile(r'[<>:"|?*\\\x00-\x1f]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\..*)?$', re.IGNORECASE)


def unpack(source: Path, target: Path, limit: int) -> None:
    """Write the files of a zip into the new folder ``target``, at most ``limit`` bytes of them.

    A folder that holds everything is left out, unless it is a version. Hidden files are too. Raises InvalidInput for
    what is no good zip and for names that lead elsewhere, InputTooLarge, OSError of the disk.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            chosen = _chosen(archive)
            target.mkdir()
            left = limit
            for path, entry in chosen.items():
                left = _write(archive, entry, target / path, left, limit)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise _bad(f"cannot be read: {error}") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise _bad("holds a file and a folder of the same name") from None


def _bad(words: str) -> InvalidInput:
    return InvalidInput(f"the zip {words}", param="body")


def _chosen(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Path below the model's folder → entry."""
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(entries) > MAX_FILES:
        raise _bad(f"holds {len(entries)} files, the limit is {MAX_FILES}")
    found = {_path(entry): entry for entry in entries if not _unwanted(entry)}
    if not found:
        raise _bad("holds no file")
    if len({path.as_posix().lower() for path in found}) < sum(not _unwanted(entry) for entry in entries):
        raise _bad("holds two files of the same name")
    tops = {path.parts[0] for path in found}
    top = next(iter(tops))
    whole = len(tops) == 1 and all(len(path.parts) > 1 for path in found)
    strip = whole and not top.isdigit() and "." not in top
    return {PurePosixPath(*path.parts[strip:]).as_posix(): entry for path, entry in found.items()}


def _unwanted(entry: zipfile.ZipInfo) -> bool:
    """What desktops put in beside the files. A name that is no good name is told of instead."""
    parts = entry.filename.split("/")
    return not any(_BAD.search(part) for part in parts) and any(ignored(p) or p == "__MACOSX" for p in parts)


def _path(entry: zipfile.ZipInfo) -> PurePosixPath:
    name = entry.filename
    parts = name.split("/")
    if any(part in ("", ".", "..") or _BAD.search(part) for part in parts):
        raise _bad(f"holds a name that cannot be used: '{name[:128]}'")
    if len(parts) > MAX_DEPTH:
        raise _bad(f"holds folders that are more than {MAX_DEPTH} deep")
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise _bad(f"holds a link or a device: '{name[:128]}'")
    if entry.flag_bits & 1:
        raise _bad("is encrypted")
    if entry.compress_type not in _KINDS:
        raise _bad("is compressed in a way that is not taken; deflate and stored are")
    return PurePosixPath(*parts)


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, to: Path, left: int, limit: int) -> int:
    """The bytes that the rest may still have. What counts is what comes out, not what the entry says."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as packed, to.open("xb") as file:
        while piece := packed.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise InputTooLarge(f"the zip unpacks to more than the limit of {limit} bytes", param="body")
            file.write(piece)
    return left
