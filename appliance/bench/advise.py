"""Settings for a goal: what can be varied, each setting measured in an appliance of its own, the advice."""

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from appliance.bench import model_toml, payload, recommend
from appliance.bench.faults import BenchError
from appliance.bench.measure import measure
from appliance.bench.options import Options
from appliance.bench.own import Own
from appliance.bench.progress import Bar
from appliance.bench.recommend import Bounds, Goal, Outcome, Setting, Tried
from appliance.bench.report import Advice
from appliance.bench.stages import Stage, ladder
from appliance.models.folder import TOML, ModelFolder


def check(folder: ModelFolder, write: bool) -> None:
    """BenchError before anything is measured, where there is nothing to vary or to write to."""
    if folder.config.backend == "pipeline":
        raise BenchError(f"'{folder.name}' is made of other models; it is their settings that can be varied")
    if write or not folder.read_only:
        model_toml.home(folder)


def present(parameters: Mapping[str, Any], folder: ModelFolder, clients: int) -> tuple[Setting, Bounds]:
    """The model's settings as they are, and what can be tried from there. ``parameters``: of its metadata."""
    merged, config = parameters["max_batch"], folder.config
    merges = merged > 0 or config.batching.max == 1  # 1: nobody has tried yet
    gpu = (parameters["device"] or "cpu").startswith("cuda")
    most = recommend.MAX_INSTANCES if gpu else min(recommend.MAX_INSTANCES, os.cpu_count() or 1)
    start = Setting(max(1, merged), config.instances, config.batching.max_delay_ms)
    return start, Bounds(clients, most, merges)


class Advisor:
    """One search. ``home`` serves the model with whatever settings are to be measured."""

    def __init__(self, home: Own, folder: ModelFolder, options: Options, goal: Goal, bar: Bar) -> None:
        self._home = home
        self._folder = folder
        self._options = options
        self._goal = goal
        self._bar = bar
        # With the most clients throughput is highest, or as high as it gets; a bound may only be kept with fewer.
        self._clients = [options.clients] if goal.p99_ms is None else ladder(options.clients)

    def advice(self, measured: Sequence[Stage], start: Setting, bounds: Bounds) -> Advice:
        """What the search from ``start`` came to, whose stages are ``measured`` already. BenchError."""
        steps = recommend.search(start, bounds, self._goal)
        next(steps)  # it begins with what is measured
        outcome = Outcome(recommend.scores(self._goal, measured[-len(self._clients) :]))
        try:
            while True:
                setting = steps.send(outcome)
                outcome = self._outcome(setting, setting.changes(start))
        except StopIteration as end:
            best, tried = end.value
        whole = self._folder.path.is_dir()
        file = self._folder.path / TOML if whole else self._folder.path.with_suffix(".toml")
        before = model_toml.read(file)
        after = model_toml.edited(before, best.changes(start)) if best != start else before
        words = words_of(self._goal, tried)
        return Advice(self._goal, start, best, tuple(tried), words, model_toml.difference(before, after, file.name))

    def _outcome(self, setting: Setting, changes: dict[tuple[str, ...], int | float]) -> Outcome:
        """One setting's scores; a fault, where it does not load, does not merge or does not answer."""
        options, bar = self._options, self._bar
        bar.describe(f"trying {setting.words()}")
        try:
            with self._home.started(changes) as target:
                metadata = target.metadata()
                merged = metadata["parameters"]["max_batch"]
                if setting.batch > max(1, merged):
                    return Outcome(fault=f"at most {merged} are merged" if merged else "requests are never merged")
                sent = payload.chosen(metadata, self._folder, options)
                told = bar.stages(f"{setting.words()}: ")
                stages = measure(target, sent, self._clients, options.seconds, options.rounds, told)
        except BenchError as error:
            return Outcome(fault=str(error))
        return Outcome(recommend.scores(self._goal, stages))


def words_of(goal: Goal, tried: Sequence[Tried]) -> str:
    """The advice in a sentence or two. ``tried``: the present setting first."""
    start, best = tried[0], [one for one in tried if one.taken][-1]
    now, then = statistics.median(best.scores), statistics.median(start.scores)
    unkept = f" No setting that was tried keeps the bound: here it is {recommend.told(goal, now)}." if now < 0 else ""
    if best is start:
        kept = f"leave it as it is ({start.setting.words()}). Nothing was better by more than the noise."
        return f"For {goal.words()}: {kept}{unkept}"
    return (
        f"For {goal.words()}: {best.setting.words()}, in place of {start.setting.words()}. Measured "
        f"{recommend.told(goal, now)}, before {recommend.told(goal, then)}.{unkept}"
    )
