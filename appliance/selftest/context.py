"""What the checks share: the settings, a folder of their own, and the server they started."""

import contextlib
import logging
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from appliance.settings import Settings
from appliance.system.autostart import Place
from appliance.system.instance import Instance

if TYPE_CHECKING:
    from appliance.app import Appliance

FAR = "far"
"""The name of the model that lies on a path that is hard to bear."""

_KEPT = (
    "device",
    "threads",
    "memory_fraction",
    "cpu_memory_fraction",
    "memory_reserve_bytes",
    "load_timeout_ms",
)
_TAIL = 40  # lines of a log that go into the report
_PATIENCE_S = 8.0


class Lacking(Exception):
    """What a check needs is not there, since an earlier one failed; the message says what."""


@dataclass
class Context:
    """`settings` are the user's (`settings_fault`: why they could not be read; then they are the defaults).
    `folder` is the self-test's own, empty at first; `models` the models folder in it, once there is one;
    `autostart` the place of an entry that is not the user's, and `users_autostart` of the one that is."""

    settings: Settings
    folder: Path
    settings_fault: str | None = None
    autostart: Place | None = None
    users_autostart: Place | None = None
    models: Path | None = None
    instance: Instance | None = None
    appliance: "Appliance | None" = None
    client: httpx.Client | None = None
    logs: list[Path] = field(default_factory=list)

    def own_settings(self) -> Settings:
        """Those of the self-test's server: the defaults, in folders of its own, on the user's device."""
        kept = {name: getattr(self.settings, name) for name in _KEPT}
        models = self.models or self.folder / "models"
        return Settings.model_construct(**kept, port=0, state=self.folder / "state", models=models)

    @property
    def server(self) -> httpx.Client:
        """A client of the self-test's server. Lacking if that does not run."""
        if self.client is None:
            raise Lacking("there is no server to ask: it did not start")
        return self.client

    def status(self) -> dict[str, Any]:
        """``/api/status`` of the self-test's server. Lacking if it does not answer as it should."""
        got = self.server.get("/api/status")
        if got.status_code != 200:
            raise Lacking(f"/api/status answers {got.status_code}")
        found: dict[str, Any] = got.json()
        return found

    def tails(self) -> dict[str, str]:
        """The last lines of the logs, by file name."""
        found = {}
        for file in sorted({*self.logs, *(self.folder / "state" / "logs").glob("*.log")}):
            with contextlib.suppress(OSError):
                lines = file.read_text("utf-8", errors="replace").splitlines()[-_TAIL:]
                if lines:
                    found[file.name] = "\n".join(lines)
        return found

    def close(self) -> None:
        """Stop what runs and remove the folder; bounded, and nothing is raised."""
        if self.client is not None:
            self.client.close()
        if self.appliance is not None and not self.appliance.stopped.is_set():
            stopping = threading.Thread(target=self.appliance.stop, name="selftest-stop", daemon=True)
            stopping.start()
            stopping.join(_PATIENCE_S)
        if self.instance is not None:
            self.instance.release()
        for handler in list(logging.getLogger().handlers):  # an open file cannot be removed everywhere
            logging.getLogger().removeHandler(handler)
            handler.close()
        shutil.rmtree(self.folder, ignore_errors=True)
