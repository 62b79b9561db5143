"""Counters of a model version."""

import time

from appliance.gate.stats import ModelStats


def test_runs_and_ends_are_counted_apart() -> None:
    stats = ModelStats()
    before = int(time.time() * 1000)
    stats.ran(3, run_ns=100, overhead_ns=11)
    stats.ran(3, run_ns=300, overhead_ns=0)
    stats.ran(1, run_ns=50, overhead_ns=1)
    stats.ended(True, total_s=0.5, queued_s=0.25)
    stats.ended(False, total_s=2.0, queued_s=1.0)
    assert (stats.execution_count, stats.inference_count) == (3, 7)
    assert before <= stats.last_inference_ms <= int(time.time() * 1000)
    assert (stats.compute_infer.count, stats.compute_infer.ns) == (3, 450)
    assert stats.compute_input.ns + stats.compute_output.ns == 12
    assert (stats.success.count, stats.success.ns) == (1, 500_000_000)
    assert (stats.fail.count, stats.fail.ns) == (1, 2_000_000_000)
    assert (stats.queue.count, stats.queue.ns) == (1, 250_000_000)
    sizes = [(b.batch_size, b.compute_infer.count, b.compute_infer.ns) for b in stats.batch_stats()]
    assert sizes == [(1, 1, 50), (3, 2, 400)]
