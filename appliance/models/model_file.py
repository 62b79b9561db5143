"""Which of the files in a folder is the model."""

from collections.abc import Collection, Sequence

from appliance.errors import ModelLoadError
from appliance.models.listing import BACKENDS, ONNX, Entry, backend_of, entries, stem_of
from appliance.models.spec import ModelConfig

_FOREIGN = (".pth", ".engine", ".plan", ".tflite", ".pb", ".h5", ".keras", ".gguf")


def choose(listed: Collection[Entry], root: str, config: ModelConfig) -> Entry:
    """The model among a folder's entries: the named one, else model.onnx (model.pt2 …), else the only one there is.

    ONNX files go before PyTorch's: a checkpoint often lies beside what was exported from it. An entry may be a folder
    that holds a ``model.onnx``: so Triton has a model of several files.
    """
    endings = [ending for ending, backend in BACKENDS.items() if config.backend in (None, backend)]
    told = f"{endings[0]} file" if len(endings) == 1 else f"model file ({', '.join(endings)})"
    if config.filename is not None and not _ends(config.filename, endings):
        raise ModelLoadError(f"'{config.filename}' is not {'an' if told.startswith(ONNX) else 'a'} {told}")
    models = [entry for entry in listed if _ends(entry.name, endings)]
    first = [entry for entry in models if backend_of(entry.name) == "onnx"] or models
    named = [config.filename] if config.filename else [f"model{ending}" for ending in endings]
    found = [entry for entry in (models if config.filename else first) if entry.name in named]
    if not found and config.filename:
        raise ModelLoadError(f"{config.filename} is missing")
    model = next(iter(found or first), None)
    if len(found or first) > 1:
        names = ", ".join(entry.name for entry in (found or first)[:5])
        raise ModelLoadError(f"there are several model files ({names}); name one with 'filename'")
    if model is None:
        foreign = [entry.name for entry in listed if entry.name.lower().endswith((*BACKENDS, *_FOREIGN))]
        raise ModelLoadError(
            f"there is no {told} in it" + (f" (found {foreign[0]}, which is not served)" if foreign else "")
        )
    if model.is_folder:
        model = next((entry for entry in entries(model.path, root) if entry.name == f"model{ONNX}"), model)
    return usable(model)


def _ends(name: str, endings: Sequence[str]) -> bool:
    return name.lower().endswith(tuple(endings)) and stem_of(name) != ""


def usable(entry: Entry) -> Entry:
    """The entry, if it is a regular file within the models folder. Raises ModelLoadError."""
    if entry.outside:
        raise ModelLoadError(f"{entry.name}: a link leads outside of the models folder, or nowhere")
    if not entry.is_file:
        raise ModelLoadError(f"{entry.name}: it is not a regular file")
    return entry
