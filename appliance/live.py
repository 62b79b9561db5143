"""Settings and keys that change while the appliance runs. Part of the composition root."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
import watchfiles

from appliance import logs
from appliance.api.application import Application
from appliance.api.context import Context
from appliance.gate.gate import Observer
from appliance.keys import Key, KeyFile, KeysError
from appliance.serving.remarks import Remarks
from appliance.settings import Settings, SettingsError
from appliance.system import paths, ports

log = structlog.get_logger("appliance")

_AGAIN_S = 5.0


class Live:
    """Takes them up. ``observer``: what the gate tells its ends where no request is logged; ``sources``: whether the
    settings come from files and variables (else only the keys may change)."""

    def __init__(self, application: Application, context: Context, observer: Observer, sources: bool) -> None:
        self._application = application
        self._context = context
        self._observer = observer
        self._sources = sources
        settings = context.settings
        self._stored = 0
        self._faults: list[str] = []
        self._keys = KeyFile(settings.state_folder())
        self._files = [*(paths.settings_files() if sources else []), self._keys.path]
        self._seen = _stamps(self._files)
        self._remarks = Remarks(context.status.notes)
        self._lock = asyncio.Lock()
        context.reload = self.take_up
        self._locked(self._keys.read())
        self._renew()

    async def take_up(self) -> dict[str, Any]:
        """Read all again. ``applied``: the settings that are other now; ``restart_needed``: those that will be after
        a restart; ``keys``: how many there are; ``faults``: why something stays as it was."""
        async with self._lock:
            fresh, stored, faults = await asyncio.to_thread(self._read)
            settings, status = self._context.settings, self._context.status
            applied, waiting = settings.take_up(fresh) if fresh is not None else ([], status.restart_needed)
            changed = self._locked(stored) if stored is not None else False
            if "log_level" in applied:
                logs.set_level(settings.log_level)
            if applied or changed:
                self._renew()
                log.info("settings taken up", applied=applied, keys_changed=changed)
            told = (waiting, faults) != (status.restart_needed, self._faults)
            status.restart_needed, self._faults = waiting, faults
            if waiting:
                faults = [f"changed, and counts after a restart: {', '.join(waiting)}", *faults]
            self._remarks.are(faults)
            found = {"applied": applied, "restart_needed": waiting, "faults": self._faults}
            if applied or changed or told:
                self._context.events.publish("settings", **found)
            return {**found, "keys": self._stored}

    async def watch(self) -> None:
        """Take up what changes in the files, for ever."""
        while True:
            folders = {file.parent for file in self._files if file.parent.is_dir()}
            try:
                if folders:
                    await self._watch(folders)
                    continue  # with those that are there now
            except OSError as error:  # the system has no watches left, or a folder went: a slow second way
                log.debug("the settings cannot be watched", reason=error.strerror)
            await self._look()
            await asyncio.sleep(_AGAIN_S)

    async def _watch(self, folders: set[Path]) -> None:
        """Until a folder comes or goes."""
        names = {file.name for file in self._files}
        changes = watchfiles.awatch(
            *folders,
            watch_filter=lambda _, path: Path(path).name in names,
            debounce=800,
            step=200,
            recursive=False,
            ignore_permission_denied=True,
            yield_on_timeout=True,
        )
        async with contextlib.aclosing(changes):
            async for _ in changes:
                await self._look()  # also after a quiet time: some file systems do not tell
                if folders != {file.parent for file in self._files if file.parent.is_dir()}:
                    return

    async def _look(self) -> None:
        stamps = _stamps(self._files)
        if stamps != self._seen:
            self._seen = stamps
            try:
                await self.take_up()
            except Exception:
                log.exception("internal fault", what="taking up settings")

    def _read(self) -> tuple[Settings | None, list[Key] | None, list[str]]:
        """What the files say. None for what is wrong, and what is wrong, without paths."""
        fresh, stored, faults = None, None, []
        if self._sources:
            try:
                fresh = self._context.settings.reloaded()
            except SettingsError as error:
                faults += [f"settings are not taken up: {fault.public}" for fault in error.faults]
        try:
            stored = self._keys.read()
        except KeysError as error:
            faults.append(f"keys stay as they were: {error}")
        return fresh, stored, faults

    def _locked(self, stored: list[Key]) -> bool:
        """These are the keys. True if that is a change."""
        settings, self._stored = self._context.settings, len(stored)
        return self._context.keys.renew(stored, settings.api_key, not ports.is_loopback(settings.host))

    def _renew(self) -> None:
        """Everything that was made of settings and keys is made anew."""
        context, gate = self._context, self._context.gate
        context.renew()
        self._application.renew()
        gate.limits_changed()
        context.request_log.mode = context.settings.log_requests
        gate.observer = context.request_log.around(self._observer)


def _stamps(files: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    return [_stamp(file) for file in files]


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
