"""A language model in ONNX Runtime GenAI's format whose answers can be worked out by hand.

After tokens whose ids sum up to s (mod the vocabulary) the likeliest next one is s + 1, then s + 2 and so on: the
score of s + 1 + d is -d/2. The ids are what it keeps in its KV cache, so an answer is right only if that is.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

VOCABULARY = 32
END = 0


def sums(folder: Path, *, context: int = 64, vocabulary: int = VOCABULARY, **config: Any) -> Path:
    """Makes the folder. ``config``: more keys of ``genai_config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    _model(folder / "model.onnx", vocabulary)
    names = {
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    decoder = {
        "session_options": {"provider_options": []},
        "filename": "model.onnx",
        "head_size": 1,
        "hidden_size": 1,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        **names,
    }
    told: dict[str, Any] = {
        "model": {
            "type": "llama",
            "bos_token_id": 1,
            "pad_token_id": END,
            "eos_token_id": END,
            "context_length": context,
            "vocab_size": vocabulary,
            "decoder": decoder,
        },
        "search": {"max_length": context, "past_present_share_buffer": False, "top_k": 50},
    }
    (folder / "genai_config.json").write_text(json.dumps(told | config))
    return folder


def greedy(prompt: Sequence[int], tokens: int, vocabulary: int = VOCABULARY) -> list[int]:
    """What it answers; up to its end, which is not among them."""
    said: list[int] = []
    total = sum(prompt)
    while len(said) < tokens and (token := (total + 1) % vocabulary) != END:
        said.append(token)
        total += token
    return said


def log_probability(distance: int = 0, vocabulary: int = VOCABULARY) -> float:
    """Of the token that is so far from the likeliest."""
    return -distance / 2 - math.log(sum(math.exp(-d / 2) for d in range(vocabulary)))


def _model(path: Path, vocabulary: int) -> None:
    rows, columns = np.indices((vocabulary, vocabulary))
    scores = (-((columns - rows - 1) % vocabulary) / 2).astype(np.float32)
    constants = {
        "scores": scores,
        "shape": np.array([1, 1, -1, 1], np.int64),
        "flat": np.array([1, -1], np.int64),
        "two": np.array(2, np.int64),
        "axis": np.array([2], np.int64),
        "most": np.array([2**31 - 1], np.int64),
        "size": np.array(vocabulary, np.int64),
        "one": np.array([1], np.int64),
        "after": np.array([2], np.int64),
        "zero": np.array([0], np.int64),
    }
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["ids", "shape"], ["new"]),
        helper.make_node("Concat", ["past_key_values.0.key", "new"], ["present.0.key"], axis=2),
        helper.make_node("Concat", ["past_key_values.0.value", "new"], ["present.0.value"], axis=2),
        helper.make_node("CumSum", ["present.0.key", "two"], ["running"]),
        helper.make_node("Shape", ["input_ids"], ["dims"]),
        helper.make_node("Slice", ["dims", "one", "after", "zero"], ["length"]),
        helper.make_node("Neg", ["length"], ["from"]),
        helper.make_node("Slice", ["running", "from", "most", "axis"], ["last"]),
        helper.make_node("Reshape", ["last", "flat"], ["totals"]),
        helper.make_node("Cast", ["totals"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mod", ["whole", "size"], ["state"]),
        helper.make_node("Gather", ["scores", "state"], ["logits"]),
    ]
    cache = [1, 1, "length", 1]
    graph = helper.make_graph(
        nodes,
        "sums",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "sequence"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, "total"]),
            helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, cache),
            helper.make_tensor_value_info("past_key_values.0.value", TensorProto.FLOAT, cache),
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "sequence", vocabulary]),
            helper.make_tensor_value_info("present.0.key", TensorProto.FLOAT, [1, 1, "total", 1]),
            helper.make_tensor_value_info("present.0.value", TensorProto.FLOAT, [1, 1, "total", 1]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
