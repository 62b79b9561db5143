"""A small tokenizer and small networks for the tasks on texts, with answers that can be worked out by hand.

The tokenizer splits at spaces and gives a word ``wN`` the id N + 10; a text becomes ``[CLS] … [SEP]`` (1, 2), a pair
``[CLS] … [SEP] … [SEP]`` with types 0 and 1.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto as T
from onnx import helper as h

from appliance.models.spec import ModelSpec, TensorSpec
from appliance.pipelines.base import Pipeline, PipelineContext
from appliance.pipelines.build import build
from tests.support import nets

WORDS = 200
PAD, CLS, SEP = 0, 1, 2


def tokenizer(folder: Path, truncation: int | None = None) -> Path:
    """``tokenizer.json`` in ``folder``."""
    vocabulary = {"[PAD]": PAD, "[CLS]": CLS, "[SEP]": SEP, "[UNK]": 3} | {f"w{n}": n + 10 for n in range(WORDS)}
    special = [("[PAD]", PAD), ("[CLS]", CLS), ("[SEP]", SEP)]
    first = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
    told: dict[str, Any] = {
        "version": "1.0",
        "truncation": truncation
        and {"direction": "Right", "max_length": truncation, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for c, i in special
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing", "single": first, "pair": first + second,
            "special_tokens": {c: {"id": c, "ids": [i], "tokens": [c]} for c, i in special},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(told))
    return folder


def embedder(folder: Path, types: bool = False) -> Path:
    """``last_hidden_state``[b, t] = (id, id², 1) and, if ``types``, the token's type as the fourth."""
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if types else [])
    axes = np.array([2], np.int64)
    nodes = [
        h.make_node("Cast", ["input_ids"], ["f"], to=T.FLOAT),
        h.make_node("Unsqueeze", ["f", "axes"], ["a"]),
        h.make_node("Mul", ["a", "a"], ["b"]),
        h.make_node("Cast", ["attention_mask"], ["mf"], to=T.FLOAT),
        h.make_node("Unsqueeze", ["mf", "axes"], ["m"]),
        h.make_node("Div", ["m", "m"], ["c"]),  # NaN where the mask is 0: nobody may look there
        h.make_node("Concat", ["a", "b", "c", *(["ty"] if types else [])], ["last_hidden_state"], axis=2),
    ]
    if types:
        nodes[:0] = [
            h.make_node("Cast", ["token_type_ids"], ["tf"], to=T.FLOAT),
            h.make_node("Unsqueeze", ["tf", "axes"], ["ty"]),
        ]
    nets.save(
        folder / "model.onnx",
        nodes,
        [(name, T.INT64, ["batch", "sequence"]) for name in names],
        [("last_hidden_state", T.FLOAT, ["batch", "sequence", 4 if types else 3])],
        {"axes": axes},
    )
    return tokenizer(folder)


def quantiser(folder: Path) -> Path:
    """Its activations are quantised as they come, with one scale for all of a run: neighbours change each other."""
    random = np.random.default_rng(0)
    sizes = np.exp(random.standard_normal((WORDS + 10, 1)) * 1.5)
    weights = {
        "table": (random.standard_normal((WORDS + 10, 32)) * sizes).astype(np.float32),
        "w": random.integers(-100, 100, (32, 16)).astype(np.int8),
        "zero": np.int8(0),
    }
    nodes = [
        h.make_node("Gather", ["table", "input_ids"], ["e"]),
        h.make_node("DynamicQuantizeLinear", ["e"], ["q", "scale", "point"]),
        h.make_node("MatMulInteger", ["q", "w", "point", "zero"], ["product"]),
        h.make_node("Cast", ["product"], ["f"], to=T.FLOAT),
        h.make_node("Mul", ["f", "scale"], ["last_hidden_state"]),
    ]
    nets.save(
        folder / "model.onnx",
        nodes,
        [(name, T.INT64, ["batch", "sequence"]) for name in ("input_ids", "attention_mask")],
        [("last_hidden_state", T.FLOAT, ["batch", "sequence", 16])],
        weights,
    )
    return tokenizer(folder)


def scorer(folder: Path) -> Path:
    """``logits``[b, 0] = (sum of the ids of type 1 - 100) / 100: a document of large words answers any question."""
    one = np.array([1], np.int64)
    nodes = [
        h.make_node("Mul", ["input_ids", "token_type_ids"], ["second"]),
        h.make_node("ReduceSum", ["second", "one"], ["sum"], keepdims=1),
        h.make_node("Cast", ["sum"], ["f"], to=T.FLOAT),
        h.make_node("Sub", ["f", "hundred"], ["g"]),
        h.make_node("Div", ["g", "hundred"], ["logits"]),
    ]
    nets.save(
        folder / "model.onnx",
        nodes,
        [(n, T.INT64, ["batch", "sequence"]) for n in ("input_ids", "attention_mask", "token_type_ids")],
        [("logits", T.FLOAT, ["batch", 1])],
        {"one": one, "hundred": np.float32(100)},
    )
    return tokenizer(folder)


class Counted:
    """A Caller that runs the folder's model here, and remembers the shapes of its runs."""

    def __init__(self, folder: Path) -> None:
        self.session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
        self.shapes: list[tuple[int, ...]] = []
        self.inputs: list[dict[str, Any]] = []

    async def infer(self, inputs: Any, *, model: str | None = None) -> dict[str, Any]:
        self.shapes.append(inputs["input_ids"].shape)
        self.inputs.append(dict(inputs))
        names = [o.name for o in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, dict(inputs)), strict=True))

    async def offload(self, work: Any, *args: Any) -> Any:
        return work(*args)


def spec_of(folder: Path, max_batch: int = 0) -> ModelSpec:
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])

    def tensor(arg: Any) -> TensorSpec:
        kind = {"tensor(int64)": "INT64", "tensor(float)": "FP32"}[arg.type]
        return TensorSpec(arg.name, kind, tuple(d if isinstance(d, int) else -1 for d in arg.shape))

    inputs, outputs = (tuple(map(tensor, t)) for t in (session.get_inputs(), session.get_outputs()))
    return ModelSpec(folder.name, "1", "onnx", "onnx", inputs, outputs, max_batch)


def pipeline(folder: Path, task: str | None, max_batch: int = 0, **options: Any) -> Any:
    """The pipeline of the model in ``folder``."""
    told = {**({"task": task} if task else {}), **options}
    found: Pipeline = build(PipelineContext(folder.name, told, spec_of(folder, max_batch), folders=(folder,)))
    return found
