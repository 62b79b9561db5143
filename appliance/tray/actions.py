"""What the lines of the menu do. Called in a thread of its own each; gives what to tell the person, or None."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from appliance.system import autostart, desktop
from appliance.system.long_paths import shown
from appliance.tray.menu import Action

DRAIN_S = 30.0
"""How long Quit lets requests be answered."""


class ControlError(RuntimeError):
    """The appliance did not do it; the message says why in one line."""


class Controls(Protocol):
    """What can be done with the running appliance, from any thread. Every call is bounded; all raise ControlError."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def load(self, model: str) -> None:
        """Returns when it is warm."""
        ...

    def unload(self, model: str) -> None: ...

    def pin(self, model: str, pinned: bool) -> None: ...

    def restart_engine(self) -> None: ...

    def dashboard(self) -> str:
        """What stands behind the appliance's address for a person who may do all."""
        ...

    def drain(self, within_s: float) -> bool:
        """Take nothing new, answer what is there, then end. False where that is under way already, or not for this
        program to do."""
        ...


class Actions:
    """``address``: the appliance's of now; ``save`` makes a diagnostic file and gives its place, or raises OSError;
    ``leave`` ends the program at once."""

    def __init__(
        self,
        controls: Controls,
        address: Callable[[], str],
        models: Path,
        logs: Path,
        save: Callable[[], Path],
        leave: Callable[[], None],
    ) -> None:
        self._controls = controls
        self._address = address
        self._models = models
        self._logs = logs
        self._save = save
        self._leave = leave
        self._one_save = threading.Lock()

    @property
    def saving(self) -> bool:
        """Whether a diagnostic file is being made."""
        return self._one_save.locked()

    def __call__(self, action: Action, model: str) -> str | None:
        """Raises DesktopError where the desktop could not do it."""
        try:
            return self._do(action, model)
        except ControlError as error:
            return str(error)
        except autostart.AutostartError as error:
            return f"start at login: {error}"

    def _do(self, action: Action, model: str) -> str | None:
        controls = self._controls
        match action:
            case "open_dashboard":
                desktop.open_url(self._address() + controls.dashboard())
            case "open_docs":
                desktop.open_url(f"{self._address()}/docs")
            case "copy_address":
                desktop.copy_text(self._address())
            case "open_models":
                desktop.open_folder(self._models)
            case "open_logs":
                desktop.open_folder(self._logs)
            case "pause":
                controls.pause()
            case "resume":
                controls.resume()
            case "restart_engine":
                controls.restart_engine()
            case "load_model":
                controls.load(model)
            case "unload_model":
                controls.unload(model)
            case "pin_model":
                controls.pin(model, True)
            case "unpin_model":
                controls.pin(model, False)
            case "start_at_login":
                autostart.enable()
            case "no_start_at_login":
                autostart.disable()
            case "save_diagnosis":
                return self._save_once()
            case "quit":
                if not controls.drain(DRAIN_S):
                    self._leave()
        return None

    def _save_once(self) -> str | None:
        if not self._one_save.acquire(blocking=False):
            return None
        try:
            file = self._save()
        except OSError as error:
            return f"the diagnostic file cannot be saved: {error.strerror or error}"
        finally:
            self._one_save.release()
        with contextlib.suppress(desktop.DesktopError):
            desktop.open_folder(file.parent)
        return f"Saved: {shown(file)}"


def starts_at_login() -> bool | None:
    """Whether the next login starts it; None where that cannot be told or there is no such thing."""
    try:
        return autostart.enabled()
    except autostart.AutostartError:
        return None
