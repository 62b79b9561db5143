"""A language model's session, asked: its answers in one piece, or read in a thread."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from appliance import backends
from appliance.backends.base import LoadRequest, Session
from appliance.models.spec import GenerationOptions, ModelConfig

OUTPUTS = ("token_ids", "logprobs", "finish")


def opened(folder: Path, **config: Any) -> Session:
    return backends.get("genai").open(LoadRequest("m", folder, folder, "cpu", 0, ModelConfig(**config)))


def inputs(prompt: list[int], **options: Any) -> dict[str, Any]:
    told = np.empty(1, dtype=object)
    told[0] = msgspec.json.encode(GenerationOptions(**{"max_tokens": 5, "temperature": 0, **options}))
    ids = np.array(prompt, np.int32)
    ids.flags.writeable = False  # as they come out of a frame
    return {"input_ids": ids, "options": told}


def parts(session: Session, prompt: list[int], **options: Any) -> list[list[Any]]:
    return list(session.stream(inputs(prompt, **options), OUTPUTS, session.cancellation()))


def answer(session: Session, prompt: list[int], **options: Any) -> tuple[list[int], str]:
    """The tokens, and how it ended."""
    found = parts(session, prompt, **options)
    finish = [str(f, "ascii") for _, _, ends in found for f in ends]
    assert len(finish) == 1
    assert found[-1][2].size == 1
    return [int(i) for ids, _, _ in found for i in ids], finish[0]


class Reader(threading.Thread):
    """A stream that is read in a thread: its tokens, and its error."""

    def __init__(self, session: Session, prompt: list[int], **options: Any) -> None:
        super().__init__(daemon=True)
        self.handle = session.cancellation()
        self.said: list[int] = []
        self.error: Exception | None = None
        self._parts = session.stream(inputs(prompt, **options), OUTPUTS, self.handle)
        self.start()

    def run(self) -> None:
        try:
            for ids, _, _ in self._parts:
                self.said += ids.tolist()
        except Exception as error:
            self.error = error

    def over(self) -> "Reader":
        self.join(30)
        assert not self.is_alive()
        return self
