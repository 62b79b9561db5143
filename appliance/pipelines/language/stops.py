"""Stop strings in a text that comes in pieces. Held back is only what may be the beginning of one."""

from collections.abc import Sequence


class StopStrings:
    """``hit``: one was found; nothing of it, and nothing behind it, is told. The one that ends first counts, and of
    those the longest, so that it does not matter in which pieces a text comes."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def feed(self, text: str) -> str:
        """What may be told now."""
        if self.hit:
            return ""
        if not self._stops:
            return text
        text, self._held = self._held + text, ""
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit = True
            return text[: min(found)[1]]
        keep = max(overlap(text, stop) for stop in self._stops)
        if keep:
            text, self._held = text[:-keep], text[-keep:]
        return text

    def rest(self) -> str:
        """What was held back and is told after all: the answer has ended."""
        text, self._held = self._held, ""
        return text


def overlap(text: str, mark: str) -> int:
    """How many characters at the end of ``text`` are the beginning of ``mark``, without being all of it."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
