"""What a runtime pack says of itself: the file ``manifest.json`` in the pack, and in its folder once installed."""

import re
from typing import Literal

import msgspec

from appliance.errors import PackError

FORMAT = 1
NAME = "manifest.json"
MOST_BYTES = 1 << 20
"""The largest manifest that is read."""

_MOST_FILES = 1000
_LARGEST = 32 << 30  # bytes of all files; the largest known pack has a tenth
_FOLDERS = ("bin", "licenses")
# names that Windows takes for devices, whatever stands behind the dot
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_PART = re.compile(r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*")

Platform = Literal["windows-x86_64", "linux-x86_64", "linux-aarch64"]


class PackFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``path`` in the pack and in its folder, with ``/``; ``size`` in bytes; ``sha256`` in hexadecimal."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``format``: of this file. ``name``-``version`` is the name of the folder. ``contents``: what it was made from,
    package → version."""

    format: int
    name: str
    version: str
    platform: Platform
    contents: dict[str, str]
    files: tuple[PackFile, ...]

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class _Head(msgspec.Struct):
    format: int


def decode(data: bytes) -> Manifest:
    """Read and check. Raises PackError in words for anything that must not be unpacked."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format != FORMAT:
            raise PackError(
                f"its manifest is of format {head.format}, this program knows {FORMAT}: "
                "install a newer version of the program, or a pack made for this one"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise PackError(f"its manifest is wrong: {error}") from None
    fault = _fault(manifest)
    if fault:
        raise PackError(f"its manifest is wrong: {fault}")
    return manifest


def encode(manifest: Manifest) -> bytes:
    """As it is written: the same manifest gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(manifest, order="deterministic"), indent=1) + b"\n"


def _fault(manifest: Manifest) -> str | None:
    if not re.fullmatch(r"[a-z][a-z0-9]{0,30}", manifest.name):
        return f"'{manifest.name[:40]}' cannot be a name"
    if not re.fullmatch(r"\d[\w.]{0,60}", manifest.version) or not _PART.fullmatch(manifest.version):
        return f"'{manifest.version[:40]}' cannot be a version"
    if not 0 < len(manifest.files) <= _MOST_FILES:
        return f"it names {len(manifest.files)} files, 1 to {_MOST_FILES} may be"
    if manifest.size > _LARGEST:
        return f"its files are over {_LARGEST >> 30} GiB"
    if len({file.path.lower() for file in manifest.files}) != len(manifest.files):
        return "a file is named twice"
    return next((fault for file in manifest.files if (fault := _file_fault(file))), None)


def _file_fault(file: PackFile) -> str | None:
    parts = file.path.split("/")
    plain = all(len(part) <= 100 and _PART.fullmatch(part) and not _DEVICES.fullmatch(part) for part in parts)
    if not plain or len(parts) != 2 or parts[0] not in _FOLDERS:
        return f"'{file.path[:80]}' is no place for a file of a pack"
    if file.size < 0:
        return f"'{file.path}' has a negative size"
    if not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
        return f"'{file.path}' has no SHA-256"
    return None
