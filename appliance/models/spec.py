"""What is known of one loaded model version: its tensors, its batch axis, its settings from ``model.toml``."""

from typing import Any, Literal

import msgspec

DevicePolicy = Literal["require", "prefer", "cpu"]
_Integers = Literal["UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"]
Datatype = Literal["BOOL", _Integers, "FP16", "FP32", "FP64", "BF16", "BYTES"]
"""As ``tensors.DATATYPES``, which needs numpy."""
Provider = Literal["tensorrt", "cuda", "cpu"]


class TensorSpec(msgspec.Struct, frozen=True):
    """One input or output. ``shape`` has -1 for a dynamic axis; ``axes`` the names the file gives them."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...] = ()
    optional: bool = False

    def describe(self) -> str:
        """For messages: ``FP32[-1,3,224,224]``."""
        return f"{self.datatype}[{','.join(str(d) for d in self.shape)}]"


class Pad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A length in which requests may differ and share a run all the same: it is filled up to the next bucket.

    ``buckets``: rising. ``inputs``: input → its axis of this length, never 0; ``values``: input → what it is filled
    with, 0 where not named. ``outputs``: output → its axis of this length, which is cut back to the request's own.
    """

    buckets: tuple[int, ...] = ()
    inputs: dict[str, int] = {}
    outputs: dict[str, int] = {}
    values: dict[str, int | float | bool] = {}


