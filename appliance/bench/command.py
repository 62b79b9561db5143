"""The command: measures, tells, and recommends settings where a goal is given."""

import contextlib
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from appliance.bench import advise, model_toml, payload, progress, report, show, target
from appliance.bench.advise import Advisor
from appliance.bench.faults import BenchError
from appliance.bench.measure import measure, remarks
from appliance.bench.options import Options, goal_of
from appliance.bench.own import own
from appliance.bench.progress import Bar
from appliance.bench.recommend import Goal
from appliance.bench.report import Advice, Found
from appliance.bench.stages import ladder
from appliance.bench.target import Target
from appliance.models.folder import ModelFolder
from appliance.models.repository import scan
from appliance.serving.roots import models_roots
from appliance.settings import Settings


def bench(settings: Settings, options: Options) -> int:
    """Exit code 0 when it was measured (and written, where that was asked for); 1 or 2 with the reason if not."""
    errors = Console(stderr=True)
    try:
        goal = goal_of(options)
        with progress.shown(errors) as bar:
            found = _measured(settings, options, goal, bar)
        if not options.as_json:
            show.everything(found, Console(), hint=not options.write)
        if options.write and found.advice is not None and found.advice.diff:
            if options.as_json:
                show.diff(found.advice.diff, errors)
            file = _write(settings, options.model, found.advice)
            found = msgspec.structs.replace(found, advice=msgspec.structs.replace(found.advice, written=True))
            told = f"written: {escape(file.name)} of '{options.model}'; a running appliance loads it anew"
            errors.print(told, soft_wrap=True)
        if options.as_json:
            sys.stdout.write(report.json(found).decode())
        if options.report is not None:
            files = report.write(found, options.report)
            told = f"report: {escape(str(files[0]))}, {', '.join(file.name for file in files[1:])}"
            errors.print(told, soft_wrap=True)
    except BenchError as error:
        errors.print(f"appliance: {escape(str(error))}", highlight=False, soft_wrap=True)
        return error.exit_code
    return 0


def _measured(settings: Settings, options: Options, goal: Goal | None, bar: Bar) -> Found:
    models = scan(models_roots(settings))
    folder = models.get(options.model)
    if not options.own:
        with contextlib.closing(target.running(settings, options.model)) as found:
            return _stages(found, folder, options, bar)
    if folder is None:
        raise BenchError(f"there is no model '{options.model}' in the models folders")
    if folder.error:
        raise BenchError(f"'{options.model}' cannot be served: {folder.error}")
    if goal is not None:
        advise.check(folder, options.write)
    bar.describe(f"starting an appliance for '{options.model}'")
    with own(settings, options.model, models) as home:
        with home.started({}) as found:
            measured = _stages(found, folder, options, bar)
            if goal is None:
                return measured
            start, bounds = advise.present(found.metadata()["parameters"], folder, options.clients)
        advice = Advisor(home, folder, options, goal, bar).advice(measured.stages, start, bounds)
        return msgspec.structs.replace(measured, advice=advice)


def _stages(found: Target, folder: ModelFolder | None, options: Options, bar: Bar) -> Found:
    sent = payload.chosen(found.metadata(), folder, options)
    stages = measure(found, sent, ladder(options.clients), options.seconds, options.rounds, bar.stages(""))
    return Found(
        model=options.model,
        own=options.own,
        device=found.device(),
        payload=f"{sent.about} to {sent.path}",
        seconds=options.seconds,
        rounds=options.rounds,
        stages=stages,
        notes=(*remarks(stages), *sent.notes),
    )


def _write(settings: Settings, name: str, advice: Advice) -> Path:
    """Into what the file says by now: minutes have passed since it was read."""
    folder = scan(models_roots(settings)).get(name)
    if folder is None:
        raise BenchError(f"the model '{name}' is gone meanwhile")
    file = model_toml.home(folder)
    model_toml.write(file, model_toml.edited(model_toml.read(file), advice.best.changes(advice.start)))
    return file
