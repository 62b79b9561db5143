"""Stages of load against one target, round by round."""

import asyncio
import threading
from collections.abc import Callable, Sequence

from appliance.bench.faults import BenchError
from appliance.bench.load import Load, Window
from appliance.bench.payload import Payload
from appliance.bench.stages import Round, Stage, apart, percentile
from appliance.bench.target import Target
from appliance.system.loops import new_event_loop

Tell = Callable[[int, int, float], None]
"""(round from 1, clients, share of the whole that is over)."""

FEW = 100
"""Answers of a round below which its p99 is little else than its slowest answer."""

_BUSY = 0.8
_LOOK_S = 0.5


def measure(
    target: Target, payload: Payload, clients: Sequence[int], seconds: float, rounds: int, tell: Tell
) -> tuple[Stage, ...]:
    """Each stage once a round, all of them in turn, so that a slow minute of the machine hits them alike.

    BenchError where the first request is refused, or a window has no good answer at all.
    """
    load = Load(target.url, target.headers, payload)
    found: list[list[Round]] = [[] for _ in clients]
    total = rounds * len(clients)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if (proof := runner.run(load.once())).code:
            raise BenchError(f"the first request gets {proof.code}: {proof.words}")
        for n in range(rounds):
            for at, count in enumerate(clients):
                done = n * len(clients) + at

                def tick(share: float, done: int = done, n: int = n, count: int = count) -> None:
                    tell(n + 1, count, (done + share) / total)

                tick(0.0)
                before = target.counters()
                with _Peak(target) as peak:
                    window = runner.run(load.window(count, seconds, tick))
                batch = target.counters().batch_since(before)
                found[at].append(round_of(window, batch, peak.bytes))
    return tuple(Stage(count, tuple(each)) for count, each in zip(clients, found, strict=True))


def round_of(window: Window, batch: float | None, memory_bytes: int | None) -> Round:
    """The numbers of a window. BenchError if it has no good answer, with the words of the last one."""
    good = [answer for answer in window.answers if not answer.code]
    if not good:
        words = f"{window.answers[-1].code}: {window.answers[-1].words}" if window.answers else "none in time"
        raise BenchError(f"there was no good answer, the last was {words}")
    errors: dict[str, int] = {}
    for answer in window.answers:
        if answer.code:
            errors[answer.code] = errors.get(answer.code, 0) + 1
    took = sorted(answer.seconds * 1000 for answer in good)
    queued = sorted(answer.queued_ms for answer in good)
    return Round(
        seconds=window.seconds,
        answers=len(good),
        per_second=len(good) / window.seconds,
        p50_ms=percentile(took, 0.5),
        p95_ms=percentile(took, 0.95),
        p99_ms=percentile(took, 0.99),
        queue_p50_ms=percentile(queued, 0.5),
        queue_p99_ms=percentile(queued, 0.99),
        batch=batch,
        memory_bytes=memory_bytes,
        errors=errors,
        client_cpu=window.cpu,
    )


def remarks(stages: Sequence[Stage]) -> list[str]:
    """What must be known to read the numbers: their noise first."""
    found = []
    spreads = [stage.spread for stage in stages if stage.spread is not None]
    if spreads:
        widest = max(spreads) * 100
        found.append(
            f"Noise: the rounds of one stage differ by up to {widest:.0f} %. Two numbers whose ranges overlap are "
            "not told apart."
        )
    else:
        found.append("Noise: unknown, each stage was measured once. Take --rounds 3 or more to tell numbers apart.")
    full = plateau(stages)
    if full is not None and full < len(stages) - 1:
        found.append(
            f"From {_clients(stages[full].clients)} on, more of them bring no more answers than the noise allows, "
            "only longer waits."
        )
    busiest = max(one.client_cpu for stage in stages for one in stage.rounds)
    if busiest > _BUSY:
        found.append(
            f"The measuring clients used up to {busiest * 100:.0f} % of a core: the appliance could answer more."
        )
    few = [stage.clients for stage in stages if min(one.answers for one in stage.rounds) < FEW]
    if few:
        words = _clients(few[0]) if len(few) == 1 else f"{', '.join(map(str, few[:-1]))} and {_clients(few[-1])}"
        found.append(
            f"Fewer than {FEW} answers in a round with {words}: there the p99 is nearly "
            "the slowest answer. Take more --seconds."
        )
    return found


def plateau(stages: Sequence[Stage]) -> int | None:
    """The first stage behind which none has more throughput than it by more than the noise; None for one round."""
    if any(len(stage.rounds) < 2 for stage in stages):
        return None
    values = [stage.values("per_second") for stage in stages]
    return next(
        at
        for at, own in enumerate(values)
        if not any(apart(own, later) and min(later) > max(own) for later in values[at + 1 :])
    )


def _clients(count: int) -> str:
    return f"{count} client{'s' if count > 1 else ''}"


class _Peak:
    """The most memory that a target told while the ``with`` lasted, asked for now and then by a thread."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bench-memory", daemon=True)
        self.bytes: int | None = None

    def __enter__(self) -> "_Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        try:
            told = self._target.memory()
        except BenchError:  # a busy moment; whether it lives shows in the answers
            return
        if told is not None:
            self.bytes = max(told, self.bytes or 0)
