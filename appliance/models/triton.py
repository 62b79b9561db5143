"""A Triton ``config.pbtxt`` → ``ModelConfig``, what it declares of tensors, and what is not used of it."""

import re
from typing import Any

import msgspec

from appliance.errors import ModelLoadError
from appliance.models.declared import FILENAME, Declared
from appliance.models.spec import Batching, DevicePolicy, Limits, ModelConfig, TensorSpec, Timeouts
from appliance.models.toml import MAX_INSTANCES, plain_name

_PLATFORMS = {"onnxruntime_onnx": "onnx", "pytorch_libtorch": "pytorch"}
_BACKENDS = {"onnxruntime": "onnx", "pytorch": "pytorch"}
_DATATYPES = {"TYPE_STRING": "BYTES"}  # the others are named alike behind TYPE_

_REFUSED = {
    "sequence_batching": "requests that belong together (sequences) are not served",
    "ensemble_scheduling": "ensembles of models are not served",
    "batch_input": "inputs that the server would have to make up are not served",
    "batch_output": "outputs split by an input's shape are not served",
    "model_operations": "operator libraries from model folders are never loaded",
    "model_repository_agents": "agents that check or change model files are not run",
}

_UNUSED = ("runtime", "optimization", "model_warmup", "cc_model_filenames", "metric_tags", "model_metrics")


class TritonConfig(msgspec.Struct, frozen=True):
    """``config.pbtxt`` as read.

    ``latest``: how many of the newest versions to serve where ``config.versions`` is ``"latest"``.
    ``label_file``: a plain file name in the model's folder, or None.
    """

    config: ModelConfig
    declared: Declared
    latest: int = 1
    label_file: str | None = None
    notes: tuple[str, ...] = ()


def read_pbtxt(text: str, name: str) -> TritonConfig:
    """The settings of model ``name``. Raises ModelLoadError: the field at fault and, where it is one of
    syntax, its line."""
    raw = _parse(text)
    _refuse(raw, name)
    notes: list[str] = [f"{field} is not used" for field in _UNUSED if _has(raw, field)]
    if raw.response_cache.enable:
        notes.append("response_cache is not used")
    declared = _declared(raw, notes)
    versions, latest = _versions(raw)
    instances, device = _instances(raw, notes)
    limits, timeouts = _queue(raw, notes)
    config = ModelConfig(
        backend=_BACKENDS.get(raw.backend) or _PLATFORMS.get(raw.platform) or "onnx",
        device=device,
        instances=instances,
        versions=versions,
        filename=_filename(raw),
        threads=_threads(raw, notes),
        # Triton's 0 is "no batch axis": nothing to merge along, which is 1 here.
        batching=_batching(raw, declared.max_batch),
        limits=limits,
        timeouts=timeouts,
    )
    return TritonConfig(config, declared, latest, _label_file(raw), tuple(f"{FILENAME}: {note}" for note in notes))


def _parse(text: str) -> Any:
    from google.protobuf import text_format

    from appliance.models.triton_schema import config_class

    try:
        return text_format.Parse(text, config_class()())
    except text_format.ParseError as error:
        words = re.sub(r"^\d+:\d+ : ", "", str(error))
        unknown = re.search(r'"appliance\.triton\.(\w+)" has no field named "([^"]*)"', words)
        if unknown:
            inside = "" if unknown[1] == "Config" else f" in {unknown[1]}"
            words = f"unknown field '{unknown[2]}'{inside}"
        words = _shorten(words)
        line = f" line {error.GetLine()}" if error.GetLine() else ""
        raise ModelLoadError(f"{FILENAME}{line}: {words}") from None
    except RecursionError:
        raise ModelLoadError(f"{FILENAME}: fields are nested too deeply") from None
    except ValueError as error:  # text that is not valid in a string field
        raise ModelLoadError(f"{FILENAME}: {_shorten(str(error))}") from None


