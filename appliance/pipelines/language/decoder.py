"""Token ids of an answer → its text, as they come. A character that is not whole yet is held back."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MOST_HELD = 8  # a character has at most four bytes, and a token at least one
_CONTEXT = 8


class Decoder:
    """One answer's. ``silent``: ids that are no text. ``before``: the prompt's ids where the text goes on from the
    prompt: some tokenizers write a space between two words only."""

    def __init__(self, tokenizer: "Tokenizer", silent: Collection[int], before: Sequence[int] = ()) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._silent = silent
        self._fresh = DecodeStream
        context = [token for token in before[-_CONTEXT:] if token not in silent]
        self._stream = DecodeStream(ids=context, skip_special_tokens=False)
        self._held: list[int] = []

    def feed(self, token: int) -> str:
        """The text that is whole with this token, often ""."""
        if token in self._silent:
            return ""
        self._held.append(token)
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception:  # noqa: BLE001 - the library has no type of its own for bytes that make no text
            return self._give_up()
        if text is None:
            return self._give_up() if len(self._held) >= _MOST_HELD else ""
        self._held.clear()
        return text

    def rest(self) -> str:
        """What is held back at the end of the answer: the beginning of a character comes as U+FFFD."""
        return self._give_up() if self._held else ""

    def _give_up(self) -> str:
        """What is held back will be no whole character any more."""
        text = self._tokenizer.decode(self._held, skip_special_tokens=False)
        self._held.clear()
        self._stream = self._fresh(skip_special_tokens=False)
        return text
