"""The commands. Thin: each one loads settings and calls what does the work."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from appliance import __version__

Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Port = Annotated[int | None, typer.Option(help="Port; 0 takes a free one.", show_default="11711")]
Models = Annotated[Path | None, typer.Option(help="Models folder.", show_default="in the user's profile")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.", show_default="auto")]
Level = Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(
    name="appliance",
    help="A local inference server: models in a folder, an API on http://127.0.0.1:11711, a tray icon.\n\n"
    "Example:  appliance --models ./models\n\n"
    "          curl -F file=@cat.png http://127.0.0.1:11711/predict/classify",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="What is in the models folder, and what the running appliance says of it.")
app.add_typer(models_app, name="models")


def main() -> None:
    """Entry of the console script, of ``python -m appliance`` and of ``main.py``."""
    app()


@app.callback(invoke_without_command=True)
def default(
    context: typer.Context,
    host: Host = None,
    port: Port = None,
    models: Models = None,
    device: Device = None,
    log_level: Level = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
    flags = {"host": host, "port": port, "models": models, "device": device, "log_level": log_level}
    context.obj = flags
    if context.invoked_subcommand is None:
        _run(flags, tray=True)


@app.command(help="Tray icon and server (what `appliance` alone does).\n\nExample:  appliance run --port 11711")
def run(
    context: typer.Context,
    host: Host = None,
    port: Port = None,
    models: Models = None,
    device: Device = None,
    log_level: Level = None,
) -> None:
    flags = {"host": host, "port": port, "models": models, "device": device, "log_level": log_level}
    _run(_merged(context, flags), tray=True)


@app.command(help="Server without a tray icon.\n\nExample:  appliance serve --models ./models --device cpu")
def serve(
    context: typer.Context,
    host: Host = None,
    port: Port = None,
    models: Models = None,
    device: Device = None,
    log_level: Level = None,
) -> None:
    flags = {"host": host, "port": port, "models": models, "device": device, "log_level": log_level}
    _run(_merged(context, flags), tray=False)


@app.command(help="What the running appliance is doing.\n\nExample:  appliance status --json")
def status(context: typer.Context, as_json: Json = False) -> None:
    from appliance import commands

    raise typer.Exit(commands.status(_settings(context), as_json))


@app.command(help="Requests wait until `resume`; none is lost before its deadline.\n\nExample:  appliance pause")
def pause(context: typer.Context) -> None:
    from appliance import commands

    raise typer.Exit(commands.pause(_settings(context), True))


@app.command(help="Requests that wait since `pause` go on.\n\nExample:  appliance resume")
def resume(context: typer.Context) -> None:
    from appliance import commands

    raise typer.Exit(commands.pause(_settings(context), False))


@app.command(hidden=True)
def engine(log_level: Level = None) -> None:
    """The engine process; started by the host only."""
    from appliance.engine import worker
    from appliance.logs import set_up_child
    from appliance.system.processes import connect_to_parent

    try:
        connection = connect_to_parent()
    except RuntimeError as error:
        _fail(str(error))
    set_up_child(log_level or "info")
    # cuda:N is then the card that the driver's own tools call N.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    worker.main(connection)


@models_app.command("list", help="All models.\n\nExample:  appliance models list")
def models_list(context: typer.Context, as_json: Json = False) -> None:
    from appliance import commands

    raise typer.Exit(commands.models_list(_settings(context), as_json))


@models_app.command("show", help="One model: tensors, device, pipeline.\n\nExample:  appliance models show classify")
def models_show(context: typer.Context, name: str, as_json: Json = False) -> None:
    from appliance import commands

    raise typer.Exit(commands.models_show(_settings(context), name, as_json))


@models_app.command("add", help="Copy a model into the models folder.\n\nExample:  appliance models add yolo.onnx")
def models_add(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="A model file, or a folder of the models folder's layout.")],
    name: Annotated[str | None, typer.Option(help="The model's name, if not the file's.")] = None,
) -> None:
    from appliance import commands

    raise typer.Exit(commands.models_add(_settings(context), source, name))


@models_app.command("remove", help="Delete a model from the models folder.\n\nExample:  appliance models remove yolo")
def models_remove(
    context: typer.Context,
    name: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    from appliance import commands

    if not yes:
        typer.confirm(f"Delete model '{name}' and its files?", abort=True)
    raise typer.Exit(commands.models_remove(_settings(context), name))


@models_app.command(
    "check",
    help="Load models in an engine of its own and say what is wrong with them, in words.\n\n"
    "Example:  appliance models check yolo.onnx",
)
def models_check(
    context: typer.Context,
    what: Annotated[list[str] | None, typer.Argument(help="Names, files or folders; none: all models.")] = None,
    as_json: Json = False,
) -> None:
    from appliance import commands

    raise typer.Exit(commands.models_check(_settings(context), what or [], as_json))


def _merged(context: typer.Context, flags: dict[str, Any]) -> dict[str, Any]:
    """Flags may stand before or behind the command; those behind it win."""
    before = context.obj or {}
    return {name: value if value is not None else before.get(name) for name, value in flags.items()}


def _settings(context: typer.Context) -> Any:
    from appliance.settings import SettingsError, load

    try:
        return load(**(context.obj or {}))
    except SettingsError as error:
        _fail(str(error))


def _run(flags: dict[str, Any], tray: bool) -> None:
    from appliance import settings as s
    from appliance.running import run_appliance

    try:
        settings = s.load(**flags)
    except s.SettingsError as error:
        _fail(str(error))
    _end(run_appliance(settings, tray))


def _end(code: int) -> NoReturn:
    """End the process now. A thread that is still decoding somebody's picture, or a tray that lost its display,
    would hold up Python's own way out for longer than an end may take."""
    import logging

    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError):  # a terminal that is gone, a windowed program
            stream.flush()
    os._exit(code)


def _fail(words: str) -> NoReturn:
    typer.echo(f"appliance: {words}", err=True)
    sys.exit(2)
