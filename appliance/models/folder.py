"""One model's folder, or one bare model file → what to load of it, or why it cannot be served."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from appliance.errors import ModelLoadError
from appliance.models import genai_config, model_file
from appliance.models.declared import FILENAME as PBTXT
from appliance.models.declared import OWN, Declared, own
from appliance.models.listing import (
    MAX_TEXT_BYTES,
    Entry,
    backend_of,
    entries,
    fingerprint,
    read_text,
    stem_of,
    tree,
)
from appliance.models.spec import ModelConfig
from appliance.models.toml import located, read_config
from appliance.system.long_paths import real_path

TOML = OWN
LABELS = "labels.txt"

# Names that Windows gives to devices, in any folder and with any ending.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")
_NO_FILE = ("fake", "pipeline")


class ModelFile(msgspec.Struct, frozen=True):
    """One version to load. ``path``: the file (the folder, for a backend without files). ``root``: nothing
    outside of it may be read for this model. ``fingerprint`` changes with any file of the version."""

    version: str
    path: Path
    root: Path
    fingerprint: str


class ModelFolder(msgspec.Struct, frozen=True):
    """A model as it lies on disk.

    ``files``: the versions to serve, oldest first; one, with ``path`` the folder, for a pipeline of other
    models. ``error``: why it cannot be served, without a full path; then ``files`` is empty. ``notes``: what a
    user should know of a model that is served. ``declared``: what its settings say of its tensors.
    """

    name: str
    path: Path
    config: ModelConfig = ModelConfig()
    files: tuple[ModelFile, ...] = ()
    labels: tuple[str, ...] = ()
    error: str | None = None
    read_only: bool = False
    notes: tuple[str, ...] = ()
    declared: Declared | None = None

    def beside(self, file: ModelFile) -> tuple[Path, ...]:
        """The folders in which files that go with ``file`` (a tokenizer) may lie: the version's own, the model's."""
        own = file.path if file.path.is_dir() else file.path.parent
        return (own, self.path) if self.path.is_dir() and own != self.path else (own,)


class Settings(msgspec.Struct, frozen=True):
    """What the text files beside a model say."""

    config: ModelConfig
    latest: int = 1
    label_file: str = LABELS
    notes: tuple[str, ...] = ()
    declared: Declared | None = None


def valid_name(name: str) -> bool:
    """Whether ``name`` may be a model's name. Only such a name may ever become part of a path."""
    return bool(_NAME.fullmatch(name)) and not name.endswith(".") and not _DEVICES.fullmatch(name)


def name_fault(name: str) -> str | None:
    """Why ``name`` may not be a model's name, or None."""
    if valid_name(name):
        return None
    return (
        "the name must begin with a letter or digit, hold only letters, digits, '.', '_' and '-', "
        "and have at most 128 characters"
    )


def read_folder(path: Path, root: str, read_only: bool = False) -> ModelFolder:
    """The model in folder ``path``. ``root``: the models folder's real path. Faults are in ``error``."""
    name = path.name
    config, declared = ModelConfig(), None
    labels: tuple[str, ...] = ()
    try:
        if fault := name_fault(name):
            raise ModelLoadError(fault)
        listed = {entry.name: entry for entry in entries(path, root)}
        settings = _settings(listed, name)
        settings = msgspec.structs.replace(settings, config=genai_config.recognised(settings.config, listed))
        config, declared = settings.config, settings.declared
        labels = read_labels(listed, settings.label_file, settings.label_file != LABELS)
        files, notes = _files(path, root, listed, settings)
        return ModelFolder(name, path, config, files, labels, None, read_only, (*settings.notes, *notes), declared)
    except ModelLoadError as error:
        return ModelFolder(name, path, config, (), labels, error.message, read_only, (), declared)
    except OSError as error:
        told = f"the folder cannot be read: {error.strerror}"
        return ModelFolder(name, path, config, (), labels, told, read_only, (), declared)


def read_bare(file: Entry, beside: Sequence[Entry], root: str, read_only: bool = False) -> ModelFolder:
    """The model of a file that lies in the models folder itself. ``beside``: the files that go with it."""
    name = stem_of(file.name)
    path = Path(file.path)
    config = ModelConfig()
    labels: tuple[str, ...] = ()
    try:
        if fault := name_fault(name):
            raise ModelLoadError(fault)
        named = {entry.name: entry for entry in beside}
        if settings := named.get(f"{name}.toml"):
            config = read_config(read_text(settings), settings.name)
        if config.backend not in (None, backend_of(file.name)) or config.filename or config.versions != "latest":
            raise ModelLoadError(f"{name}.toml: backend, filename and versions need a folder for the model")
        labels = read_labels(named, f"{name}.labels.txt", False)
        model_file.usable(file)
        mark = fingerprint((entry.name, entry) for entry in (file, *beside))
        found = ModelFile("1", path, _home(file.path, root), mark)
        declared = own(config)
        return ModelFolder(name, path, config, (found,), labels, None, read_only, (), declared)
    except ModelLoadError as error:
        return ModelFolder(name, path, config, (), labels, error.message, read_only)


def with_line(folder: ModelFolder, message: str) -> str:
    """A fault that loading found, with its line if it begins with a key of the model's settings. Reads the file."""
    try:
        file = folder.path / TOML if folder.path.is_dir() else folder.path.with_suffix(".toml")
        return located(message, file.read_bytes()[:MAX_TEXT_BYTES].decode("utf-8-sig"), file.name)
    except (OSError, ValueError):
        return message


