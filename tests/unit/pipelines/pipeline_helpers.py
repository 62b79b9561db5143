"""A Caller for tests that runs ONNX Runtime in this process, and contexts of the embedded models."""

import asyncio
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import onnxruntime

from appliance.models.spec import ModelConfig, ModelSpec, TensorSpec
from appliance.models.tensors import Array
from appliance.pipelines.base import Answer, Item, Pipeline, PipelineContext
from appliance.pipelines.build import build

T = TypeVar("T")

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "assets" / "models"
PHOTOS = ROOT / "tests" / "photos"

_TYPES = {"tensor(float)": "FP32", "tensor(float16)": "FP16", "tensor(uint8)": "UINT8", "tensor(int64)": "INT64"}


@cache
def session(name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = MODELS / name / "1" / "model.onnx"
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Direct:
    """Runs models by their embedded names; ``own`` is what a pipeline's own model is."""

    def __init__(self, own: str) -> None:
        self.own = own
        self.shapes: list[tuple[str, tuple[int, ...]]] = []

    async def infer(self, inputs: Mapping[str, Array], *, model: str | None = None) -> dict[str, Array]:
        name = model or self.own
        self.shapes += [(name, array.shape) for array in inputs.values()]
        run = session(name)
        names = [o.name for o in run.get_outputs()]
        return dict(zip(names, run.run(names, dict(inputs)), strict=True))

    async def offload(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(work, *args)


class Canned:
    """Gives prepared outputs and remembers the inputs."""

    def __init__(self, outputs: Mapping[str, Array]) -> None:
        self.outputs = dict(outputs)
        self.inputs: dict[str, Array] = {}

    async def infer(self, inputs: Mapping[str, Array], *, model: str | None = None) -> dict[str, Array]:
        self.inputs = dict(inputs)
        return self.outputs

    async def offload(self, work: Callable[..., T], *args: Any) -> T:
        return work(*args)


def config(name: str) -> ModelConfig:
    return msgspec.convert(tomllib.loads((MODELS / name / "model.toml").read_text("utf-8")), ModelConfig)


def labels(name: str) -> tuple[str, ...]:
    path = MODELS / name / "labels.txt"
    return tuple(path.read_text("utf-8").split("\n")[:-1]) if path.exists() else ()


def spec_of(name: str) -> ModelSpec:
    run = session(name)

    def tensor(arg: Any) -> TensorSpec:
        return TensorSpec(arg.name, _TYPES[arg.type], tuple(d if isinstance(d, int) else -1 for d in arg.shape))

    return model_spec([tensor(a) for a in run.get_inputs()], [tensor(a) for a in run.get_outputs()], name)


def model_spec(inputs: list[TensorSpec], outputs: list[TensorSpec], name: str = "m") -> ModelSpec:
    return ModelSpec(name, "1", "onnx", "onnx", tuple(inputs), tuple(outputs))


def embedded(name: str, **extra: Any) -> Pipeline:
    spec = None if config(name).backend == "pipeline" else spec_of(name)
    return build(PipelineContext(name, {**config(name).pipeline, **extra}, spec, labels(name)))


def ask(pipeline: Pipeline, item: Item, call: Any, accept: str | None = None) -> Answer:
    return asyncio.run(pipeline.run(item, call, accept))


def ask_embedded(name: str, photo: str | bytes, accept: str | None = None, **parameters: Any) -> Answer:
    data = photo if isinstance(photo, bytes) else (PHOTOS / photo).read_bytes()
    return ask(embedded(name), Item("file", file=data, parameters=parameters), Direct(name), accept)
