"""The models folders → every model in them. Looking only: nothing is loaded, no model file is opened."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from appliance.models.declared import Declared, check_declared
from appliance.models.folder import ModelFile, ModelFolder, read_bare, read_folder, valid_name
from appliance.models.listing import BACKENDS, backend_of, companions_of, entries, is_lost_folder, stem_of
from appliance.models.store import add, remove
from appliance.system.long_paths import real_path

__all__ = [
    "Declared",
    "ModelFile",
    "ModelFolder",
    "Root",
    "add",
    "check_declared",
    "remove",
    "scan",
    "valid_name",
]

_log = logging.getLogger(__name__)


class Root(msgspec.Struct, frozen=True):
    """A models folder. ``read_only``: it came with the program; its models cannot be removed."""

    path: Path
    read_only: bool = False


def scan(roots: Sequence[Root]) -> dict[str, ModelFolder]:
    """Every model of every root, by name; of two with one name the one in the earlier root.

    A root that is missing or cannot be read is like an empty one. A model that cannot be served is listed with
    its ``error``. Never raises for what is in the folders.
    """
    found: dict[str, ModelFolder] = {}
    for root in roots:
        try:
            models = list(_models(root))
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("a models folder cannot be read: %s", error.strerror)
            continue
        for model in models:
            first = found.get(model.name)
            if first is None:
                found[model.name] = model
            else:
                note = "another model of this name is in a later models folder and is not served"
                found[model.name] = msgspec.structs.replace(first, notes=(*first.notes, note))
    return found


def _models(root: Root) -> Iterator[ModelFolder]:
    real = real_path(root.path)
    listed = entries(root.path, real)
    names = {entry.name for entry in listed}
    folders = {entry.name for entry in listed if entry.is_folder}
    companions = companions_of(listed)
    bare: set[str] = set()
    for entry in listed:
        path = root.path / entry.name
        if entry.is_folder:
            unused = [f"{entry.name}{ending}" for ending in (*BACKENDS, ".toml") if f"{entry.name}{ending}" in names]
            model = read_folder(path, real, root.read_only)
            notes = [f"{name} beside the folder is not used" for name in unused]
            yield msgspec.structs.replace(model, notes=(*model.notes, *notes)) if notes else model
        elif backend_of(entry.name):
            stem = stem_of(entry.name)
            # Of one model in several formats the first counts: ONNX goes before PyTorch, as their endings do.
            if stem not in folders and stem not in bare:
                bare.add(stem)
                yield read_bare(entry, companions[stem], real, root.read_only)
        elif is_lost_folder(entry):
            told = "the folder is a link that leads outside of the models folder, or nowhere"
            yield ModelFolder(entry.name, path, error=told, read_only=root.read_only)
