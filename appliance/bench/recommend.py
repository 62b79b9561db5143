"""Which batch, instances and delay do better for a goal: one of them changed at a time. Pure.

``search`` is a generator: it yields a Setting that is to be measured and is sent what came of it. A setting is
taken over only if it was better than the present one by more than the noise, and still is when the present one is
measured once more behind it: so a machine that gets quieter meanwhile does not look like a better setting.
"""

import re
from collections.abc import Generator, Sequence
from typing import Literal

import msgspec

from appliance.bench.faults import BenchError
from appliance.bench.stages import Stage, apart, number

Variable = Literal["batch", "instances", "delay_ms"]
DELAYS = (0.0, 1.0, 2.0, 5.0, 10.0)
MAX_INSTANCES = 8


class Setting(msgspec.Struct, frozen=True):
    """``batch``: ``batching.max``. ``delay_ms``: ``batching.max_delay_ms``."""

    batch: int
    instances: int
    delay_ms: float = 0.0

    def words(self) -> str:
        return f"batch {self.batch}, instances {self.instances}, delay {self.delay_ms:g} ms"

    def changes(self, since: "Setting") -> dict[tuple[str, ...], int | float]:
        """The keys of ``model.toml`` in which it differs from ``since``."""
        keys = {"batch": ("batching", "max"), "instances": ("instances",), "delay_ms": ("batching", "max_delay_ms")}
        return {key: getattr(self, name) for name, key in keys.items() if getattr(self, name) != getattr(since, name)}


class Goal(msgspec.Struct, frozen=True):
    """Most answers a second, of stages whose p99 is at most ``p99_ms`` where that is set."""

    p99_ms: float | None = None

    def words(self) -> str:
        return "throughput" if self.p99_ms is None else f"throughput with a p99 of at most {number(self.p99_ms)} ms"


class Bounds(msgspec.Struct, frozen=True):
    """What may be tried. ``clients``: as many items can be in one run at most, since each client sends one."""

    clients: int
    max_instances: int
    merges: bool


class Tried(msgspec.Struct, frozen=True):
    """One setting that was measured: its score in each round, or why there is none. ``taken``: it became the
    present one."""

    setting: Setting
    variable: Variable | None
    scores: tuple[float, ...] = ()
    fault: str | None = None
    verdict: str = ""
    taken: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What came of measuring a setting: a score for each round (higher is better), or why there is none."""

    scores: tuple[float, ...] = ()
    fault: str | None = None


Search = Generator[Setting, Outcome, tuple[Setting, list[Tried]]]


def read_goal(text: str) -> Goal:
    """``throughput`` or ``latency:20ms``. Raises BenchError."""
    if text == "throughput":
        return Goal()
    found = re.fullmatch(r"latency:(\d+(?:\.\d+)?)(ms|s)", text)
    if found is None or not float(found[1]):
        raise BenchError(f"--goal {text[:64]}: it is 'throughput', or a bound of the p99 such as 'latency:20ms'", 2)
    return Goal(float(found[1]) * (1000 if found[2] == "s" else 1))


def scores(goal: Goal, stages: Sequence[Stage]) -> tuple[float, ...]:
    """A number for each round, higher is better.

    The best throughput among the stages that keep the bound. Where none does: minus (the least p99 / bound), which
    is below zero and the nearer to it, the nearer the bound was.
    """
    found = []
    for at in range(min(len(stage.rounds) for stage in stages)):
        rounds = [stage.rounds[at] for stage in stages]
        good = [one for one in rounds if one.answers]
        kept = [one for one in good if goal.p99_ms is None or one.p99_ms <= goal.p99_ms]
        if kept:
            found.append(max(one.per_second for one in kept))
        else:
            assert not good or goal.p99_ms is not None
            found.append(-min((one.p99_ms / (goal.p99_ms or 1.0) for one in good), default=float("inf")))
    return tuple(found)


def told(goal: Goal, score: float) -> str:
    """A score in words."""
    if score >= 0:
        return f"{number(score)}/s"
    if score == float("-inf"):
        return "no answer"
    return f"p99 {number(-score * (goal.p99_ms or 1.0))} ms"


def candidates(variable: Variable, at: Setting, bounds: Bounds, goal: Goal) -> tuple[list[Setting], list[Setting]]:
    """(those with more of it, those with less), the nearest first."""
    change = msgspec.structs.replace
    powers = [1 << n for n in range(11)]
    if variable == "batch":
        most = min(at.batch, bounds.clients)  # a batch that is never full is as good as one of the clients' number
        up = [n for n in powers if at.batch < n <= bounds.clients]
        down = [n for n in reversed(powers) if n < most]
        return [change(at, batch=n) for n in up], [change(at, batch=n) for n in down]
    if variable == "instances":
        up = [n for n in powers if at.instances < n <= min(bounds.max_instances, bounds.clients)]
        down = [n for n in reversed(powers) if n < at.instances]
        return [change(at, instances=n) for n in up], [change(at, instances=n) for n in down]
    longest = DELAYS[-1] if goal.p99_ms is None else goal.p99_ms / 2
    longer = [ms for ms in DELAYS if at.delay_ms < ms <= longest] if at.batch > 1 else []
    shorter = [ms for ms in reversed(DELAYS) if ms < at.delay_ms]
    return [change(at, delay_ms=ms) for ms in longer], [change(at, delay_ms=ms) for ms in shorter]


def search(start: Setting, bounds: Bounds, goal: Goal) -> Search:
    """Yields settings to measure; returns the best one and all that were tried, in order.

    ``start`` is measured first. If it has no outcome, that is all.
    """
    first = yield start
    tried = [Tried(start, None, first.scores, first.fault, "as it is", taken=True)]
    if first.fault is not None:
        return start, tried
    best, held = start, first.scores
    variables: tuple[Variable, ...] = ("batch", "instances", "delay_ms") if bounds.merges else ("instances",)
    for variable in variables:
        for way in candidates(variable, best, bounds, goal):
            moved = False
            for setting in way:
                outcome = yield setting
                if outcome.fault is not None:
                    tried.append(Tried(setting, variable, (), outcome.fault, "it does not work"))
                    break
                verdict = compare(outcome.scores, held)
                if verdict != "better":
                    tried.append(Tried(setting, variable, outcome.scores, None, verdict))
                    break
                again = yield best
                held = again.scores or held
                if again.fault is not None or compare(outcome.scores, held) != "better":
                    words = "no better than the present one measured again"
                    tried.append(Tried(setting, variable, outcome.scores, None, words))
                    break
                tried.append(Tried(setting, variable, outcome.scores, None, "better", taken=True))
                best, held, moved = setting, outcome.scores, True
            if moved:
                break
    return best, tried


def compare(one: Sequence[float], other: Sequence[float]) -> str:
    """What ``one`` is beside ``other``: ``better``, ``worse`` or ``within the noise``."""
    if not apart(one, other):
        return "within the noise"
    return "better" if min(one) > max(other) else "worse"
