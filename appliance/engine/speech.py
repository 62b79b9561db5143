"""The first words of a loaded language model: they make it fast, and show that it answers. (Child side.)"""

import msgspec
import numpy as np

from appliance.backends.base import Session
from appliance.errors import ModelLoadError
from appliance.models.spec import GenerationOptions
from appliance.models.tensors import Array

_TOKENS = 4
OUTPUTS = ("token_ids", "logprobs", "finish")


def speak(session: Session) -> tuple[str, ...]:
    """Have it answer a prompt of one token with a few; notes for a person.

    Raises ModelLoadError if no answer comes of it, and what ``Session.stream`` does.
    """
    options = np.empty(1, dtype=object)
    options[0] = msgspec.json.encode(GenerationOptions(max_tokens=_TOKENS, temperature=0, ignore_end=True))
    inputs: dict[str, Array] = {"input_ids": np.zeros(1, np.int32), "options": options}
    said = sum(len(part[0]) for part in session.stream(inputs, OUTPUTS, session.cancellation()))
    if not said:
        raise ModelLoadError("the language model gives no token at warm-up")
    return ()
