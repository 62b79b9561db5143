"""What is known of each model now: the folder's wish, the loaded copies, the faults."""

from collections import Counter
from typing import Literal

import msgspec

from appliance.errors import ApplianceError, InsufficientMemory, Overloaded
from appliance.models.repository import ModelFile, ModelFolder
from appliance.models.spec import ModelSpec
from appliance.pipelines.base import Pipeline

State = Literal["UNAVAILABLE", "LOADING", "READY"]
_ROOM = (InsufficientMemory, Overloaded)


class LoadedCopy(msgspec.Struct, frozen=True):
    """A copy in one engine: of which file, its ``handle`` there, and what loading it took. ``spec``: None for a
    pipeline of other models, which is in no engine."""

    fingerprint: str
    handle: int
    spec: ModelSpec | None
    load_ms: float = 0.0
    warmup_ms: float = 0.0
    memory_bytes: int = 0


class ServedVersion:
    """One version of one model.

    ``file``: what should be served; ``copies``: what is, by the engine's id; they differ while a new file is being
    loaded or when it is broken. ``spec``: of the newest copy, also when it is lost. ``away``: engines in which a copy
    of it made room for others. ``barred``: engines that could not take a copy of this file, and why.
    ``progress``: what a load that takes long is doing. ``error``: why the newest file is not served, or not where it
    should be. ``tried``: the fingerprint that failed; it is not tried again until the file changes or somebody asks.
    ``load_deaths``: engines that ended while it was loaded. ``stuck``: it waits for an engine that does not start.
    ``asleep``: not loaded, but a request wakes it (``load = "lazy"``, or it made room for others, or there was no
    room for it). ``waking``: it is being loaded because a request asked. ``no_room``: there was none for the newest
    file; ``for_now``: only as long as others have it.
    """

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self.state: State = "UNAVAILABLE"
        self.copies: dict[str, LoadedCopy] = {}
        self.away: set[str] = set()
        self.barred: dict[str, ApplianceError] = {}
        self.spec: ModelSpec | None = None
        self.error: str | None = None
        self.progress: str | None = None
        self.tried: str | None = None
        self.load_deaths: Counter[str] = Counter()
        self.stuck = False
        self.asleep = False
        self.waking = False
        self.no_room = False
        self.for_now = False

    @property
    def ready(self) -> bool:
        return self.state == "READY"

    @property
    def loaded(self) -> bool:
        """There is a copy."""
        return bool(self.copies)

    @property
    def current(self) -> bool:
        """True if what is loaded is what lies in the folder, everywhere."""
        return bool(self.copies) and all(c.fingerprint == self.file.fingerprint for c in self.copies.values())

    def has(self, engine: str) -> bool:
        """True if that engine has a copy of what lies in the folder."""
        copy = self.copies.get(engine)
        return copy is not None and copy.fingerprint == self.file.fingerprint

    @property
    def load_ms(self) -> float:
        """The longest of its copies."""
        return max((copy.load_ms for copy in self.copies.values()), default=0.0)

    @property
    def warmup_ms(self) -> float:
        """The longest of its copies."""
        return max((copy.warmup_ms for copy in self.copies.values()), default=0.0)

    @property
    def memory_bytes(self) -> int:
        """Of all its copies."""
        return sum(copy.memory_bytes for copy in self.copies.values())

    def serves(self, copy: LoadedCopy, engine: str = "") -> None:
        """A warm copy answers from now on."""
        self.copies[engine], self.spec, self.progress = copy, copy.spec, None
        self.away.discard(engine)
        self.barred.pop(engine, None)
        self.load_deaths.pop(engine, None)
        self.state, self.error, self.tried = "READY", None, None
        self.asleep = self.waking = self.no_room = self.stuck = False

    def failed(self, words: str) -> None:
        """The newest file cannot be served; an older copy goes on."""
        self.error, self.tried, self.waking, self.stuck = words, self.file.fingerprint, False, False
        self.state = "READY" if self.copies else "UNAVAILABLE"

    def waits(self, words: str) -> None:
        """The engines that it needs do not start; when one does, it is loaded."""
        self.error, self.stuck, self.waking = words, True, False

    def lacks(self) -> None:
        """It serves: what is to be told are the engines that could not take a copy."""
        told = [f"{engine}: {error.message}" if engine else error.message for engine, error in self.barred.items()]
        self.error = "; ".join(told) or None

    def made_room(self, engine: str) -> None:
        """Its copy in that engine is no more; without another one it sleeps."""
        self.copies.pop(engine, None)
        self.away.add(engine)
        if not self.copies:
            self.sleep()

    def sleep(self) -> None:
        """Not loaded until a request asks for it."""
        self.state = "UNAVAILABLE"
        self.copies.clear()
        self.away.clear()
        self.barred.clear()
        self.asleep, self.waking, self.error = True, False, None

    def refused(self, words: str, for_now: bool) -> None:
        """There was no room for the newest file. An older copy goes on, else it sleeps."""
        if not self.copies:
            self.sleep()
        self.error, self.no_room, self.for_now = words, True, for_now

    def changes(self, file: ModelFile, lazy: bool) -> None:
        """What should be served is another file (or the same). A sleeper's is loaded, unless that is ``lazy``."""
        if self.asleep and file.fingerprint != self.file.fingerprint:
            self.asleep, self.no_room, self.error, self.tried = lazy, False, None, None
        if file.fingerprint != self.file.fingerprint:
            self.away.clear()
            self.barred.clear()
            self.load_deaths.clear()
        self.file = file

    def wake(self) -> None:
        """A request asks for it."""
        self.away.clear()
        self.barred.clear()
        self.waking = self.waking or self.asleep
        self.asleep = self.no_room = self.stuck = False
        self.error = self.tried = None

    def lost(self, engine: str = "") -> None:
        """An engine is gone, and the copy in it."""
        self.copies.pop(engine, None)
        self.away.discard(engine)
        if not self.copies:  # better a copy there than none
            self.away.clear()
            self.barred = {e: why for e, why in self.barred.items() if not isinstance(why, _ROOM)}
        if self.state == "READY" and not self.copies:
            # Where an older copy served beside a newer file that failed, nothing can come back.
            self.state = "UNAVAILABLE" if self.tried == self.file.fingerprint else "LOADING"

    def fresh(self, engine: str, require: bool) -> None:
        """That engine is a new process: it may have room, and (``require``) the device that the last one had not."""
        if require:
            self.tried = None
        why = self.barred.get(engine)
        if why is not None and (require or isinstance(why, _ROOM)):
            del self.barred[engine]


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
