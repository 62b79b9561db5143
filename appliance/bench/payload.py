"""What the clients send: tensors of the model's own form, or a picture for a model with a task."""

import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from appliance.bench.faults import BenchError
from appliance.bench.options import Options
from appliance.engine.warmup import sample, shape_for
from appliance.models.folder import ModelFolder
from appliance.models.spec import TensorSpec
from appliance.models.tensors import Array, Buffer, count, encode_bytes, numpy_dtype
from appliance.system import paths

VARIANTS = 4
"""Different bodies that the clients send in turn, so that no two requests in a row are the same."""

_MOST_BYTES = 1 << 30
_SAMPLES = {"classify": "cat.jpg", "detect": "cat.jpg", "segment": "person.jpg", "ocr": "text.png"}


class Payload(msgspec.Struct, frozen=True):
    """``path``: the route below the address. ``bodies``: equal in form. ``about``: in words, for the report."""

    path: str
    headers: dict[str, str]
    bodies: tuple[bytes, ...]
    about: str
    notes: tuple[str, ...] = ()


def read_shapes(texts: Sequence[str]) -> dict[str, list[int]]:
    """``["images=1,3,640,640"]`` → shapes by input. Raises BenchError."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        numbers = sizes.replace("x", ",").split(",")
        if not equals or not name or not all(n.strip().isdigit() and 0 < int(n) < 1 << 31 for n in numbers):
            raise BenchError(f"--shape {text[:128]}: write it as NAME=1,3,640,640, with sizes of 1 and up", 2)
        found[name] = [int(n) for n in numbers]
    return found


def chosen(metadata: Mapping[str, Any], folder: ModelFolder | None, options: Options) -> Payload:
    """What suits the model and was asked for. Raises BenchError."""
    task = metadata["parameters"].get("task")
    given = read_shapes(options.shapes)
    with_task = task not in (None, "tensors") and not options.tensors and not given
    if with_task:
        return picture(options.model, task, options.picture)
    if options.picture is not None:
        raise BenchError(f"'{options.model}' has no task that takes a picture", 2)
    if not metadata["inputs"]:
        raise BenchError(f"'{options.model}' takes no tensors of its own")
    warmup = folder.config.warmup.shapes if folder is not None else {}
    return tensors(options.model, specs(metadata), warmup, given)


def tensors(
    model: str, inputs: Sequence[TensorSpec], warmup: Mapping[str, Sequence[int]], given: Mapping[str, Sequence[int]]
) -> Payload:
    """One item of random values a request, as binary tensors: floats in 0…1, integers 0 or 1, short texts.

    Sizes of free axes: ``given``, else ``warmup`` (its first axis set to one item where it is free), else 1.
    Raises BenchError for shapes that are not the model's.
    """
    unknown = [name for name in given if name not in {t.name for t in inputs}]
    if unknown:
        names = ", ".join(t.name for t in inputs) or "none at all"
        raise BenchError(f"--shape: the model has no input '{unknown[0]}' (it has: {names})", 2)
    shapes: dict[str, tuple[int, ...]] = {}
    notes = []
    for spec in inputs:
        if spec.name in given:
            shapes[spec.name] = _fitting(spec, given[spec.name])
            continue
        shapes[spec.name] = shape_for(spec, 1, warmup, batched=bool(spec.shape) and spec.shape[0] < 0)
        guessed = [axis for axis, size in enumerate(spec.shape) if size < 0 and axis and spec.name not in warmup]
        if guessed:
            axes = ", ".join(map(str, guessed))
            notes.append(f"'{spec.name}' {spec.describe()}: size 1 on its free axes {axes}; set it with --shape")
    if 8 * VARIANTS * sum(count(shape) for shape in shapes.values()) > _MOST_BYTES:
        raise BenchError("the inputs are too large to be held ready; give smaller ones with --shape")
    bodies = tuple(_body(inputs, shapes, seed) for seed in range(1, VARIANTS + 1))
    header, _ = bodies[0]
    about = ", ".join(f"{t.name} {t.datatype}[{','.join(map(str, shapes[t.name]))}]" for t in inputs)
    return Payload(
        f"/v2/models/{model}/infer",
        {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(header)},
        tuple(body for _, body in bodies),
        f"random tensors {about}",
        tuple(notes),
    )


def picture(model: str, task: str | None, file: Path | None) -> Payload:
    """``file``, or the sample picture for ``task``, to the task route. Raises BenchError."""
    path = file or paths.assets() / "selftest" / _SAMPLES.get(task or "", "cat.jpg")
    try:
        body = path.read_bytes()
    except OSError as error:
        raise BenchError(f"{path.name}: cannot be read: {error.strerror}", 2) from None
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Payload(f"/predict/{model}", {"Content-Type": kind}, (body,), f"{path.name} ({len(body):,} bytes)")


def specs(metadata: Mapping[str, Any]) -> list[TensorSpec]:
    """The inputs in a model's metadata."""
    return [TensorSpec(t["name"], t["datatype"], tuple(t["shape"])) for t in metadata["inputs"]]


def _fitting(spec: TensorSpec, shape: Sequence[int]) -> tuple[int, ...]:
    if len(shape) != len(spec.shape) or any(
        want not in (-1, size) for size, want in zip(shape, spec.shape, strict=True)
    ):
        raise BenchError(f"--shape: {list(shape)} does not fit input '{spec.name}' {spec.describe()}", 2)
    return tuple(shape)


def _body(inputs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]], seed: int) -> tuple[int, bytes]:
    """(length of the JSON part, the whole body)."""
    parts = [_raw(spec, sample(spec, shapes[spec.name], seed)) for spec in inputs]
    entries = [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": list(shapes[spec.name]),
            "parameters": {"binary_data_size": memoryview(part).nbytes},
        }
        for spec, part in zip(inputs, parts, strict=True)
    ]
    header = msgspec.json.encode({"inputs": entries, "parameters": {"binary_data_output": True}})
    return len(header), b"".join([header, *parts])


def _raw(spec: TensorSpec, array: Array) -> Buffer:
    if spec.datatype == "BYTES":
        return encode_bytes(array.reshape(-1).tolist())
    return array.astype(numpy_dtype(spec.datatype), copy=False).tobytes()
