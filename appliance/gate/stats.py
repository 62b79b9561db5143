"""What a model version has done so far, in the terms of the protocol's statistics extension."""

import time

import msgspec


class Duration(msgspec.Struct):
    """A count of events and their time in nanoseconds."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns


class BatchStats(msgspec.Struct):
    """Runs of one batch size."""

    batch_size: int
    compute_infer: Duration


class ModelStats:
    """Counters of one model version; they live as long as the host process."""

    def __init__(self) -> None:
        self.last_inference_ms = 0
        self.inference_count = 0
        self.execution_count = 0
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.batches: dict[int, Duration] = {}

    def ran(self, rows: int, run_ns: int, overhead_ns: int) -> None:
        """A run of ``rows`` items ended well; ``overhead_ns``: the engine's time around the backend."""
        self.execution_count += 1
        self.inference_count += rows
        self.last_inference_ms = int(time.time() * 1000)
        self.compute_infer.add(run_ns)
        self.compute_input.add(overhead_ns // 2)
        self.compute_output.add(overhead_ns - overhead_ns // 2)
        self.batches.setdefault(rows, Duration()).add(run_ns)

    def ended(self, ok: bool, total_s: float, queued_s: float) -> None:
        """A request ended."""
        (self.success if ok else self.fail).add(int(total_s * 1e9))
        if ok:
            self.queue.add(int(queued_s * 1e9))

    def batch_stats(self) -> list[BatchStats]:
        """Sorted by batch size."""
        return [BatchStats(size, duration) for size, duration in sorted(self.batches.items())]
