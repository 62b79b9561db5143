"""Where things lie: assets in the program, state and models of the user, settings files."""

import sys
from collections.abc import Sequence
from pathlib import Path

import platformdirs

_NAME = "Inference Appliance" if sys.platform == "win32" else "inference-appliance"


def assets() -> Path:
    """The folder of the embedded models, icons and defaults: in the frozen program, the wheel or the checkout."""
    package = Path(__file__).resolve().parent.parent
    frozen = getattr(sys, "_MEIPASS", None)
    places = [Path(frozen) / "assets"] if frozen else [package / "assets", package.parent / "assets"]
    return next((place for place in places if place.is_dir()), places[-1])


def web() -> Path:
    """The folder of the dashboard's files, beside the code in every form of the program."""
    return Path(__file__).resolve().parent.parent / "web"


def default_state() -> Path:
    """State and logs of this user (``%LOCALAPPDATA%\\Inference Appliance``, ``~/.local/state/…``)."""
    if sys.platform == "win32":
        return platformdirs.user_data_path(_NAME, appauthor=False)
    return platformdirs.user_state_path(_NAME)


def runtimes(state: Path) -> Path:
    """Where runtime packs are installed."""
    return state / "runtimes"


def default_models() -> Path:
    """The user's models folder where the settings name none."""
    if sys.platform == "win32":
        return Path.home() / _NAME / "models"
    return platformdirs.user_data_path(_NAME) / "models"


def settings_files() -> list[Path]:
    """The settings files, the stronger first: the user's, then the machine's."""
    return [
        platformdirs.user_config_path(_NAME, appauthor=False) / "settings.toml",
        platformdirs.site_config_path(_NAME, appauthor=False) / "settings.toml",
    ]


def program_command() -> list[str]:
    """The command that starts this same program again (frozen exe, or Python with this package).

    The package need not be installed, and the current folder, whatever lies in it, is no place to import from.
    """
    if getattr(sys, "frozen", False):
        return [sys.executable]
    home = str(Path(__file__).resolve().parents[2])
    start = f"import sys; sys.path.insert(0, {home!r}); from appliance.cli import main; main()"
    return [sys.executable, "-P", "-c", start]


def engine_command(
    log_level: str, state: Path | None = None, family: str | None = None, cores: Sequence[int] = ()
) -> list[str]:
    """The command that starts an engine process, which uses the runtime packs of that state folder, if any.

    ``family``: of its backends; ``cores``: the processor cores that it keeps to."""
    command = [*program_command(), "engine", "--log-level", log_level]
    command += ["--runtimes", str(runtimes(state))] if state is not None else []
    command += ["--family", family] if family is not None else []
    return command + (["--cores", ",".join(str(core) for core in cores)] if cores else [])


def frozen() -> bool:
    """Whether this is the frozen program rather than Python with the source."""
    return bool(getattr(sys, "frozen", False))


def bundle() -> Path | None:
    """The folder of what was frozen into the program, or None when it is not frozen."""
    folder = getattr(sys, "_MEIPASS", None)
    return Path(folder) if folder else None


def command_name() -> str:
    """What a person types for the commands. A windowed program has no console: they have a program of their own."""
    return "appliance-cli" if frozen() and sys.platform == "win32" else "appliance"


def windowed_program() -> bool:
    """Whether this is the frozen program that has no console, wherever its streams lead."""
    return frozen() and sys.platform == "win32" and not Path(sys.executable).stem.endswith("-cli")


def program_folder() -> Path:
    """The folder that was installed: the frozen program's, or the one that holds this package."""
    return Path(sys.executable).parent if frozen() else Path(__file__).resolve().parents[2]
