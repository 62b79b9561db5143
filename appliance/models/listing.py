"""Looking into folders that others write to: what is there, where links lead, and a print of its state.

Files may vanish between any two calls, links may lead anywhere, names may be half-finished copies.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from appliance.errors import ModelLoadError

ONNX = ".onnx"
BACKENDS = {ONNX: "onnx", ".pt2": "pytorch", ".pt": "pytorch", ".ts": "pytorch", ".jit": "pytorch"}
"""Ending of a model file → what runs it."""

MAX_TEXT_BYTES = 1 << 20
MAX_FILES = 10_000
MAX_DEPTH = 8

_UNFINISHED = (".tmp", ".part", ".partial", ".crdownload", ".download")
_JUNK = frozenset({"thumbs.db", "desktop.ini", "__pycache__"})


class Entry(msgspec.Struct, frozen=True):
    """One name in a folder. ``outside``: a link that leads out of the models folder, or nowhere; then the
    rest says nothing. A link within is what it leads to."""

    name: str
    path: str
    is_folder: bool = False
    is_file: bool = False
    size: int = 0
    mtime_ns: int = 0
    outside: bool = False


def ignored(name: str) -> bool:
    """Hidden, temporary and half-copied names."""
    lower = name.lower()
    return lower.startswith((".", "~")) or lower.endswith(_UNFINISHED) or lower in _JUNK


def is_onnx(name: str) -> bool:
    """Whether a file of this name is taken for an ONNX model."""
    return backend_of(name) == "onnx"


def backend_of(name: str) -> str | None:
    """What runs a file of this name, by its ending; None: it is not taken for a model."""
    return BACKENDS.get(Path(name).suffix.lower())


def stem_of(name: str) -> str:
    """The name of a model file without its ending."""
    return Path(name).stem


def is_lost_folder(entry: Entry) -> bool:
    """Whether this is a link that leads outside and was, by its name, meant as a model's folder."""
    return entry.outside and "." not in entry.name


def companions_of(listed: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Stem of each model file (``<stem>.onnx``) → the files that go with it: settings, labels, external data.

    A file goes with the longest stem that its name begins with, followed by a dot.
    """
    found: dict[str, list[Entry]] = {stem_of(e.name): [] for e in listed if backend_of(e.name)}
    for entry in listed:
        if entry.is_folder or backend_of(entry.name):
            continue
        stem = entry.name
        while "." in stem:
            stem = stem.rpartition(".")[0]
            if stem in found:
                found[stem].append(entry)
                break
    return found


def entries(folder: Path | str, root: str) -> list[Entry]:
    """What is in ``folder``, by name. ``root``: the models folder's real path. OSError if it cannot be read."""
    found = []
    with os.scandir(folder) as listed:
        for item in listed:
            if not ignored(item.name):
                try:
                    found.append(_entry(item, root))
                except FileNotFoundError:  # gone since the listing
                    continue
    return sorted(found, key=lambda entry: entry.name)


def _entry(item: os.DirEntry[str], root: str) -> Entry:
    found = item.stat(follow_symlinks=False)
    # A junction on Windows is no symbolic link, but a reparse point as well.
    reparse = getattr(found, "st_file_attributes", 0) & stat.FILE_ATTRIBUTE_REPARSE_POINT
    if reparse or stat.S_ISLNK(found.st_mode):
        try:
            if not Path(os.path.realpath(item.path, strict=True)).is_relative_to(root):
                return Entry(item.name, item.path, outside=True)
            found = os.stat(item.path)  # noqa: PTH116 - a Path for each of many thousand files is slow
        except OSError:  # leads nowhere, or in a circle
            return Entry(item.name, item.path, outside=True)
    return Entry(
        item.name,
        item.path,
        stat.S_ISDIR(found.st_mode),
        stat.S_ISREG(found.st_mode),
        found.st_size,
        found.st_mtime_ns,
    )


def tree(folder: str, root: str, listed: Iterable[Entry] | None = None) -> list[tuple[str, Entry]]:
    """Every file under ``folder`` with its relative name. ``listed``: its own entries, where known.

    ModelLoadError for more than 10,000 files or 8 levels; a link in a circle ends there too.
    """
    found: list[tuple[str, Entry]] = []
    waiting = [("", 0, entries(folder, root) if listed is None else listed)]
    while waiting:
        prefix, depth, level = waiting.pop()
        for entry in level:
            if entry.is_folder and not entry.outside:
                if depth == MAX_DEPTH:
                    raise ModelLoadError(f"folders are nested more than {MAX_DEPTH} deep")
                waiting.append((f"{prefix}{entry.name}/", depth + 1, entries(entry.path, root)))
            else:
                found.append((f"{prefix}{entry.name}", entry))
        if len(found) + len(waiting) > MAX_FILES:
            raise ModelLoadError(f"there are more than {MAX_FILES} files in it")
    return found


def fingerprint(files: Iterable[tuple[str, Entry]]) -> str:
    """Changes when a file is added, removed, renamed, resized or written to."""
    digest = hashlib.sha256()
    for name, entry in sorted(files, key=lambda pair: pair[0]):
        line = f"{name}\0{entry.size}\0{entry.mtime_ns}\0{entry.is_file}{entry.outside}\n"
        digest.update(line.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def read_text(entry: Entry) -> str:
    """The text of a small file. ModelLoadError, by the file's own name, if it is not one or cannot be read."""
    if entry.outside:
        raise ModelLoadError(f"{entry.name}: a link leads outside of the models folder")
    if not entry.is_file:
        raise ModelLoadError(f"{entry.name}: it is not a regular file")
    try:
        with Path(entry.path).open("rb") as file:
            raw = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise ModelLoadError(f"{entry.name}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_TEXT_BYTES:
        raise ModelLoadError(f"{entry.name}: it is larger than {MAX_TEXT_BYTES >> 20} MB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ModelLoadError(f"{entry.name} line {line}: it is not UTF-8 text") from None
