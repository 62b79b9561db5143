"""Putting models into the user's models folder, and taking them out again."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from appliance.errors import InvalidInput, ModelLoadError, ModelNotFound
from appliance.models.folder import LABELS, TOML, ModelFolder, name_fault, read_folder
from appliance.models.listing import (
    BACKENDS,
    Entry,
    backend_of,
    companions_of,
    entries,
    is_lost_folder,
    is_onnx,
    stem_of,
    tree,
)
from appliance.system.long_paths import real_path


def add(folder: Path, source: Path, name: str | None = None) -> str:
    """Copies a model file, or a folder as it would lie in ``folder``, into ``folder``; the model's name.

    ``name`` is else the source's own. The model appears whole or not at all. A file's external data, labels
    (``<stem>.labels.txt``) and settings (``<stem>.toml``) come with it. Raises InvalidInput for a name that is
    wrong or taken, ModelLoadError for a source that cannot be read or could not be served.
    """
    source = source.absolute()
    if not source.exists():
        raise ModelLoadError(f"{source.name}: there is no such file or folder")
    name = name or (source.name if source.is_dir() else source.stem)
    if fault := name_fault(name):
        raise InvalidInput(f"'{name[:128]}' cannot be a model's name: {fault}", param="name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Names that differ in case only are one name on Windows.
        taken = {entry.lower() for entry in os.listdir(folder)}  # noqa: PTH208 - links that lead nowhere count
        if taken & {name.lower(), *(f"{name.lower()}{ending}" for ending in BACKENDS)}:
            raise InvalidInput(f"there is a model '{name}' already; remove it first", param="name")
        # On the same volume, and hidden: a scan does not see it.
        with tempfile.TemporaryDirectory(prefix=".adding-", dir=folder, ignore_cleanup_errors=True) as temp:
            target = Path(temp, name)
            if source.is_dir():
                _copy(_folder_files(source, folder), target)
            else:
                _copy(_file_files(source), target)
            _check(read_folder(target, real_path(temp)))
            target.replace(folder / name)
    except OSError as error:
        raise ModelLoadError(f"{source.name}: cannot be copied: {error.strerror}") from None
    return name


def remove(folder: Path, name: str) -> None:
    """Deletes model ``name`` from ``folder``: its folder, or its bare file and the files that go with it.

    Nothing else, and nothing that a link leads to. ModelNotFound where ``folder`` holds no such model: those of
    other folders, such as the embedded ones, cannot be removed.
    """
    missing = ModelNotFound(f"there is no model '{name[:128]}' in the user's models folder")
    if name_fault(name):
        raise missing
    try:
        listed = entries(folder, real_path(folder))
        # By the listing, not by asking for the path: that would also find a name in another case on Windows.
        if any(entry.name == name and (entry.is_folder or is_lost_folder(entry)) for entry in listed):
            if (folder / name).is_symlink():
                (folder / name).unlink()
            else:
                _remove_folder(folder, name)
        else:
            models = [e for e in listed if backend_of(e.name) and stem_of(e.name) == name and not e.is_folder]
            if not models:
                raise missing
            for entry in (*models, *companions_of(listed)[name]):
                Path(entry.path).unlink(missing_ok=True)
    except FileNotFoundError:
        raise missing from None
    except OSError as error:
        raise ModelLoadError(f"model '{name}' cannot be removed: {error.strerror}") from None


def _remove_folder(folder: Path, name: str) -> None:
    """First out of sight, all at once; a file that Windows holds open keeps the whole model in place."""
    with tempfile.TemporaryDirectory(prefix=".removed-", dir=folder, ignore_cleanup_errors=True) as temp:
        (folder / name).replace(Path(temp, name))


def _folder_files(source: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    root = real_path(source)
    if Path(real_path(folder)).is_relative_to(root):
        raise ModelLoadError(f"{source.name}: it holds the models folder itself")
    for name, entry in tree(str(source), root):
        yield name, _regular(entry, name)


def _file_files(source: Path) -> Iterator[tuple[str, Path]]:
    """A model file and what goes with it, under the names that they get in the model's folder."""
    from appliance.models.onnx_file import inspect  # read only by this command

    if not backend_of(source.name):
        raise ModelLoadError(f"{source.name}: it is not a model file ({', '.join(BACKENDS)})")
    listed = entries(source.parent, real_path(source.parent))
    renamed = {f"{source.stem}.toml": TOML, f"{source.stem}.labels.txt": LABELS}
    for entry in companions_of(listed).get(source.stem, ()):
        if entry.name in renamed:
            yield renamed[entry.name], _regular(entry, entry.name)
    if is_onnx(source.name):
        for location in inspect(source, source.parent).external:
            yield location, source.parent / location
    yield f"model{source.suffix.lower()}", source


def _regular(entry: Entry, name: str) -> Path:
    if entry.outside:
        raise ModelLoadError(f"{name}: a link leads outside of the folder that is added")
    if not entry.is_file:
        raise ModelLoadError(f"{name}: it is not a regular file")
    return Path(entry.path)


def _copy(files: Iterator[tuple[str, Path]], target: Path) -> None:
    target.mkdir()
    for name, source in files:
        to = target / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)
        shutil.copystat(source, to)
        to.chmod(to.stat().st_mode | 0o600)  # a read-only source would make a model that cannot be removed


def _check(model: ModelFolder) -> None:
    from appliance.models import genai_config, onnx_file, torch_file

    if model.error:
        raise ModelLoadError(model.error)
    for file in model.files:
        if model.config.backend == genai_config.BACKEND:
            genai_config.read(file.path, file.root)
        elif is_onnx(file.path.name):
            onnx_file.inspect(file.path, file.root)
        elif backend_of(file.path.name):
            torch_file.inspect(file.path, file.root)
