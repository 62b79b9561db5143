"""Where TensorRT's engines are kept. An engine fits to one GPU, driver, TensorRT and ONNX Runtime, and to one model
with its options; so all of these name its folder, and one that does not fit is never found.

    <state>/tensorrt/<GPU>-<what it fits to>/          timing cache, stack.json for a person
                     …/<model>-<file and options>/     the engine, and a mark that it is whole
"""

import contextlib
import hashlib
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

_WHOLE, _REFUSED, _STACK = "whole", "refused", "stack.json"
_KEPT_S = 60 * 24 * 3600.0  # an engine that was not used for so long is deleted when another one is built


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine fits to beside its model. ``device``: "cuda:0"; ``name``, ``capability``: of that GPU."""

    device: str
    name: str | None = None
    capability: str | None = None
    driver: str | None = None
    tensorrt: str | None = None
    onnxruntime: str | None = None
    cuda: str | None = None

    def unknown(self) -> list[str]:
        """The parts that could not be found out; with one of them no engine can be kept."""
        return [field for field in self.__struct_fields__ if not getattr(self, field)]

    def folder(self) -> str:
        """A name for it that is a folder's on every system."""
        text = msgspec.json.encode(self)
        return f"{_plain(self.name or 'gpu')}-{hashlib.sha256(text).hexdigest()[:16]}"


def place(packs: Path | None) -> Path | None:
    """The folder of the engines, in the state folder, beside the runtime packs."""
    return packs.parent / "tensorrt" if packs else None


def model_key(name: str, files: Sequence[Path], options: Mapping[str, object]) -> str:
    """A folder's name for one model with its options. ``files``: all that it consists of; they are read whole, since
    ONNX Runtime's own name for an engine does not change with a model's weights. Raises OSError."""
    found = hashlib.sha256(repr(sorted(options.items())).encode())
    for file in files:
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return f"{_plain(name)}-{found.hexdigest()[:16]}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "x"


class Kept:
    """The folder of one engine. Raises OSError where its disk does not take it.

    The mark that it is whole is taken away while it is used for a load: if that ends the process, or was cut off
    while it was written, the next load begins anew.
    """

    def __init__(self, root: Path, stack: Stack, model: str) -> None:
        self._root, self._stack = root, stack
        self.timings = root / stack.folder()
        self.folder = self.timings / model

    def begin(self) -> bool:
        """Make it ready for a load. Whether a whole engine is in it; what is not whole is deleted."""
        if (self.folder / _WHOLE).is_file():
            (self.folder / _WHOLE).unlink()
            return True
        self.discard()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.timings / _STACK).write_bytes(msgspec.json.format(msgspec.json.encode(self._stack)))
        return False

    def commit(self) -> None:
        """The load went well: what is there is whole. Also deletes what nobody used for long."""
        (self.folder / _WHOLE).touch()
        _prune(self._root, time.time() - _KEPT_S)

    def discard(self) -> None:
        """Delete it."""
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def refuse(self) -> None:
        """Remember that no engine can be built this way."""
        self.discard()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _REFUSED).touch()

    @property
    def refused(self) -> bool:
        return (self.folder / _REFUSED).is_file()


def _prune(root: Path, before: float) -> None:
    for mark in [*root.glob(f"*/*/{_WHOLE}"), *root.glob(f"*/*/{_REFUSED}")]:
        with contextlib.suppress(OSError):
            if mark.stat().st_mtime < before:
                shutil.rmtree(mark.parent)
    for stack in root.glob("*"):
        with contextlib.suppress(OSError):
            if stack.is_dir() and stack.stat().st_mtime < before and not any(p.is_dir() for p in stack.iterdir()):
                shutil.rmtree(stack)
