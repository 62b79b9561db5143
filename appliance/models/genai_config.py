"""``genai_config.json`` → what ONNX Runtime GenAI would make of a model's folder, read without the library.

The file comes with the model, from anywhere, and the library does what it says: it opens the files that are named in
it, loads libraries, writes profiles. So what it may say is listed here, and all else is refused by name.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from appliance.errors import ModelLoadError
from appliance.models.inside import check_location
from appliance.models.listing import Entry, entries, read_text
from appliance.models.spec import ModelConfig
from appliance.system.long_paths import real_path

FILENAME = "genai_config.json"
BACKEND = "genai"

_MOST_TOKENS = 1 << 24
_MOST_VOCABULARY = 1 << 22
_MOST_LAYERS = 4096
_MOST_HEADS = 65_536

_PARTS = ("model", "search", "engine")

# Of ``session_options``: what changes how a model is computed, and names no file and no library.
_OPTIONS = frozenset(
    {
        "custom_allocator",
        "disable_cpu_ep_fallback",
        "disable_quant_qdq",
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_quant_qdq_cleanup",
        "graph_optimization_level",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_id",
        "log_severity_level",
        "log_verbosity_level",
        "provider_options",  # are replaced by the device policy's
        "providers",
        "session.disable_prepacking",
        "session.dynamic_block_base",
        "session.inter_op.allow_spinning",
        "session.intra_op.allow_spinning",
        "session.set_denormal_as_zero",
        "session.use_device_allocator_for_initializers",
        "session.use_env_allocators",
        "use_deterministic_compute",
        "use_env_allocators",
    }
)


class GenaiFacts(msgspec.Struct, frozen=True):
    """A language model in GenAI's format.

    ``kind``: the family as the library calls it, such as ``llama``; ``context``: tokens of prompt and answer
    together; ``ends``: ids that end an answer; ``layers``, ``kv_heads``, ``head_size``: the form of its KV cache;
    ``key``: the name of the first layer's keys among the model's inputs; ``shared``: the cache of an answer is one
    buffer of its full length, else it is copied to a longer one at each token; ``paged``: it is made for the
    library's own batching (``engine.dynamic_batching``), with the batch size given there, else 0.
    """

    kind: str
    context: int
    vocabulary: int
    ends: tuple[int, ...]
    layers: int
    kv_heads: int
    head_size: int
    key: str
    shared: bool
    paged: int = 0


def recognised(config: ModelConfig, listed: Mapping[str, Entry]) -> ModelConfig:
    """The settings of a model's folder, with the backend where its entries say that it is a language model: a
    ``genai_config.json``, in the folder itself or in one of its version folders."""
    if config.backend is not None:
        return config
    versions = (entry for entry in listed.values() if entry.is_folder and entry.name.isdigit() and not entry.outside)
    if FILENAME in listed or any(Path(entry.path, FILENAME).is_file() for entry in versions):
        return msgspec.structs.replace(config, backend=BACKEND)
    return config


def check_listed(config: ModelConfig, listed: Collection[Entry]) -> None:
    """Raises ModelLoadError unless a version's folder with these entries may be a language model."""
    if all(entry.name != FILENAME for entry in listed):
        raise ModelLoadError(f"{FILENAME} is missing")
    if config.filename is not None:
        raise ModelLoadError(f"'filename' is not for language models, {FILENAME} names the file")


def read(folder: Path, root: Path) -> GenaiFacts:
    """The facts of the model in ``folder``. Nothing outside of ``root`` is opened, nor would the library do so.

    Raises ModelLoadError in words.
    """
    from appliance.models import onnx_file  # a scan of the models folders needs none of it

    try:
        listed = {entry.name: entry for entry in entries(folder, real_path(root))}
    except OSError as error:
        raise ModelLoadError(f"the folder cannot be read: {error.strerror}") from None
    for entry in listed.values():  # the library opens more than it is told: tokenizers, templates
        if entry.outside:
            raise ModelLoadError(f"{entry.name}: a link leads outside of the models folder, or nowhere")
    if FILENAME not in listed:
        raise ModelLoadError(f"{FILENAME} is missing")
    try:
        raw = msgspec.json.decode(read_text(listed[FILENAME]))
    except msgspec.DecodeError as error:
        raise ModelLoadError(f"{FILENAME}: it is not JSON: {error}") from None
    except RecursionError:
        raise ModelLoadError(f"{FILENAME}: values are nested too deeply") from None
    facts, file = _facts(raw)
    check_location(file, f"{FILENAME}: 'model.decoder.filename'")
    onnx = onnx_file.inspect(folder / file, root)
    if words := onnx.missing_operators():
        raise ModelLoadError(f"{file}: {words}")
    return facts