def _shorten(words: str) -> str:
    # The parser names messages by our own package and quotes whole lines.
    words = re.sub(r"appliance\.triton\.(?:\w+Holder\.)?(\w+)", r"\1", words)
    words = words.replace("Message type ", "")
    words = " ".join(words.split()).rstrip(".")
    return words if len(words) <= 200 else words[:200] + "…"


def _has(raw: Any, field: str) -> bool:
    return any(found.name == field for found, _ in raw.ListFields())


def _refuse(raw: Any, name: str) -> None:
    """Raises for what is not served at all."""
    platform, backend = raw.platform, raw.backend
    if platform == "ensemble" or _has(raw, "ensemble_scheduling"):
        raise ModelLoadError(f"{FILENAME}: {_REFUSED['ensemble_scheduling']} (ensemble_scheduling)")
    if backend and backend not in _BACKENDS:
        raise ModelLoadError(f"{FILENAME}: backend '{backend}' is not served (only {', '.join(_BACKENDS)})")
    if platform and platform not in _PLATFORMS:
        raise ModelLoadError(f"{FILENAME}: platform '{platform}' is not served (only {', '.join(_PLATFORMS)})")
    for field, why in _REFUSED.items():
        if _has(raw, field):
            raise ModelLoadError(f"{FILENAME}: {why} ({field})")
    if raw.model_transaction_policy.decoupled:
        raise ModelLoadError(f"{FILENAME}: models that answer many times (decoupled) are not served")
    for tensor in (*raw.input, *raw.output):
        if _has(tensor, "reshape"):
            raise ModelLoadError(
                f"{FILENAME}: reshape of '{tensor.name}' is not served; give the model's own shape as dims"
            )
    if raw.name and raw.name != name:
        raise ModelLoadError(f"{FILENAME}: name is '{raw.name}', but the folder is '{name}'")


def _declared(raw: Any, notes: list[str]) -> Declared:
    if raw.max_batch_size < 0:
        raise ModelLoadError(f"{FILENAME}: max_batch_size must be 0 or more, not {raw.max_batch_size}")
    if raw.max_batch_size > 1024:
        raise ModelLoadError(f"{FILENAME}: max_batch_size must be at most 1024, not {raw.max_batch_size}")
    given = raw.HasField("max_batch_size") or raw.input or raw.output
    max_batch = raw.max_batch_size if given else None
    if any(tensor.allow_ragged_batch for tensor in raw.input):
        notes.append("allow_ragged_batch is not used: only requests of one shape are merged")
    tensors = [_tensors(raw.input, "input", max_batch), _tensors(raw.output, "output", max_batch)]
    return Declared(tensors[0], tensors[1], max_batch)


def _tensors(fields: Any, kind: str, max_batch: int | None) -> tuple[TensorSpec, ...]:
    found: dict[str, TensorSpec] = {}
    for field in fields:
        if not field.name:
            raise ModelLoadError(f"{FILENAME}: an {kind} has no name")
        if field.name in found:
            raise ModelLoadError(f"{FILENAME}: {kind} '{field.name}' is there twice")
        if any(size != -1 and size < 1 for size in field.dims):
            raise ModelLoadError(f"{FILENAME}: dims of '{field.name}' must be -1 or at least 1")
        typed = field.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[field.data_type].name
        datatype = "" if typed == "TYPE_INVALID" else _DATATYPES.get(typed, typed.removeprefix("TYPE_"))
        shape = tuple(field.dims)
        if shape and max_batch:
            shape = (-1, *shape)
        found[field.name] = TensorSpec(field.name, datatype, shape, optional=getattr(field, "optional", False))
    return tuple(found.values())


