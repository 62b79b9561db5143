"""What commands share: the settings that a command line asks for, and the way out of a wrong one."""

import sys
from typing import Annotated, Any, NoReturn

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings_of(context: typer.Context) -> Any:
    """The settings with the command line's flags; faulty ones end the program with exit code 2."""
    from appliance.settings import SettingsError, load

    try:
        return load(**(context.obj or {}))
    except SettingsError as error:
        fail(str(error))


def settings_and_fault(context: typer.Context) -> tuple[Any, str | None]:
    """For commands that look for faults: where the settings are faulty the built-in ones, and what is wrong."""
    from appliance.settings import Settings, SettingsError, load

    try:
        return load(**(context.obj or {})), None
    except SettingsError as error:
        return Settings.model_construct(), str(error)


def fail(words: str) -> NoReturn:
    """Say it and end the program: the command line or a setting is wrong."""
    typer.echo(f"appliance: {words}", err=True)
    sys.exit(2)
