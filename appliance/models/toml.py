"""``model.toml`` → ``ModelConfig``. Every fault is told with its line and its key."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, get_args, get_origin

import msgspec

from appliance.errors import ModelLoadError
from appliance.models import providers
from appliance.models.spec import Batching, ModelConfig
from appliance.rate_text import rate_fault
from appliance.toml_lines import key_lines

BACKENDS = ("onnx", "pytorch", "genai", "fake", "pipeline")
"""What ``backend`` may be. ``fake`` and ``pipeline`` need no model file."""

MAX_INSTANCES = 64
MAX_WARMUP_ELEMENTS = 1_000_000_000
MAX_BUCKETS = 64
"""Of all lengths together: each combination of them is warmed up."""

_MOST_BYTES = 1 << 50
_MOST_LENGTH = 1 << 30
_MOST_AXES = 32

_RANGES: dict[tuple[str, ...], tuple[int, int]] = {
    ("keep_alive_s",): (0, 31_536_000),
    ("memory", "run_bytes"): (0, _MOST_BYTES),
    ("memory", "item_bytes"): (0, _MOST_BYTES),
    ("instances",): (1, MAX_INSTANCES),
    ("threads",): (1, 256),
    ("batching", "max"): (1, 1024),
    ("batching", "max_delay_ms"): (0, 10_000),
    ("limits", "queue"): (1, 1_000_000),
    ("timeouts", "queue_ms"): (1, 86_400_000),
    ("timeouts", "run_ms"): (1, 86_400_000),
    ("timeouts", "first_token_ms"): (1, 86_400_000),
    ("tensorrt", "workspace_bytes"): (1, _MOST_BYTES),
    ("tensorrt", "optimization_level"): (0, 5),
}

_WORDS = {
    "int": "a whole number",
    "float": "a number with a point",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}

_Path = tuple[str, ...]
_Fault = tuple[_Path, str]


def read_config(text: str, filename: str = "model.toml") -> ModelConfig:
    """The settings in ``text``. Raises ModelLoadError: each fault as ``<filename> line <n>: <what>``."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ModelLoadError(_syntax(str(error), text, filename)) from None
    except RecursionError:
        raise ModelLoadError(f"{filename}: values are nested too deeply") from None
    faults = list(_faults(table, ModelConfig, ()))
    if not faults:
        config = msgspec.convert(table, ModelConfig)
        faults = list(_range_faults(config))
        if not faults:
            return config
    lines = key_lines(text)
    told = sorted((_line(lines, path), words) for path, words in faults)
    raise ModelLoadError("; ".join(f"{filename} line {line}: {words}" for line, words in told))


def plain_name(name: str) -> bool:
    """Whether ``name`` is one file's name on every system: no folder, drive, stream or wildcard in it."""
    return bool(re.fullmatch(r'[^/\\:*?"<>|\x00-\x1f]{1,255}', name)) and name not in (".", "..")


def _syntax(message: str, text: str, filename: str) -> str:
    # tomllib ends its message in "(at line 2, column 5)" or "(at end of document)".
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message, re.DOTALL)
    if not found:
        return f"{filename}: {message}"
    return f"{filename} line {found[2] or len(text.splitlines()) or 1}: {found[1]}"


def _line(lines: Mapping[_Path, int], path: _Path) -> int:
    while path:
        # A table may be there only through what is in it: ``[a.b.c]`` is all there is of ``a.b``.
        found = next((line for key, line in lines.items() if key[: len(path)] == path), None)
        if found is not None:
            return found
        path = path[:-1]
    return 1


