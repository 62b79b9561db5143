"""The folder in which runtime packs are installed, each in ``NAME-VERSION``: what is there, whole or not; removal."""

import contextlib
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from appliance.errors import PackError
from appliance.runtimes import manifest as manifests
from appliance.runtimes.manifest import Manifest, PackFile
from appliance.system.instance import only_one

_CHUNK = 4 << 20
_TRIES = 20  # a virus scanner holds files for a moment after they were written
_PAUSE_S = 0.25
_FORGOTTEN_S = 7 * 24 * 3600.0

Progress = Callable[[int], None]
"""Told the bytes that were done since it was last told."""


class Installed(msgspec.Struct, frozen=True):
    """A pack's folder. ``manifest`` is None where it cannot be read; then ``fault`` says why."""

    folder: Path
    manifest: Manifest | None
    fault: str | None = None

    @property
    def name(self) -> str:
        return self.folder.name.rpartition("-")[0]

    @property
    def version(self) -> str:
        return self.folder.name.rpartition("-")[2]


class Shelf:
    """``folder``: where the packs are, made when the first one is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes the shelf meanwhile. Raises PackError at once: somebody does, or it is not writable."""
        with contextlib.ExitStack() as stack:
            try:
                won = stack.enter_context(only_one(self.folder / ".lock"))
            except OSError as error:
                raise PackError(f"the folder of the runtime packs cannot be written: {error.strerror}") from None
            if not won:
                raise PackError("another command is at work on the runtime packs; try again when it is done")
            yield

    def installed(self) -> list[Installed]:
        """All packs, by name and version. What begins with a dot is unfinished work and no pack."""
        try:
            folders = sorted(f for f in self.folder.iterdir() if f.is_dir() and not f.name.startswith("."))
        except OSError:
            return []
        return [_read(folder) for folder in folders if "-" in folder.name]

    def find(self, name: str, version: str | None = None) -> list[Installed]:
        """The installed versions of a pack, or the one. Raises PackError if there is none."""
        found = [pack for pack in self.installed() if pack.name == name and version in (None, pack.version)]
        if not found:
            known = ", ".join(pack.folder.name for pack in self.installed()) or "none"
            raise PackError(f"there is no pack '{name}{f'-{version}' if version else ''}' (installed: {known})")
        return found

    def remove(self, pack: Installed) -> None:
        """Away with a pack, whole or not at all. Raises PackError: it is in use, or cannot be removed."""
        doomed = self.folder / f".{pack.folder.name}.removed"
        _delete(doomed)
        try:
            _patiently(lambda: _touch_all(pack.folder))
            replace(pack.folder, doomed)
        except PermissionError:
            raise PackError(
                f"{pack.folder.name} is in use: stop the appliance (and what else uses it), then try again"
            ) from None
        except OSError as error:
            raise PackError(f"{pack.folder.name} cannot be removed: {error.strerror}") from None
        _delete(doomed)

    def sweep(self) -> None:
        """Away with what removals left, and with downloads and unpackings that nobody went on with for a week."""
        with contextlib.suppress(OSError):
            for folder in list(self.folder.glob(".*.removed")):
                _delete(folder)
            long_ago = time.time() - _FORGOTTEN_S
            for unfinished in [*self.folder.glob(".*.part"), *self.folder.glob(".downloads/*")]:
                if max(path.stat().st_mtime for path in (unfinished, *unfinished.rglob("*"))) < long_ago:
                    _delete(unfinished)


def faults(
    folder: Path, manifest: Manifest, progress: Progress = lambda done: None
) -> Iterator[tuple[PackFile, str]]:
    """Read all files of an unpacked pack: those that are not as the manifest says, each with what is wrong."""
    for file in manifest.files:
        fault = check(folder / file.path, file, progress)
        if fault:
            yield file, fault


def check(path: Path, file: PackFile, progress: Progress = lambda done: None) -> str | None:
    """What is wrong with a file; None if nothing is."""
    digest = hashlib.sha256()
    try:
        if path.stat().st_size != file.size:
            return f"has {path.stat().st_size} bytes, not {file.size}"
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                progress(len(chunk))
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None if digest.hexdigest() == file.sha256 else "is damaged"


def replace(source: Path, target: Path) -> None:
    """Rename a folder; on Windows some patience. Raises OSError."""
    _patiently(lambda: source.rename(target))


def _touch_all(folder: Path) -> None:
    """PermissionError if a file is in use: what is loaded, Windows opens for nobody who might write."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("r+b"):
                pass


def _patiently(action: Callable[[], object]) -> None:
    for attempt in range(_TRIES):
        try:
            action()
        except PermissionError:
            if attempt == _TRIES - 1:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _read(folder: Path) -> Installed:
    try:
        found = manifests.decode((folder / manifests.NAME).read_bytes()[: manifests.MOST_BYTES])
    except OSError as error:
        return Installed(folder, None, f"its manifest cannot be read ({error.strerror})")
    except PackError as error:
        return Installed(folder, None, error.message)
    if found.folder != folder.name:
        return Installed(folder, None, f"its manifest is that of {found.folder}")
    return Installed(folder, found)


def _delete(path: Path) -> None:
    """A file or folder of ours with all that is in it. What does not go now goes the next time."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
