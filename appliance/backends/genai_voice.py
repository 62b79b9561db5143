"""An answer in the making with the library's ``Generator``: the prompt is read in pieces, then said token by token.

All of it happens in the decode thread: the library holds Python's interpreter while it computes.
"""

from typing import Any

import numpy as np
import onnxruntime_genai as og

from appliance.backends import onnx_errors
from appliance.backends.genai_stream import Stream
from appliance.errors import InvalidInput
from appliance.models.spec import GenerationOptions

_MOST_SEED = 2**31
_GUIDANCE = ("error creating grammar", "unsupported guidance")


class Voice:
    """``Generator`` keeps the KV cache, of the length of prompt and answer, until ``close``."""

    def __init__(self, model: Any, stream: Stream, ends: frozenset[int], vocabulary: int) -> None:
        """Raises ApplianceError, DeviceLost."""
        self.stream = stream
        options = stream.options
        self._at = 0
        self._stops = frozenset(options.stop_ids) | (frozenset() if options.ignore_end else ends)
        self._counts: dict[int, int] = {}
        self._penalised = bool(options.frequency_penalty or options.presence_penalty)
        try:
            params = og.GeneratorParams(model)
            params.set_search_options(**search_options(options, stream.prompt.size, vocabulary))
            if options.guidance is not None:
                params.set_guidance(*options.guidance)
            self._generator: Any = og.Generator(model, params)
        except Exception as error:  # noqa: BLE001 - the library raises nothing but RuntimeError
            raise guidance_error(error) or onnx_errors.run_error(error, False) from None

    def read(self, tokens: int) -> bool:
        """Read the next ``tokens`` of the prompt; whether that was all of it. Raises ApplianceError, DeviceLost."""
        piece = self.stream.prompt[self._at : self._at + tokens]
        try:
            self._generator.append_tokens(piece)
        except Exception as error:  # noqa: BLE001 - as above
            raise onnx_errors.run_error(error, False) from None
        self._at += piece.size
        return self._at >= self.stream.prompt.size

    def speak(self) -> bytes | None:
        """Say one more token to the stream; its finish when that was the last. Raises ApplianceError, DeviceLost."""
        stream = self.stream
        try:
            logits = self._logits()
            self._generator.generate_next_token()
            token = int(self._generator.get_next_tokens()[0])
        except Exception as error:  # noqa: BLE001 - as above
            raise onnx_errors.run_error(error, False) from None
        if token in self._stops:
            return b"stop"
        stream.say(token, None if logits is None else log_probability(logits, token))
        if self._penalised:
            self._counts[token] = self._counts.get(token, 0) + 1
        return b"length" if stream.said >= stream.options.max_tokens else None

    def close(self) -> None:
        self._generator = None

    def _logits(self) -> Any:
        """The model's word on all tokens (FP32[vocabulary]) where it is wanted; what was said is then penalised."""
        options = self.stream.options
        if not self._penalised and not options.logprobs:
            return None
        logits = self._generator.get_logits()
        told = logits.reshape(-1)[-logits.shape[-1] :].copy() if options.logprobs else None
        if self._counts:
            at = np.fromiter(self._counts, np.int64, len(self._counts))
            times = np.fromiter(self._counts.values(), np.float32, len(self._counts))
            logits[..., at] -= options.frequency_penalty * times + options.presence_penalty
            self._generator.set_logits(logits)
        return told


def search_options(options: GenerationOptions, prompt: int, vocabulary: int) -> dict[str, Any]:
    """The library's own. ``prompt``: its tokens. All that a folder's configuration could set is set."""
    length = prompt + options.max_tokens
    greedy = is_greedy(options)
    found: dict[str, Any] = {
        "max_length": length,
        # Below this length the model's ends are masked; a grammar that is through has nothing left but them.
        "min_length": length if options.ignore_end and options.guidance is None else 0,
        "do_sample": not greedy,
        "repetition_penalty": float(options.repetition_penalty),
        "num_beams": 1,
        "num_return_sequences": 1,
        "batch_size": 1,
    }
    if not greedy:
        found |= {
            "temperature": float(options.temperature),
            "top_p": float(options.top_p),
            "top_k": min(options.top_k, vocabulary),
            "random_seed": -1 if options.seed is None else library_seed(options.seed),
        }
    return found


def is_greedy(options: GenerationOptions) -> bool:
    """Whether only the likeliest token is ever said."""
    return options.temperature == 0 or options.top_p == 0 or options.top_k == 1


def library_seed(seed: int) -> int:
    """The library's are whole numbers of 31 bits."""
    return seed % _MOST_SEED


def log_probability(logits: Any, token: int) -> float:
    """Natural logarithm of the softmax of ``logits`` (FP32[n]) at ``token``."""
    most = logits.max()
    return float(logits[token] - most - np.log(np.exp(logits - most).sum()))


def guidance_error(error: Exception) -> InvalidInput | None:
    """If it is for a schema or grammar that the library cannot read: that, in its words."""
    text = " ".join(str(error).split())
    if not any(words in text.lower() for words in _GUIDANCE):
        return None
    return InvalidInput(f"the answer cannot be guided so: {text[:300]}", param="guidance")
