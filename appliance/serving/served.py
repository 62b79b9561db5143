"""What is known of each model now: the folder's wish, the loaded copies, the faults."""

from typing import Literal

import msgspec

from appliance.models.repository import ModelFile, ModelFolder
from appliance.models.spec import ModelSpec
from appliance.pipelines.base import Pipeline

State = Literal["UNAVAILABLE", "LOADING", "READY"]


class ServedVersion:
    """One version of one model.

    ``file``: what should be served; ``loaded``: the fingerprint of what is; they differ while a new file is
    being loaded or when it is broken. ``error``: why the newest file is not served. ``tried``: the fingerprint
    that failed; it is not tried again until the file changes or somebody asks. ``asleep``: not loaded, but a request
    wakes it (``load = "lazy"``, or it made room for others, or there was no room for it). ``waking``: it is being
    loaded because a request asked. ``no_room``: there was none for the newest file; ``for_now``: only
    as long as others have it.
    """

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self.state: State = "UNAVAILABLE"
        self.loaded: str | None = None
        self.handle = 0
        self.spec: ModelSpec | None = None
        self.error: str | None = None
        self.tried: str | None = None
        self.load_ms = 0.0
        self.warmup_ms = 0.0
        self.memory_bytes = 0
        self.load_deaths = 0
        self.asleep = False
        self.waking = False
        self.no_room = False
        self.for_now = False

    @property
    def ready(self) -> bool:
        return self.state == "READY"

    @property
    def current(self) -> bool:
        """True if what is loaded is what lies in the folder."""
        return self.loaded == self.file.fingerprint

    def serves(self, file: ModelFile, handle: int, spec: ModelSpec | None) -> None:
        """A warm copy of ``file`` answers from now on."""
        self.loaded, self.handle, self.spec = file.fingerprint, handle, spec
        self.state, self.error, self.tried, self.load_deaths = "READY", None, None, 0
        self.asleep = self.waking = self.no_room = False

    def failed(self, words: str) -> None:
        """The newest file cannot be served; an older copy goes on."""
        self.error, self.tried, self.waking = words, self.file.fingerprint, False
        self.state = "READY" if self.loaded is not None else "UNAVAILABLE"

    def sleep(self) -> None:
        """Not loaded until a request asks for it."""
        self.state, self.loaded, self.handle = "UNAVAILABLE", None, 0
        self.asleep, self.waking, self.error = True, False, None

    def refused(self, words: str, for_now: bool) -> None:
        """There was no room for the newest file. An older copy goes on, else it sleeps."""
        if self.loaded is None:
            self.sleep()
        self.error, self.no_room, self.for_now = words, True, for_now

    def changes(self, file: ModelFile, lazy: bool) -> None:
        """What should be served is another file (or the same). A sleeper's is loaded, unless that is ``lazy``."""
        if self.asleep and file.fingerprint != self.file.fingerprint:
            self.asleep, self.no_room, self.error, self.tried = lazy, False, None, None
        self.file = file

    def wake(self) -> None:
        """A request asks for it."""
        self.waking = self.waking or self.asleep
        self.asleep = self.no_room = False
        self.error = self.tried = None

    def lost(self) -> None:
        """The engine is gone, and the loaded copy with it."""
        self.loaded, self.handle = None, 0
        if self.state == "READY":
            # Where an older copy served beside a newer file that failed, nothing can come back.
            self.state = "UNAVAILABLE" if self.tried == self.file.fingerprint else "LOADING"


class ServedModel:
    """One model. ``wanted``: it should be loaded (its ``load`` key, or what the API last said); ``gone``: it is no
    longer in the folder; ``pinned``: once loaded, it makes room for nobody."""

    def __init__(self, folder: ModelFolder) -> None:
        self.folder = folder
        self.wanted = folder.config.load != "manual"
        self.gone = False
        self.pinned = False
        self.versions = {file.version: self._new(file) for file in folder.files}
        self.pipeline: Pipeline | None = None

    def replace(self, folder: ModelFolder) -> None:
        """The folder has changed (or came back). Versions that are no longer in it stay until they are let go.

        One that cannot be read any more adds its error to what was last wished for, so that what serves goes on,
        also over an engine's death.
        """
        if folder.error and not self.gone and any(v.state != "UNAVAILABLE" for v in self.versions.values()):
            self.folder = msgspec.structs.replace(self.folder, error=folder.error)
            return
        wanted = folder.config.load != "manual" and not folder.error
        if self.gone or (self.folder.config.load == "manual" and wanted):
            self.wanted = wanted
        self.gone, self.folder = False, folder
        for file in folder.files:
            if file.version in self.versions:
                self.versions[file.version].changes(file, lazy=folder.config.load == "lazy")
            else:
                self.versions[file.version] = self._new(file)

    def _new(self, file: ModelFile) -> ServedVersion:
        version = ServedVersion(file)
        version.asleep = self.folder.config.load == "lazy"
        return version

    @property
    def asleep(self) -> bool:
        """True if a request has to wake it, or to wait for one that does."""
        return self.wanted and any(v.asleep or v.waking for v in self.versions.values())

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def error(self) -> str | None:
        """The folder's fault, or the newest version's."""
        if self.folder.error:
            return self.folder.error
        return next((v.error for v in reversed(self.versions.values()) if v.error), None)

    def newest_ready(self) -> ServedVersion | None:
        """The highest version that serves."""
        ready = [v for v in self.versions.values() if v.state == "READY"]
        return ready[0] if len(ready) == 1 else max(ready, key=lambda v: int(v.file.version), default=None)

    @property
    def settled(self) -> bool:
        """True when nothing is to be done: everything wanted is ready, has failed, or is for requests to ask for."""
        return not self.wanted or all(v.ready or v.error or v.asleep or v.waking for v in self.versions.values())
