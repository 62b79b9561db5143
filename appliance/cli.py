"""The commands. Thin: each one loads settings and calls what does the work."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from appliance import __version__, cli_settings
from appliance.cli_context import Json, fail, settings_and_fault, settings_of

Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")]
Port = Annotated[int | None, typer.Option(help="Port; 0 takes a free one.", show_default="11711")]
Models = Annotated[Path | None, typer.Option(help="Models folder.", show_default="in the user's profile")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.", show_default="auto")]
Level = Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")]

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
runtime_app = typer.Typer(
    help="Runtime packs: the libraries of CUDA, as one file to install, and where they are found."
)
app.add_typer(runtime_app, name="runtime")
autostart_app = typer.Typer(help="Start at login, for this user.")
app.add_typer(autostart_app, name="autostart")
app.add_typer(cli_settings.key_app, name="key")
app.add_typer(cli_settings.config_app, name="config")


def main() -> None:
    """Entry of the console script, of ``python -m appliance`` and of ``main.py``."""
    from appliance import windowed

    if windowed.streamless():
        sys.exit(windowed.run(app, sys.argv[1:]))
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

    raise typer.Exit(commands.status(settings_of(context), as_json))


@app.command(help="Requests wait until `resume`; none is lost before its deadline.\n\nExample:  appliance pause")
def pause(context: typer.Context) -> None:
    from appliance import commands

    raise typer.Exit(commands.pause(settings_of(context), True))


@app.command(help="Requests that wait since `pause` go on.\n\nExample:  appliance resume")
def resume(context: typer.Context) -> None:
    from appliance import commands

    raise typer.Exit(commands.pause(settings_of(context), False))


@app.command(
    help="The tray icon of an appliance that runs already, such as a service; quitting it ends the icon alone."
    "\n\nExample:  appliance tray"
)
def tray(
    context: typer.Context,
    url: Annotated[str | None, typer.Option(help="The appliance's address, if it is not this machine's.")] = None,
) -> None:
    from appliance import windowed
    from appliance.tray_command import tray as show

    settings = settings_of(context)
    windowed.as_it_is()
    _end(show(settings, url))


@app.command(
    help="Answer what is there, refuse what is new, then end; waits until it is gone.\n\nExample:  appliance stop"
)
def stop(
    context: typer.Context,
    timeout: Annotated[float, typer.Option(min=0, max=600, help="Seconds until it must be gone.")] = 30,
    kill: Annotated[bool, typer.Option("--kill", help="End it if the time is over or it does not listen.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="On all ports, and all that runs from this program's folder.")
    ] = False,
) -> None:
    from appliance.stopping import stop as stop_it

    settings, fault = settings_and_fault(context)
    if fault is not None:  # it runs all the same, and a set-up has to get it out of the way
        typer.echo(f"appliance: {fault}; going by the defaults", err=True)
    raise typer.Exit(stop_it(settings, timeout, kill, everything))


@app.command(hidden=True)
def purge() -> None:
    """Delete this user's state, settings, keys and default models folder; the uninstaller asks for it."""
    from appliance.system import belongings

    left = belongings.purge(belongings.own_folders())
    for folder in left:
        typer.echo(f"appliance: could not be deleted: {folder}", err=True)
    raise typer.Exit(1 if left else 0)


@app.command(hidden=True)
def engine(
    log_level: Level = None,
    runtimes: Annotated[Path | None, typer.Option()] = None,
    family: Annotated[str | None, typer.Option()] = None,
    cores: Annotated[str, typer.Option()] = "",
) -> None:
    """The engine process; started by the host only."""
    from appliance import windowed
    from appliance.engine import worker
    from appliance.logs import set_up_child
    from appliance.system.cores import keep_to_cores
    from appliance.system.processes import connect_to_parent

    try:
        connection = connect_to_parent()
    except RuntimeError as error:
        fail(str(error))
    windowed.as_it_is()
    set_up_child(log_level or "info")
    # cuda:N is then the card that the driver's own tools call N.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    keep_to_cores(int(core) for core in cores.split(",") if core)
    worker.main(connection, runtimes, family)


