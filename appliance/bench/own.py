"""An appliance of the bench's own, so that a model's settings can be varied without touching those in use."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from appliance.bench.faults import BenchError
from appliance.bench.model_toml import Key, edited
from appliance.bench.server import Start
from appliance.bench.target import Target
from appliance.errors import ApplianceError
from appliance.models.folder import TOML, ModelFolder
from appliance.models.repository import add
from appliance.pipelines.base import PipelineContext
from appliance.pipelines.build import build
from appliance.settings import Settings
from appliance.system import ending, paths
from appliance.system.instance import only_one
from appliance.system.processes import ChildDidNotConnect, start_child

_START_S = 60.0
_END_S = 10.0


class Own:
    """A folder with a copy of one model, and of those it is made of. ``started`` serves it with some settings."""

    def __init__(self, settings: Settings, folder: Path, name: str, models: Mapping[str, ModelFolder]) -> None:
        self.name = name
        self._settings = settings
        self._folder = folder
        self._models = folder / "models"
        try:
            for part in (name, *_parts(models[name])):
                if part in models:
                    add(self._models, models[part].path, part)
        except ApplianceError as error:
            raise BenchError(f"the model cannot be copied: {error.message}") from None
        # Nobody asks for it while it sleeps, and what is measured is the model, not the limit on it.
        self._file = self._models / name / TOML
        self._text = edited(_text(self._file), {("load",): None, ("limits", "rate"): None})
        self._declared = (self._models / name / "config.pbtxt").exists()

    @contextlib.contextmanager
    def started(self, changes: Mapping[Key, Any]) -> Iterator[Target]:
        """It runs, with these keys of ``model.toml`` changed, until the end of the ``with``. BenchError if not."""
        if not self._declared:
            self._file.write_text(edited(self._text, changes), "utf-8")
        log = self._folder / "server.log"
        with log.open("wb") as stream:
            try:
                process, connection = start_child([*paths.program_command(), "bench-server"], None, stream)
            except (OSError, ChildDidNotConnect) as error:
                raise BenchError(f"an appliance could not be started: {error}") from None
        target: Target | None = None
        try:
            target = Target(self._announced(connection, log), {}, self.name)
            target.wait_ready(self._settings.load_timeout_ms / 1000)
            yield target
        finally:
            if target is not None:
                target.close()
            _end(process, connection)

    def _announced(self, connection: socket.socket, log: Path) -> str:
        """Its address, once it answers there."""
        start = Start(self._server_settings().model_dump(mode="json"), str(self._settings.state_folder()))
        connection.settimeout(_START_S)
        try:
            connection.sendall(msgspec.json.encode(start) + b"\n")
            with connection.makefile("rb") as lines:
                url = lines.readline().decode().strip()
        except TimeoutError:
            raise BenchError(f"the started appliance said nothing within {_START_S:.0f} s") from None
        except OSError:  # it has closed the connection
            url = ""
        if not url:
            told = log.read_text("utf-8", errors="replace").splitlines() or ["it said nothing"]
            raise BenchError(f"the started appliance ended at once: {told[-1][:300]}")
        return url

    def _server_settings(self) -> Settings:
        """The user's, but for where it is, who may call and how often."""
        return self._settings.model_copy(
            update={
                "host": "127.0.0.1",
                "port": 0,
                "models": self._models,
                "embedded_models": False,
                "state": self._folder / "state",
                "log_level": "warning",
                "api_key": None,
                "rate_limit_client": None,
                "rate_limit_model": None,
                "rate_limit_storage": "memory://",
            }
        )


@contextlib.contextmanager
def own(settings: Settings, name: str, models: Mapping[str, ModelFolder]) -> Iterator[Own]:
    """One with a copy of this model in the state folder, which goes with the ``with``.

    BenchError if another bench is at it (two would disturb each other), or the model cannot be copied.
    """
    folder = settings.state_folder() / "bench"
    with contextlib.ExitStack() as stack:
        try:
            first = stack.enter_context(only_one(folder.with_suffix(".lock")))
            if first:
                shutil.rmtree(folder, ignore_errors=True)  # of one that was killed
                folder.mkdir(parents=True)
        except OSError as error:
            raise BenchError(f"the state folder cannot be written: {error.strerror}") from None
        if not first:
            raise BenchError("another bench runs; two at once would only measure each other")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Own(settings, folder, name, models)


def _parts(model: ModelFolder) -> tuple[str, ...]:
    """The other models that it calls. They are found without loading it only where it is made of nothing else."""
    if model.config.backend != "pipeline":
        return ()
    return build(PipelineContext(model.name, model.config.pipeline, None, model.labels)).parts


def _text(file: Path) -> str:
    return file.read_text("utf-8-sig") if file.exists() else ""


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        ending.end(ending.tree(process.pid))
        process.wait()