def read_labels(listed: Mapping[str, Entry], filename: str, needed: bool) -> tuple[str, ...]:
    """One label a line; empty lines at the end do not count. ModelLoadError if it is needed and not there."""
    entry = listed.get(filename)
    if entry is None:
        if needed:
            raise ModelLoadError(f"{filename}: the file with the labels is missing")
        return ()
    text = read_text(entry).rstrip("\r\n")
    # A label may be a kind of space itself, as in the alphabet of a text reader.
    return tuple(line.strip(" \t\r") or line.rstrip("\r") for line in text.split("\n")) if text else ()


def _settings(listed: Mapping[str, Entry], name: str) -> Settings:
    toml, pbtxt = listed.get(TOML), listed.get(PBTXT)
    if toml and pbtxt:
        raise ModelLoadError(f"{TOML} and {PBTXT} are both there; keep one of them")
    if toml:
        config = read_config(read_text(toml), TOML)
        return Settings(config, declared=own(config))
    if pbtxt:
        from appliance.models.triton import read_pbtxt  # needs protobuf, which most folders do not

        read = read_pbtxt(read_text(pbtxt), name)
        return Settings(read.config, read.latest, read.label_file or LABELS, read.notes, read.declared)
    return Settings(ModelConfig())


def _files(
    path: Path, root: str, listed: Mapping[str, Entry], settings: Settings
) -> tuple[tuple[ModelFile, ...], list[str]]:
    """The versions to serve, and notes on those that are not."""
    config, notes = settings.config, []
    versions: dict[int, Entry] = {}
    for entry in listed.values():
        if _VERSION.fullmatch(entry.name) and entry.outside:
            raise ModelLoadError(f"version {entry.name}: a link leads outside of the models folder")
        if _VERSION.fullmatch(entry.name) and entry.is_folder:
            versions[int(entry.name)] = entry
        elif entry.is_folder and entry.name.isdigit():
            notes.append(f"folder '{entry.name}' is not a version: versions count from 1, without a leading 0")
    if config.backend == "pipeline" or not versions:
        return (_unversioned(path, root, listed, config),), notes
    if config.backend not in _NO_FILE and any(backend_of(name) for name in listed):
        notes.append("the model files beside the version folders are not used")
    return _versioned(root, listed, settings, versions, notes), notes


def _unversioned(path: Path, root: str, listed: Mapping[str, Entry], config: ModelConfig) -> ModelFile:
    if isinstance(config.versions, list) and config.versions != [1] and config.backend != "pipeline":
        raise ModelLoadError(f"versions {config.versions} are asked for, but there are no version folders")
    chosen = _chosen(str(path), listed.values(), root, config)
    mark = fingerprint(tree(str(path), root, listed.values()))
    return ModelFile("1", Path(chosen), _home(chosen, root), mark)


def _versioned(
    root: str, listed: Mapping[str, Entry], settings: Settings, versions: Mapping[int, Entry], notes: list[str]
) -> tuple[ModelFile, ...]:
    config = settings.config
    usable: dict[int, tuple[str, list[Entry]]] = {}
    for number, folder in versions.items():
        try:
            inner = entries(folder.path, root)
            chosen = _chosen(folder.path, inner, root, config)
            usable[number] = (chosen, inner)
        except FileNotFoundError:  # gone since the listing
            continue
        except ModelLoadError as error:
            notes.append(f"version {number} is not served: {error.message}")
    wanted = _select(usable, settings, notes)
    if not wanted:
        raise ModelLoadError("; ".join(notes) or "there is no version to serve")
    top = [(entry.name, entry) for entry in listed.values() if not entry.is_folder]
    files = []
    for number in wanted:
        chosen, inner = usable[number]
        within = tree(versions[number].path, root, inner)
        mark = fingerprint([*top, *((f"{number}/{name}", entry) for name, entry in within)])
        files.append(ModelFile(str(number), Path(chosen), _home(chosen, root), mark))
    return tuple(files)


def _select(usable: Mapping[int, object], settings: Settings, notes: list[str]) -> list[int]:
    policy = settings.config.versions
    if policy == "latest":
        return sorted(usable)[-settings.latest :]
    if policy == "all":
        return sorted(usable)
    notes += [f"version {number} is asked for, but not there" for number in policy if number not in usable]
    return sorted(number for number in policy if number in usable)


def _chosen(folder: str, listed: Collection[Entry], root: str, config: ModelConfig) -> str:
    """What the backend is given to load of a version's folder: the folder itself, or a file in it."""
    if config.backend == genai_config.BACKEND:
        genai_config.check_listed(config, listed)
    elif config.backend not in _NO_FILE:
        return model_file.choose(listed, root, config).path
    return folder


def _home(path: str, root: str) -> Path:
    """The folder under the models folder in which ``path`` really lies; the models folder for a bare file."""
    real = Path(real_path(path))
    if not real.is_relative_to(root):  # a link that was changed since it was looked at
        raise ModelLoadError(f"{real.name}: a link leads outside of the models folder")
    parts = real.relative_to(root).parts
    return Path(root, parts[0]) if len(parts) > 1 or real.is_dir() else Path(root)