class Batching(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``max``: the most items of one run; 1 switches batching off; None: found out from the file.

    ``max_delay_ms``: how long a free lane may wait for more items; 0: it never waits. ``preferred_sizes``: a run
    takes the largest of these that can be filled, and more are waited for only up to the largest. ``pad``: the
    operator's word that these lengths may be filled up; their names are free.
    """

    max: int | None = None
    max_delay_ms: float = 0.0
    preferred_sizes: tuple[int, ...] = ()
    pad: dict[str, Pad] = {}


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Per-model limits; None takes the server's. ``queue``: waiting requests. ``rate``: such as ``20/second``."""

    queue: int | None = None
    rate: str | None = None


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Milliseconds; None takes the server's. ``first_token_ms``: of a language model, within its run."""

    queue_ms: int | None = None
    run_ms: int | None = None
    first_token_ms: int | None = None


class Warmup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``shapes``: input name → full shape of the warm-up run; inputs not named get a minimal shape."""

    enabled: bool = True
    shapes: dict[str, list[int]] = {}


class MemoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run takes of the device's memory, if it is known better than measured: ``run_bytes`` for any run, and
    ``item_bytes`` for each item of it."""

    run_bytes: int | None = None
    item_bytes: int | None = None


class TensorDeclaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input or output as ``model.toml`` declares it. ``shape`` has -1 for an axis of any size."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...] = ()


class PyTorchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What only PyTorch models have.

    ``dtype``: what floating weights and inputs are turned into at load; what goes in and out stays as declared.
    ``channels_last``: pictures lie in memory with their channels last. ``compile``: ``torch.compile`` at load.
    ``module``, ``method``: the part of a TorchScript file that is run, if it is not the whole.
    """

    dtype: Literal["fp16", "bf16", "fp32"] | None = None
    channels_last: bool = False
    compile: bool = False
    module: str = ""
    method: str = "forward"


class TensorRTConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How TensorRT builds the engine of a model whose ``providers`` name it.

    ``fp16``, ``int8``: it may compute so. ``calibration_table``: a file in the model's folder with the ranges for
    ``int8``, for models that are not quantised themselves. ``timing_cache``: what it measured for one model is used
    for the next. ``workspace_bytes``: the most that it may take to build and to run; None: the budget.
    ``optimization_level``: 0 to 5, how long it looks for faster code; None: TensorRT's own choice.
    """

    fp16: bool = False
    int8: bool = False
    calibration_table: str | None = None
    timing_cache: bool = True
    workspace_bytes: int | None = None
    optimization_level: int | None = None


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of ``model.toml``, or what a foreign layout was translated to. Every key has a default.

    ``versions``: ``"latest"``, ``"all"`` or a list of version numbers to serve.
    ``pipeline``: the table ``[pipeline]`` as written; its ``task`` names the pipeline, which checks the rest.
    ``devices``: those that each get a copy, ``["all"]`` for every one; none named: one copy, on the device where it
    fits best. ``instances``: runs of one copy at once.
    ``finite``: whether floating outputs must be; None: those that were at warm-up.
    ``inputs``, ``outputs``: whole shapes, in the order of the model's own; for files that do not tell them.
    ``providers``: what may run an ONNX model, the best first; none: by ``device``.
    ``rename_inputs``/``rename_outputs`` are not here on purpose: names are the file's own.
    """

    backend: str | None = None
    device: DevicePolicy = "prefer"
    devices: tuple[str, ...] = ()
    instances: int = 1
    required: bool = False
    load: Literal["eager", "lazy", "manual"] = "eager"
    keep_alive_s: float = 0.0
    versions: Literal["latest", "all"] | list[int] = "latest"
    filename: str | None = None
    description: str = ""
    threads: int | None = None
    finite: bool | None = None
    batching: Batching = Batching()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    warmup: Warmup = Warmup()
    memory: MemoryConfig = MemoryConfig()
    inputs: tuple[TensorDeclaration, ...] = ()
    outputs: tuple[TensorDeclaration, ...] = ()
    pytorch: PyTorchConfig = PyTorchConfig()
    providers: tuple[Provider, ...] = ()
    tensorrt: TensorRTConfig = TensorRTConfig()
    pipeline: dict[str, Any] = {}
    backend_options: dict[str, Any] = {}


class Generation(msgspec.Struct, frozen=True):
    """What a language model's backend says of it.

    ``context``: most tokens of prompt and answer together; ``streams``: most answers at once; ``token_bytes``: what
    the KV cache takes of the device for one token; ``vocabulary``: ids are below it; ``ends``: ids that end an
    answer; ``can``: what the backend can do beside sampling: ``guidance``, ``logprobs``, ``repetition_penalty``,
    ``frequency_penalty``, ``presence_penalty``, ``seed``, ``merges`` (streams share their runs).

    Such a model has the inputs ``input_ids`` INT32[-1] (the prompt) and ``options`` BYTES[1] (the JSON of a
    ``GenerationOptions``), and the outputs ``token_ids`` INT32[-1] (the new ones of each part, without the end id),
    ``logprobs`` FP32[-1] (one each, or none) and ``finish`` BYTES[-1] (in the last part alone, one of ``stop`` and
    ``length``; else empty).
    """

    context: int
    streams: int
    token_bytes: int
    vocabulary: int
    ends: tuple[int, ...] = ()
    can: tuple[str, ...] = ()


class GenerationOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an answer is made. ``max_tokens``: of the answer. ``temperature`` 0: greedy. ``top_k`` 0: all.

    ``guidance``: (kind, data), the kind one of ``json_schema``, ``regex``, ``lark_grammar``. ``stop_ids``: ids that
    end this answer too. ``ignore_end``: the model's own ends do not count.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logprobs: bool = False
    guidance: tuple[str, str] | None = None
    stop_ids: tuple[int, ...] = ()
    ignore_end: bool = False


class ModelSpec(msgspec.Struct, frozen=True):
    """One loaded version as its backend found it.

    ``max_batch``: 0 when requests are never merged, else the most items of one merged run.
    ``good_batch``: the size of a merged run beyond which each item takes longer, as measured; 0: not known.
    ``batch_limit``: the largest first axis of one request, where the operator declared one; 0: not limited.
    ``pads``: the lengths that are filled up; none where requests are never merged.
    ``device``: what runs it: ``cuda:0``, ``cpu``. ``degraded``: why it is not what was asked for, or None.
    ``generation``: of a language model, which answers in streams only. ``engine``: the id of the engine that has
    this copy, set by the host.
    """

    name: str
    version: str
    platform: str
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int = 0
    good_batch: int = 0
    batch_limit: int = 0
    device: str = "cpu"
    providers: tuple[str, ...] = ()
    degraded: str | None = None
    cpu_nodes: int = 0
    notes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    config: ModelConfig = ModelConfig()
    pads: dict[str, Pad] = {}
    generation: Generation | None = None
    engine: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """Names this copy among all that are loaded."""
        return (self.name, self.version, self.engine) if self.engine else (self.name, self.version)

    @property
    def lanes(self) -> int:
        """Runs of one loaded copy at once."""
        return self.generation.streams if self.generation is not None else self.config.instances

    def input(self, name: str) -> TensorSpec | None:
        """The input of this name, or None."""
        return next((t for t in self.inputs if t.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        """The output of this name, or None."""
        return next((t for t in self.outputs if t.name == name), None)