@app.command(
    help="Does this program work on this machine? A line a check; exit code 0 if none failed.\n\n"
    "Runs beside a running appliance without disturbing it.\n\nExample:  appliance selftest --report ./report"
)
def selftest(
    context: typer.Context,
    report: Annotated[
        Path | None, typer.Option(help="Folder (or .json or .txt file) for selftest.json and selftest.txt.")
    ] = None,
    as_json: Json = False,
) -> None:
    from appliance import windowed
    from appliance.selftest.command import selftest as examine

    windowed.as_it_is()
    settings, fault = settings_and_fault(context)  # a fault is one more finding
    _end(examine(settings, fault, report, as_json))


@app.command(
    help="What this machine has, and what keeps the GPU from being used: a line a thing, with what to do."
    "\n\nExit code 0 if nothing has failed. Works beside a running appliance.\n\nExample:  appliance doctor"
)
def doctor(context: typer.Context, as_json: Json = False) -> None:
    from appliance.doctor.command import doctor as explain

    settings, fault = settings_and_fault(context)  # a fault is one more finding
    _end(explain(settings, fault, as_json))


@app.command(
    help="Save one file for whoever helps: state, doctor's report, settings, versions, the end of the logs."
    "\n\nNo input data and no keys are in it.\n\nExample:  appliance diagnose --out ./report.zip"
)
def diagnose(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option(help="The file, or a folder for it; else in downloads, desktop or state folder.")
    ] = None,
) -> None:
    from appliance import commands

    settings, fault = settings_and_fault(context)  # a fault is one more finding
    _end(commands.diagnose(settings, fault, out))


@app.command(hidden=True)
def doctor_probe(
    runtimes: Annotated[Path | None, typer.Option()] = None,
    index: Annotated[int, typer.Option()] = 0,
    works: Annotated[bool, typer.Option("--works")] = False,
) -> None:
    """Tries NVIDIA's driver and libraries out; started by the doctor only."""
    from appliance import windowed
    from appliance.doctor import native
    from appliance.system.processes import connect_to_parent

    try:
        connection = connect_to_parent()
    except RuntimeError as error:
        fail(str(error))
    windowed.as_it_is()
    native.main(connection, runtimes, index, works)
    _end(0)


@app.command(
    help="What a model does under load: answers a second, latencies, queue, batch, memory; and better settings."
    "\n\nExample:  appliance bench classify --clients 16 --report ./report\n\n"
    "          appliance bench classify --own --goal latency:20ms --write"
)
def bench(
    context: typer.Context,
    model: str,
    clients: Annotated[int, typer.Option(min=1, max=1024, help="Most clients at once; 1, 2, 4 … up to it.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long each measurement is.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Measurements of each stage; they tell the noise.")] = 3,
    own: Annotated[bool, typer.Option("--own", help="In an appliance started for it, with only this model.")] = False,
    shape: Annotated[list[str] | None, typer.Option(help="Size of an input, as images=1,3,640,640.")] = None,
    picture: Annotated[Path | None, typer.Option(help="What is sent to a model with a task; else a sample.")] = None,
    tensors: Annotated[bool, typer.Option("--tensors", help="Ask the model itself, not its task.")] = False,
    goal: Annotated[str | None, typer.Option(help="Find settings for: throughput, or latency:20ms (p99).")] = None,
    write: Annotated[bool, typer.Option("--write", help="Put them into the model's model.toml.")] = False,
    report: Annotated[Path | None, typer.Option(help="Folder for bench.html, bench.png and bench.json.")] = None,
    as_json: Json = False,
) -> None:
    from appliance.bench.command import bench as measure
    from appliance.bench.options import Options

    options = Options(
        model=model,
        clients=clients,
        seconds=seconds,
        rounds=rounds,
        own=own,
        shapes=tuple(shape or ()),
        picture=picture,
        tensors=tensors,
        goal=goal,
        write=write,
        report=report,
        as_json=as_json,
    )
    raise typer.Exit(measure(settings_of(context), options))


@app.command(hidden=True)
def bench_server() -> None:
    """The appliance that `bench --own` starts for itself."""
    from appliance import windowed
    from appliance.bench import server
    from appliance.system.processes import connect_to_parent

    try:
        connection = connect_to_parent()
    except RuntimeError as error:
        fail(str(error))
    windowed.as_it_is()
    _end(server.main(connection))


@autostart_app.command("on", help="Start at login from now on.\n\nExample:  appliance autostart on")
def autostart_on() -> None:
    from appliance import commands

    raise typer.Exit(commands.autostart_set(True))