def _facts(raw: Any) -> tuple[GenaiFacts, str]:
    """The facts, and the name of the model's file."""
    model = _table(raw, "model")
    for key in raw:
        if key not in _PARTS:
            raise ModelLoadError(f"{FILENAME}: '{key[:64]}' is not taken from a model's folder")
    decoder = _table(model, "decoder", "model.")
    for key, value in model.items():
        if isinstance(value, dict) and key != "decoder":
            raise ModelLoadError(
                f"{FILENAME}: 'model.{key}' makes it more than a language model, which is not served"
            )
    for key in ("pipeline", "adapters"):
        if decoder.get(key):
            raise ModelLoadError(f"{FILENAME}: 'model.decoder.{key}' is not served")
    for words in _options(decoder.get("session_options") or {}):
        raise ModelLoadError(f"{FILENAME}: {words}")
    inputs = decoder.get("inputs")
    pattern = inputs.get("past_key_names") if isinstance(inputs, dict) else None
    file = decoder.get("filename")
    if not isinstance(file, str):
        raise ModelLoadError(f"{FILENAME}: 'model.decoder.filename' must be text")
    facts = GenaiFacts(
        kind=str(model.get("type", ""))[:64],
        context=_number(model, "model.context_length", _MOST_TOKENS),
        vocabulary=_number(model, "model.vocab_size", _MOST_VOCABULARY),
        ends=tuple(_ends(model.get("eos_token_id"))),
        layers=_number(decoder, "model.decoder.num_hidden_layers", _MOST_LAYERS),
        kv_heads=_number(decoder, "model.decoder.num_key_value_heads", _MOST_HEADS),
        head_size=_number(decoder, "model.decoder.head_size", _MOST_HEADS),
        key=(pattern if isinstance(pattern, str) else "past_key_values.%d.key").replace("%d", "0"),
        shared=_search(raw).get("past_present_share_buffer", True) is True,
        paged=_paged(raw),
    )
    return facts, file


def _table(raw: Any, key: str, prefix: str = "") -> Mapping[str, Any]:
    found = raw.get(key) if isinstance(raw, dict) else None
    if not isinstance(found, dict):
        raise ModelLoadError(f"{FILENAME}: there is no '{prefix}{key}' in it")
    return found


def _search(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    found = raw.get("search")
    return found if isinstance(found, dict) else {}


def _number(table: Mapping[str, Any], path: str, most: int) -> int:
    value = table.get(path.rpartition(".")[2])
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ModelLoadError(f"{FILENAME}: '{path}' must be a whole number from 1 to {most}")
    return value


def _ends(value: Any) -> Iterator[int]:
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, int) or isinstance(one, bool):
            raise ModelLoadError(f"{FILENAME}: 'model.eos_token_id' must be a whole number, or a list of them")
        yield one


def _options(options: Any) -> Iterator[str]:
    if not isinstance(options, dict):
        yield "'session_options' must be a table"
        return
    for key in options:
        if key not in _OPTIONS:
            yield f"'session_options.{key[:64]}' is not taken from a model's folder"


def _paged(raw: Mapping[str, Any]) -> int:
    engine = raw.get("engine")
    batching = engine.get("dynamic_batching") if isinstance(engine, dict) else None
    if not isinstance(batching, dict):
        return 0
    # The library's own default.
    return _number(batching, "engine.dynamic_batching.max_batch_size", 4096) if "max_batch_size" in batching else 16
