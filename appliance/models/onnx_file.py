"""What an ONNX file is, found out without running any of it and without opening anything else.

A model file comes from anywhere. ONNX Runtime reads what the file names (external data, compiled contexts),
so each name is checked before it gets the file.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from appliance.errors import ModelLoadError
from appliance.models.inside import real_inside
from appliance.models.onnx_foreign import guess
from appliance.models.onnx_walk import OnnxFacts, Walk
from appliance.models.onnx_wire import Wire, WireError

__all__ = ["MAX_BYTES", "MAX_FIELDS", "OnnxFacts", "inspect"]

MAX_BYTES = 2**31 - 1
"""Protobuf's own limit of one message."""

MAX_FIELDS = 5_000_000
"""The most fields that are looked at. Real graphs have some ten thousand; a made-up one ends in seconds."""


def inspect(path: Path, root: Path) -> OnnxFacts:
    """The facts of the ONNX file at ``path``.

    Raises ModelLoadError, in words that name files relative to the model: the file is not ONNX, is damaged,
    or names something outside ``root``, missing or too short. Opens ``path`` only, and only if it is a regular
    file that lies in ``root``. Holds some hundred KB, whatever the file's size.
    """
    name = path.name
    try:
        if real_inside(path, root) is None:
            raise ModelLoadError(f"{name}: a link leads outside of the model's folder")
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise ModelLoadError(f"{name}: it is not a regular file")
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ModelLoadError(f"{name}: it is not a regular file")
            return _read(file, found.st_size, path, root)
    except FileNotFoundError:
        raise ModelLoadError(f"{name}: the file is missing") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or 'I/O error'}") from None


def _read(file: BinaryIO, size: int, path: Path, root: Path) -> OnnxFacts:
    if size == 0:
        raise ModelLoadError(f"{path.name}: the file is empty")
    head = file.read(512)
    if size > MAX_BYTES:
        foreign = guess(head, size)
        raise ModelLoadError(
            f"{path.name}: {foreign}"
            if foreign
            else f"{path.name}: the file is larger than 2 GiB, which ONNX cannot be; "
            "export the model with its weights as external data"
        )
    walk = Walk(Wire(file, size, MAX_FIELDS), path, root)
    try:
        facts = walk.model(size)
    except WireError as error:
        foreign = guess(head, size)
        raise ModelLoadError(f"{path.name}: {foreign or f'damaged, cut off or not ONNX: {error}'}") from None
    if facts is None:
        raise ModelLoadError(
            f"{path.name}: {guess(head, size) or 'there is no graph in it; it is not an ONNX model'}"
        )
    return facts
