"""How long a lane waits for more requests, and how many it takes. Pure; all of it only where a model asks for it."""

from collections.abc import Sequence


def hold_s(rows: int, goal: int, age_s: float, delay_s: float) -> float:
    """Seconds to wait for more items, or 0 to start now.

    ``rows``: items that could share the run now; ``goal``: items worth waiting for; ``age_s``: how long the first
    has waited; ``delay_s``: the longest it may be held for others.
    """
    return 0.0 if rows >= goal else max(0.0, delay_s - age_s)


def goal_of(preferred: Sequence[int], max_batch: int) -> int:
    """The number of items that ends the waiting: the largest preferred size, else the largest batch."""
    return min(max(preferred, default=max_batch), max_batch)


def rows_to_take(rows: int, preferred: Sequence[int], max_batch: int) -> int:
    """The most items to take of ``rows`` that wait: the largest preferred size that can be filled, else all."""
    return max((size for size in preferred if size <= rows), default=max_batch)
