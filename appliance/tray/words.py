"""Texts that fit into a menu, and amounts in them."""

import textwrap

_REASON_WIDTH = 64
_REASON_LINES = 4


def wrapped(text: str | None) -> list[str]:
    """A reason in at most four short lines."""
    return textwrap.wrap(text or "", _REASON_WIDTH, max_lines=_REASON_LINES, placeholder=" …", break_long_words=True)


def clip(text: str, limit: int) -> str:
    """One line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def clip_units(text: str, limit: int) -> str:
    """At most `limit` UTF-16 units, which is how Windows counts."""
    if _units(text) <= limit:
        return text
    while _units(text) > limit - 1:
        text = text[:-1]
    return text + "…"


def gib(count: int | None) -> str:
    """Bytes as GiB, without the unit."""
    return f"{(count or 0) / (1 << 30):.1f}"


def size(count: int) -> str:
    """Bytes with their unit, at least 1 MiB."""
    return f"{gib(count)} GiB" if count >= 1 << 30 else f"{max(1, round(count / (1 << 20)))} MiB"


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
