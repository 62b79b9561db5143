"""How many items a run is worth merging: on a CPU a larger batch may take longer for each item. (Child side.)"""

import time
from collections.abc import Callable, Mapping

_BUDGET_S = 1.5
_QUICK_S = 0.001
_TOLERANCE = 1.04


def good_batch(run: Callable[[int], object], largest: int, clock: Callable[[], float] = time.perf_counter) -> int:
    """The size up to which merging pays, measured: 1, 2, 4 … ``largest``, each run twice, the quicker one counts.

    ``run(n)`` runs a batch of n; all of them ran before, so none is cold. Sizes that would take too long to measure
    are not; they count as good where the last ones still gained. Raises what ``run`` raises.
    """
    end = clock() + _BUDGET_S
    times: dict[int, float] = {}
    for size in (*(1 << n for n in range(largest.bit_length()) if 1 << n < largest), largest):
        if times and clock() + 2 * size * max(times.values()) / max(times) > end:
            break
        taken = []
        for _ in range(2):
            began = clock()
            run(size)
            taken.append(clock() - began)
        times[size] = min(taken)
    return best(times, largest)


def best(times: Mapping[int, float], largest: int) -> int:
    """The smallest size whose items take no more than 4 % longer than those of the best one: callers wait less in
    small batches. ``times``: of a run, in seconds, by its size, at least one; ``largest`` where that is not measured
    and the last size was the best, or where a run is so short that what is around it counts more."""
    last = max(times)
    each = {size: taken / size for size, taken in times.items()}
    if times[last] < _QUICK_S or (last < largest and each[last] <= min(each.values())):
        return largest
    return min(size for size, taken in each.items() if taken <= min(each.values()) * _TOLERANCE)
