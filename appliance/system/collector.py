"""Python's garbage collector in a process that serves for months."""

import gc

_THRESHOLDS = (20_000, 10, 10)


def calm() -> None:
    """What is loaded by now stays, and is not looked through again; the rest is looked through less often.

    With the usual first threshold of 700 objects a few dozen requests in flight start a collection every few
    requests, which took an eighth of the host's time under load. What waits for the collector is bounded: some
    20,000 objects, or 10 MB.
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