def _faults(table: Mapping[str, Any], kind: type[msgspec.Struct], at: _Path) -> Iterator[_Fault]:
    """Unknown keys and wrong types of one table, and of the tables in it that have a declared form."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in table.items():
        path = (*at, key)
        if key not in fields:
            where = f" in [{_dotted(at)}]" if at else ""
            yield path, f"unknown key '{key}'{where} (known: {', '.join(sorted(fields))})"
            continue
        wanted = fields[key]
        if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct) and isinstance(value, dict):
            yield from _faults(value, wanted, path)
            continue
        if (listed := _struct_of_list(wanted)) and isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _table_faults(item, listed, (*path, str(index)))
                else:
                    yield path, f"each of '{'.'.join(path)}' must be a table"
            continue
        inner = get_args(wanted)[1:] if get_origin(wanted) is dict else ()
        if inner and isinstance(inner[0], type) and issubclass(inner[0], msgspec.Struct) and isinstance(value, dict):
            for name, table_of in value.items():
                if isinstance(table_of, dict):
                    yield from _faults(table_of, inner[0], (*path, name))
                else:
                    yield (*path, name), f"'{'.'.join((*path, name))}' must be a table"
            continue
        try:
            msgspec.convert(value, wanted)
        except msgspec.ValidationError as error:
            yield path, _type_words(f"'{_dotted(path)}'", str(error), wanted)


def _dotted(path: _Path) -> str:
    """A key as a person writes it; the place in a list of tables is told by the line."""
    return ".".join(part for part in path if not part.isdigit())


def _struct_of_list(wanted: Any) -> type[msgspec.Struct] | None:
    """The struct of ``tuple[Struct, ...]``, which is a list of tables; else None."""
    (inner, *_) = get_args(wanted) or (None,)
    listed = get_origin(wanted) is tuple and isinstance(inner, type) and issubclass(inner, msgspec.Struct)
    return inner if listed else None


def _table_faults(table: Mapping[str, Any], kind: type[msgspec.Struct], at: _Path) -> Iterator[_Fault]:
    """As ``_faults``, of a table in a list: what it must have is looked for too."""
    faults = list(_faults(table, kind, at))
    yield from faults
    missing = [f.name for f in msgspec.structs.fields(kind) if f.required and f.name not in table]
    if missing and not faults:
        yield at, f"[[{at[0]}]] needs '{missing[0]}'"


def _type_words(key: str, message: str, wanted: Any) -> str:
    """msgspec's message in a user's words: ``'instances' must be a whole number, not text in quotes``."""
    if message.startswith("Invalid enum value"):
        choices = [c for part in (wanted, *get_args(wanted)) for c in get_args(part) if isinstance(c, str)]
        lists = [part for part in get_args(wanted) if get_origin(part) is list]
        return f"{key} must be one of {', '.join(dict.fromkeys(choices))}{', or a list' if lists else ''}"
    found = re.match(r"Expected `([^`]*)`, got `([^`]*)`", message)
    if not found:
        return f"{key} is wrong: {message}"
    kinds = [kind for kind in found[1].split(" | ") if kind != "null"]
    expected = " or ".join(_WORDS.get(kind, kind) for kind in kinds)
    each = "each value in " if "[" in message else ""
    return f"{each}{key} must be {expected}, not {_WORDS.get(found[2], found[2])}"


def _range_faults(config: ModelConfig) -> Iterator[_Fault]:
    for path, (least, most) in _RANGES.items():
        value: Any = config
        for key in path:
            value = getattr(value, key)
        if value is not None and not least <= value <= most:
            yield path, f"'{'.'.join(path)}' must be {least} to {most}, not {value}"
    if config.backend is not None and config.backend not in BACKENDS:
        yield ("backend",), f"unknown backend '{config.backend}' (known: {', '.join(BACKENDS)})"
    if config.limits.rate is not None and (fault := rate_fault(config.limits.rate)):
        yield ("limits", "rate"), f"'limits.rate': {fault}"
    if config.required and config.load == "lazy":
        yield ("load",), "a required model is loaded at the start: 'load' cannot be lazy"
    if config.filename is not None and not plain_name(config.filename):
        yield ("filename",), "'filename' must be a plain file name, without a folder"
    largest = config.batching.max or 1024
    if any(not 1 <= size <= largest for size in config.batching.preferred_sizes):
        yield ("batching", "preferred_sizes"), f"'batching.preferred_sizes' must each be 1 to {largest}"
    yield from _pad_faults(config.batching)
    yield from _tensor_faults(config)
    if isinstance(config.versions, list):
        if not config.versions or min(config.versions) < 1:
            yield ("versions",), "'versions' must list version numbers of 1 and up"
        elif len(set(config.versions)) != len(config.versions):
            yield ("versions",), "'versions' names a version twice"
    for name, shape in config.warmup.shapes.items():
        elements = 1
        for size in shape:
            elements *= max(size, 0)
        if any(size < 1 for size in shape):
            yield ("warmup", "shapes", name), f"the warm-up shape of '{name}' must have sizes of 1 and up"
        elif elements > MAX_WARMUP_ELEMENTS:
            yield (
                ("warmup", "shapes", name),
                f"the warm-up shape of '{name}' has over {MAX_WARMUP_ELEMENTS} elements",
            )
    yield from _pipeline_faults(config)
    yield from providers.faults(config)


def _pad_faults(batching: Batching) -> Iterator[_Fault]:
    """What is wrong with ``batching.pad`` whatever the model; ``padding.faults`` holds it against the model."""
    combinations = 1
    taken: dict[tuple[str, str, int], str] = {}
    filled: dict[str, int | float | bool] = {}
    for name, pad in batching.pad.items():
        at, key = ("batching", "pad", name), f"batching.pad.{name}"
        combinations *= len(pad.buckets) or 1
        if not pad.buckets:
            yield (*at, "buckets"), f"'{key}' needs 'buckets', a list of sizes"
        elif not 1 <= pad.buckets[0] <= pad.buckets[-1] <= _MOST_LENGTH or any(
            a >= b for a, b in pairwise(pad.buckets)
        ):
            yield (*at, "buckets"), f"'{key}.buckets' must be rising sizes of 1 and up, not {list(pad.buckets)}"
        if not pad.inputs:
            yield (*at, "inputs"), f"'{key}' needs 'inputs', each with its axis"
        for kind, axes in (("inputs", pad.inputs), ("outputs", pad.outputs)):
            for tensor, axis in axes.items():
                owner = taken.setdefault((kind, tensor, axis), name)
                told = f"'{key}.{kind}': the axis of '{tensor}'"
                if not 1 <= axis <= _MOST_AXES:
                    yield (*at, kind, tensor), f"{told} must be 1 to {_MOST_AXES}; 0 is the batch"
                elif owner != name:
                    yield (*at, kind, tensor), f"{told} is in 'batching.pad.{owner}' already"
        for tensor, value in pad.values.items():
            if isinstance(value, int) and abs(value) > _MOST_BYTES:
                yield (*at, "values", tensor), f"'{key}.values': the value of '{tensor}' is too large"
            if tensor not in pad.inputs:
                yield (*at, "values", tensor), f"'{key}.values' names '{tensor}', which is not in its 'inputs'"
            elif filled.setdefault(tensor, value) != value:
                yield (*at, "values", tensor), f"'{key}.values': '{tensor}' is filled with another value already"
    if combinations > MAX_BUCKETS:
        words = f"'batching.pad' makes {combinations} combinations of buckets, the most is {MAX_BUCKETS}"
        yield ("batching", "pad"), words
    if batching.pad and batching.max == 1:
        yield ("batching", "pad"), "'batching.pad' is for requests that share a run, but 'batching.max' is 1"


def _tensor_faults(config: ModelConfig) -> Iterator[_Fault]:
    for kind, tensors in (("inputs", config.inputs), ("outputs", config.outputs)):
        names: set[str] = set()
        for index, tensor in enumerate(tensors):
            at = (kind, str(index))
            if not tensor.name:
                yield (*at, "name"), f"the name of one of [[{kind}]] is empty"
            elif tensor.name in names:
                yield (*at, "name"), f"'{tensor.name}' is twice in [[{kind}]]"
            names.add(tensor.name)
            if any(not (size == -1 or 0 < size <= _MOST_LENGTH) for size in tensor.shape):
                yield (*at, "shape"), f"the sizes of '{tensor.name}' must be -1 (any) or 1 and up"
            if len(tensor.shape) > _MOST_AXES:
                yield (*at, "shape"), f"'{tensor.name}' has more than {_MOST_AXES} axes"


def located(message: str, text: str, filename: str) -> str:
    """A fault that was found later, with its line if it begins with a key of this file, as ``warmup.shapes: …``."""
    found = re.match(r"([A-Za-z_][\w.-]*): ", message)
    if found is None:
        return message
    path = tuple(found[1].split("."))
    lines = key_lines(text)
    if not any(key[:1] == path[:1] for key in lines):
        return message
    return f"{filename} line {_line(lines, path)}: {message}"


def _pipeline_faults(config: ModelConfig) -> Iterator[_Fault]:
    task = config.pipeline.get("task")
    if config.pipeline and task is None:
        yield ("pipeline",), "[pipeline] needs 'task'"
    elif config.pipeline and (not isinstance(task, str) or not task):
        yield ("pipeline", "task"), "'pipeline.task' must be text in quotes"
    elif config.backend == "pipeline" and not config.pipeline:
        yield ("backend",), "backend 'pipeline' needs a table [pipeline] with 'task'"
