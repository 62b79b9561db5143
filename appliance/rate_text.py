"""How a rate is written, in settings and in ``model.toml``: ``100/second``, ``5/10 seconds``, ``1000/hour``."""

import re

_FORM = re.compile(r"[1-9][0-9]{0,8} ?/ ?([1-9][0-9]{0,4} )?(second|minute|hour|day)s?")


def rate_fault(text: str) -> str | None:
    """What is wrong with ``text`` as a rate, in words; None for a good one."""
    if _FORM.fullmatch(text):
        return None
    return f"'{text[:64]}' is not a rate (such as 100/second, 20/minute, 5/10 seconds, 1000/day)"
