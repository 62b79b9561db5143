"""The loaded copies of one model version, each in an engine of its own, and whose turn it is in an engine."""

from appliance.gate.batch import Runner
from appliance.models.spec import ModelSpec


class Turn:
    """One engine's runs, of all models. ``alone``: a run that was in a crash has the engine to itself."""

    __slots__ = ("alone", "engine", "running", "suspect_next")

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.running = 0
        self.alone = False
        self.suspect_next = False  # a request that was in a crash is next in a queue that this engine could serve


class Lanes:
    """The places of one model version in one engine: a copy's, and those of its predecessors that still run."""

    __slots__ = ("flying",)

    def __init__(self) -> None:
        self.flying = 0


class Copy:
    """One loaded copy. ``handle``: its name in the engine that ``runner`` speaks to."""

    __slots__ = ("handle", "lanes", "runner", "spec", "turn")

    def __init__(self, runner: Runner, handle: int, spec: ModelSpec, turn: Turn, lanes: Lanes) -> None:
        self.runner = runner
        self.handle = handle
        self.spec = spec
        self.turn = turn
        self.lanes = lanes

    @property
    def free(self) -> bool:
        """A run would begin at once."""
        return self.lanes.flying < self.spec.lanes


def by_load(copies: list[Copy]) -> list[Copy]:
    """Those that will start a run first come first: with a free lane, then in the engine with the fewest runs."""
    if len(copies) < 2:
        return copies
    return sorted(copies, key=lambda c: (not c.free, c.lanes.flying / c.spec.lanes, c.turn.running))
