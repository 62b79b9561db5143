"""Unpack a runtime pack: checked, whole or not at all, and going on where an earlier try stopped.

The work is done in ``.NAME-VERSION.part`` beside the others; a rename makes it a pack. A try that was interrupted
leaves that folder, and the next one keeps the files in it that are right.
"""

import errno
import hashlib
import os
import platform as machine
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from appliance.errors import PackError
from appliance.runtimes import manifest as manifests
from appliance.runtimes.manifest import Manifest, PackFile
from appliance.runtimes.shelf import Progress, Shelf, check, faults, replace

_CHUNK = 4 << 20
_SLACK = 64 << 20  # left free on the disk

Free = Callable[[Path], int]


def free_bytes(folder: Path) -> int:
    """What is free on the disk of a folder, which need not exist yet."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(place).free


def read(pack: Path) -> Manifest:
    """The manifest of a pack file. Raises PackError: no pack, cut off, or wrong."""
    with _open(pack) as archive:
        return _manifest(archive)


def install(
    pack: Path,
    shelf: Shelf,
    name: str,
    *,
    platform: str,
    free: Free = free_bytes,
    progress: Progress = lambda done: None,
) -> tuple[Manifest, bool]:
    """Unpack the pack file into the shelf. False with the manifest: it was there already, and whole.

    ``progress`` is told bytes of the manifest's ``size``. Raises PackError in words: wrong name or platform, no room,
    damaged, disk full, in use.
    """
    with _open(pack) as archive:
        manifest = _manifest(archive)
        if manifest.name != name:
            raise PackError(f"{pack.name} is the pack '{manifest.name}', not '{name}'")
        if manifest.platform != platform:
            raise PackError(f"{pack.name} is for {manifest.platform}, this is {platform}")
        members = _members(archive, manifest)
        target, part = shelf.folder / manifest.folder, shelf.folder / f".{manifest.folder}.part"
        if target.exists() and not any(faults(target, manifest)):
            return manifest, False
        try:
            _unpack(archive, manifest, members, part, free, progress)
            _settle(shelf, manifest, part, target)
        except OSError as error:
            raise _words(error) from None
    return manifest, True


def this_platform() -> str:
    """The platform whose packs fit here."""
    processor = machine.machine().lower().replace("amd64", "x86_64").replace("arm64", "aarch64")
    return f"{'windows' if sys.platform == 'win32' else sys.platform}-{processor}"


def _open(pack: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(pack)
    except FileNotFoundError:
        raise PackError(f"there is no file {pack}") from None
    except zipfile.BadZipFile:
        raise PackError(f"{pack.name} is no runtime pack, or it was cut off: get it again") from None
    except OSError as error:
        raise PackError(f"{pack.name} cannot be read: {error.strerror}") from None


def _manifest(archive: zipfile.ZipFile) -> Manifest:
    try:
        with archive.open(manifests.NAME) as stream:
            data = stream.read(manifests.MOST_BYTES + 1)
    except KeyError:
        raise PackError(f"it is no runtime pack: it has no {manifests.NAME}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError):
        raise PackError("it is damaged: its manifest cannot be read") from None
    if len(data) > manifests.MOST_BYTES:
        raise PackError("its manifest is too large")
    return manifests.decode(data)


def _members(archive: zipfile.ZipFile, manifest: Manifest) -> dict[str, zipfile.ZipInfo]:
    """The archive's files by path; they must be those of the manifest, with its sizes."""
    found = {info.filename: info for info in archive.infolist() if info.filename != manifests.NAME}
    wanted = {file.path: file.size for file in manifest.files}
    if len(found) != len(archive.infolist()) - 1 or set(found) != set(wanted):
        other = next(iter(set(found) ^ set(wanted)), "a file that is in it twice")
        raise PackError(f"it is damaged: its manifest and its files differ ({other[:80]})")
    for path, info in found.items():
        if info.file_size != wanted[path]:
            raise PackError(f"it is damaged: {path} has another size than its manifest says")
    return found


def _unpack(
    archive: zipfile.ZipFile,
    manifest: Manifest,
    members: dict[str, zipfile.ZipInfo],
    part: Path,
    free: Free,
    progress: Progress,
) -> None:
    part.mkdir(parents=True, exist_ok=True)
    missing = []
    for file in manifest.files:
        if check(part / file.path, file) is None:
            progress(file.size)
        else:
            missing.append(file)
    needed = sum(file.size for file in missing) + _SLACK
    _clear(part, manifest, missing)
    if (there := free(part)) < needed:
        raise PackError(f"there is not enough room: {needed >> 20} MiB are needed, {there >> 20} MiB are free")
    for file in missing:
        (part / file.path).parent.mkdir(exist_ok=True)
        with (part / file.path).open("wb") as target:
            _copy(archive, members[file.path], file, target, progress)
            target.flush()
            os.fsync(target.fileno())
    with (part / manifests.NAME).open("wb") as target:
        target.write(manifests.encode(manifest))
        target.flush()
        os.fsync(target.fileno())


def _clear(part: Path, manifest: Manifest, missing: list[PackFile]) -> None:
    """Away with what an earlier try left that is not right, or not of this pack."""
    keep = {file.path for file in manifest.files} - {file.path for file in missing}
    for path in list(part.rglob("*")):
        if path.is_file() and path.relative_to(part).as_posix() not in keep:
            path.unlink()


def _copy(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: PackFile, target: IO[bytes], progress: Progress
) -> None:
    """Not a byte more than the manifest says is written, whatever the archive holds."""
    digest, size = hashlib.sha256(), 0
    try:
        with archive.open(info) as source:
            while chunk := source.read(min(_CHUNK, file.size - size + 1)):
                size += len(chunk)
                if size > file.size:
                    raise PackError(f"it is damaged: {file.path} is larger than its manifest says")
                digest.update(chunk)
                target.write(chunk)
                progress(len(chunk))
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError):
        raise PackError(f"it is damaged at {file.path}: get it again") from None
    if digest.hexdigest() != file.sha256:
        raise PackError(f"it is damaged at {file.path}: get it again")


def _settle(shelf: Shelf, manifest: Manifest, part: Path, target: Path) -> None:
    """The finished folder takes its place; one that was there and was not whole goes."""
    if target.exists():
        shelf.remove(shelf.find(manifest.name, manifest.version)[0])
    replace(part, target)


def _words(error: OSError) -> PackError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or getattr(error, "winerror", None) == 112:
        return PackError("the disk is full; make room and run the same command again: it goes on where it stopped")
    return PackError(f"it cannot be unpacked: {error.strerror or error}")
