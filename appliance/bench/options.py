"""What was asked for on the command line."""

from pathlib import Path

import msgspec

from appliance.bench.faults import BenchError
from appliance.bench.recommend import Goal, read_goal

LEAST_ROUNDS = 3
"""For a goal: with fewer, chance tells too many equals apart."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The command line. ``shapes``: ``NAME=1,3,640,640``. ``picture``: what is sent in place of the sample."""

    model: str
    clients: int = 8
    seconds: float = 2.0
    rounds: int = 3
    own: bool = False
    shapes: tuple[str, ...] = ()
    picture: Path | None = None
    tensors: bool = False
    goal: str | None = None
    write: bool = False
    report: Path | None = None
    as_json: bool = False


def goal_of(options: Options) -> Goal | None:
    """The goal, where the command line is in order. BenchError."""
    if options.picture is not None and (options.tensors or options.shapes):
        raise BenchError("--picture goes through the model's task, --shape and --tensors go past it: take one", 2)
    if options.goal is None:
        if options.write:
            raise BenchError("--write needs a --goal", 2)
        return None
    goal = read_goal(options.goal)
    if not options.own:
        raise BenchError("--goal varies settings, which is done in an appliance of its own: add --own", 2)
    if options.rounds < LEAST_ROUNDS:
        raise BenchError(f"--goal needs --rounds {LEAST_ROUNDS} or more, or noise would look like a difference", 2)
    return goal