@autostart_app.command("off", help="Do not start at login.\n\nExample:  appliance autostart off")
def autostart_off() -> None:
    from appliance import commands

    raise typer.Exit(commands.autostart_set(False))


@autostart_app.command("status", help="Is it on, and what is started?\n\nExample:  appliance autostart status")
def autostart_status() -> None:
    from appliance import commands

    raise typer.Exit(commands.autostart_status())


@models_app.command("list", help="All models.\n\nExample:  appliance models list")
def models_list(context: typer.Context, as_json: Json = False) -> None:
    from appliance import commands

    raise typer.Exit(commands.models_list(settings_of(context), as_json))


@models_app.command("show", help="One model: tensors, device, pipeline.\n\nExample:  appliance models show classify")
def models_show(context: typer.Context, name: str, as_json: Json = False) -> None:
    from appliance import commands

    raise typer.Exit(commands.models_show(settings_of(context), name, as_json))


@models_app.command("add", help="Copy a model into the models folder.\n\nExample:  appliance models add yolo.onnx")
def models_add(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(help="A model file, or a folder of the models folder's layout.")],
    name: Annotated[str | None, typer.Option(help="The model's name, if not the file's.")] = None,
) -> None:
    from appliance import commands

    raise typer.Exit(commands.models_add(settings_of(context), source, name))


@models_app.command("remove", help="Delete a model from the models folder.\n\nExample:  appliance models remove yolo")
def models_remove(
    context: typer.Context,
    name: str,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    from appliance import commands

    if not yes:
        typer.confirm(f"Delete model '{name}' and its files?", abort=True)
    raise typer.Exit(commands.models_remove(settings_of(context), name))


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

    raise typer.Exit(commands.models_check(settings_of(context), what or [], as_json))


@runtime_app.command(
    "install",
    help="Install a runtime pack.\n\nExample:  appliance runtime install cuda --from cuda-13.5.37-windows-x86_64.zip",
)
def runtime_install(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="cuda (for ONNX Runtime) or torch.")],
    source: Annotated[str, typer.Option("--from", help="The pack: a file, or an address that begins with https://.")],
    sha256: Annotated[str | None, typer.Option(help="The pack is taken only if this is its SHA-256.")] = None,
) -> None:
    from appliance import runtime_commands

    raise typer.Exit(runtime_commands.runtime_install(settings_of(context), name, source, sha256))


@runtime_app.command("list", help="The installed packs.\n\nExample:  appliance runtime list")
def runtime_list(context: typer.Context, as_json: Json = False) -> None:
    from appliance import runtime_commands

    raise typer.Exit(runtime_commands.runtime_list(settings_of(context), as_json))


@runtime_app.command(
    "verify", help="Read all files of installed packs again.\n\nExample:  appliance runtime verify cuda"
)
def runtime_verify(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A pack; none: all.")] = None,
) -> None:
    from appliance import runtime_commands

    raise typer.Exit(runtime_commands.runtime_verify(settings_of(context), name))


@runtime_app.command("remove", help="Delete a pack.\n\nExample:  appliance runtime remove cuda")
def runtime_remove(
    context: typer.Context,
    name: str,
    version: Annotated[str | None, typer.Argument(help="One version; none: all.")] = None,
) -> None:
    from appliance import runtime_commands

    raise typer.Exit(runtime_commands.runtime_remove(settings_of(context), name, version))


@runtime_app.command(
    "libraries",
    help="Which libraries an engine would load, from where, and whether they load.\n\n"
    "Example:  appliance runtime libraries",
)
def runtime_libraries(
    context: typer.Context,
    family: Annotated[Literal["onnx", "torch"], typer.Option("--for", help="The runtime that wants them.")] = "onnx",
    as_json: Json = False,
) -> None:
    from appliance import runtime_commands

    raise typer.Exit(runtime_commands.runtime_libraries(settings_of(context), family, as_json))


def _merged(context: typer.Context, flags: dict[str, Any]) -> dict[str, Any]:
    """Flags may stand before or behind the command; those behind it win."""
    before = context.obj or {}
    return {name: value if value is not None else before.get(name) for name, value in flags.items()}


def _run(flags: dict[str, Any], tray: bool) -> None:
    from appliance import settings as s
    from appliance import windowed
    from appliance.running import run_appliance

    try:
        settings = s.load(**flags)
    except s.SettingsError as error:
        fail(str(error))
    windowed.as_it_is()
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