def _versions(raw: Any) -> tuple[Any, int]:
    policy = raw.version_policy
    if len(policy.ListFields()) > 1:
        raise ModelLoadError(f"{FILENAME}: version_policy must be one of latest, all, specific")
    if policy.HasField("all"):
        return "all", 1
    if policy.HasField("specific"):
        versions = sorted(set(policy.specific.versions))
        if not versions or versions[0] < 1:
            raise ModelLoadError(f"{FILENAME}: version_policy specific must list versions of 1 and up")
        return versions, 1
    return "latest", max(1, policy.latest.num_versions)


def _instances(raw: Any, notes: list[str]) -> tuple[int, DevicePolicy]:
    """How many lanes, and where. Groups of one kind add up; on a GPU machine the GPU's groups decide."""
    kinds: dict[str, int] = {}
    for group in raw.instance_group:
        kind = group.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number[group.kind].name
        if group.count < 0:
            raise ModelLoadError(f"{FILENAME}: count of an instance_group must be 1 or more, not {group.count}")
        kinds[kind] = kinds.get(kind, 0) + max(1, group.count)
        for field in ("gpus", "rate_limiter", "secondary_devices", "profile", "passive", "host_policy"):
            note = f"instance_group {field} is not used"
            if _has(group, field) and note not in notes:
                notes.append(note)
    cpu = kinds.pop("KIND_CPU", 0)
    instances = sum(kinds.values()) or cpu or 1
    if instances > MAX_INSTANCES:
        raise ModelLoadError(f"{FILENAME}: instance_group asks for {instances} instances (most: {MAX_INSTANCES})")
    if kinds and cpu:
        notes.append("instance_group KIND_CPU is not used beside one on the GPU")
    return instances, "cpu" if cpu and not kinds else "prefer"


def _queue(raw: Any, notes: list[str]) -> tuple[Limits, Timeouts]:
    batching = raw.dynamic_batching
    for field, why in {
        "preserve_ordering": "answers come when they are ready",
        "priority_levels": "requests carry their own priority",
        "default_priority_level": "requests carry their own priority",
        "priority_queue_policy": "requests carry their own priority",
    }.items():
        if _has(batching, field):
            notes.append(f"dynamic_batching {field} is not used: {why}")
    policy = batching.default_queue_policy
    queue_us = policy.default_timeout_microseconds
    delayed = policy.DESCRIPTOR.fields_by_name["timeout_action"].enum_type.values_by_name["DELAY"].number
    if queue_us and policy.timeout_action == delayed:
        notes.append("default_queue_policy timeout_action DELAY is not used, nor its timeout")
        queue_us = 0
    return (
        Limits(queue=policy.max_queue_size or None),
        Timeouts(queue_ms=min(-(-queue_us // 1000), 86_400_000) if queue_us else None),
    )


def _batching(raw: Any, max_batch: int | None) -> Batching:
    wish = raw.dynamic_batching
    # Triton's 0 is "no batch axis": nothing to merge along, which is 1 here.
    most = None if max_batch is None else max(1, max_batch)
    sizes = tuple(size for size in wish.preferred_batch_size if 1 <= size <= (most or 1024))
    return Batching(most, min(wish.max_queue_delay_microseconds / 1000, 10_000.0), sizes)


def _threads(raw: Any, notes: list[str]) -> int | None:
    threads = None
    for parameter in raw.parameters:
        value = parameter.value.string_value
        if parameter.key == "intra_op_thread_count" and re.fullmatch(r"[1-9]\d{0,2}", value) and int(value) <= 256:
            threads = int(value)
        else:
            notes.append(f"parameter '{parameter.key[:80]}' is not used")
    return threads


def _filename(raw: Any) -> str | None:
    name: str = raw.default_model_filename
    if name and not plain_name(name):
        raise ModelLoadError(f"{FILENAME}: default_model_filename must be a plain file name, without a folder")
    return name or None


def _label_file(raw: Any) -> str | None:
    names = [output.label_filename for output in raw.output if output.label_filename]
    for name in names:
        if not plain_name(name):
            raise ModelLoadError(f"{FILENAME}: label_filename must be a plain file name, without a folder")
    return names[0] if names else None
