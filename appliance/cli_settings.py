"""The commands about settings and keys. Thin, as those in ``cli.py``, which adds them."""

from typing import Annotated, Literal

import typer

from appliance.cli_context import Json, settings_of

key_app = typer.Typer(help="API keys: with one, every call but health needs one.")
config_app = typer.Typer(help="The settings: what counts, where it comes from, what is wrong.")


@key_app.command(
    "create", help="Make a key, and print it once.\n\nExample:  appliance key create --scope infer --name camera"
)
def key_create(
    context: typer.Context,
    scope: Annotated[
        Literal["infer", "admin"], typer.Option(help="infer: inference, and reading the state; admin: everything.")
    ] = "infer",
    name: Annotated[str | None, typer.Option(help="What to call it, for `list` and `remove`.")] = None,
) -> None:
    from appliance import key_commands

    raise typer.Exit(key_commands.create(settings_of(context), scope, name))


@key_app.command("list", help="All keys: names and scopes.\n\nExample:  appliance key list")
def key_list(context: typer.Context, as_json: Json = False) -> None:
    from appliance import key_commands

    raise typer.Exit(key_commands.list_all(settings_of(context), as_json))


@key_app.command("remove", help="From now on the key opens nothing.\n\nExample:  appliance key remove camera")
def key_remove(context: typer.Context, name: str) -> None:
    from appliance import key_commands

    raise typer.Exit(key_commands.remove(settings_of(context), name))


@config_app.command(
    "show", help="Every setting, its value, and where it comes from.\n\nExample:  appliance config show"
)
def config_show(context: typer.Context, as_json: Json = False) -> None:
    from appliance import config_commands

    raise typer.Exit(config_commands.show(context.obj or {}, as_json))


@config_app.command(
    "check",
    help="What is wrong in files, variables and flags, with file and line.\n\nExample:  appliance config check",
)
def config_check(context: typer.Context) -> None:
    from appliance import config_commands

    raise typer.Exit(config_commands.check(context.obj or {}))


@config_app.command("path", help="Where the settings files are.\n\nExample:  appliance config path")
def config_path(as_json: Json = False) -> None:
    from appliance import config_commands

    raise typer.Exit(config_commands.path(as_json))
