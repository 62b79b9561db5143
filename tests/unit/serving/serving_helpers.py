"""A catalog with everything around it in the test's hands."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.engine.client import EngineClient, OnProgress
from appliance.engine.fleet import engine_id
from appliance.engine.messages import Load, Loaded
from appliance.gate.gate import Gate
from appliance.models.repository import Root
from appliance.serving.catalog import Catalog
from appliance.serving.events import Events
from appliance.serving.placement import Engines
from appliance.settings import Settings
from tests.support.fake_client import FakeClient
from tests.support.fake_runner import rows
from tests.unit.gate.gate_helpers import Bounds, Ends


class Bench:
    """A catalog of a folder of fake models, its worker running."""

    def __init__(self, folder: Path, *, engines: Engines | None = None, **settings: Any) -> None:
        self.folder = folder
        self.hangs: list[str] = []
        self.gate = Gate(Bounds(), Ends(), lambda reason, engine: self.hangs.append(reason))
        self.events = Events()
        self.catalog = Catalog(Settings(**settings), [Root(folder)], self.gate, self.events, engines)
        self.client = FakeClient()

    def model(self, name: str, text: str = "") -> None:
        """Write a fake model's folder; another text is another file."""
        (self.folder / name).mkdir(exist_ok=True)
        (self.folder / name / "model.toml").write_text(f'backend = "fake"\n{text}')

    def up(self) -> None:
        self.client = FakeClient()
        self.engine_up()

    def engine_up(self) -> None:
        client: Any = self.client
        typed: EngineClient = client
        self.catalog.engine_up(typed)

    def down(self) -> None:
        """In the order of the real thing."""
        self.catalog.engine_down("killed")
        self.client.die()

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.001)

    async def settled(self) -> None:
        await self.until(lambda: self.catalog.ready_but_failed() and not self.catalog._todo)
        await asyncio.sleep(0.01)

    async def rescan(self) -> None:
        await self.catalog.rescan()
        await self.settled()

    def ask(self, name: str, value: float = 1.0) -> Any:
        """Submit to the version that answers; the ticket and its queue."""
        version = self.catalog.version(name)
        queue = self.gate.queue(name, version.file.version)
        return queue, queue.submit("r", rows(value), ("y",), queue_s=20, run_s=20)


class FakeEngines:
    """Two places. ``started``: engines in the order in which they were asked for; ``failing_now``: those that do not
    come back."""

    places = ("cpu:0", "cpu:1")

    def __init__(self) -> None:
        self.started = list(self.places)
        self.failing_now: set[str] = set()

    def name(self, place: str, family: str) -> str:
        return engine_id(place, family)

    def engine(self, place: str, family: str) -> str:
        name = engine_id(place, family)
        if name not in self.started:
            self.started.append(name)
        return name

    def threads(self, place: str) -> int:
        return 0

    def failing(self, engine: str) -> bool:
        return engine in self.failing_now


class _Client(FakeClient):
    """``deadly()``: whether loading that model ends the engine."""

    def __init__(self, deadly: Callable[[str], bool], dies: Callable[[], None]) -> None:
        super().__init__()
        self._deadly = deadly
        self._dies = dies

    async def load(self, message: Load, on_progress: OnProgress | None = None) -> Loaded:
        if self._deadly(message.model):
            self._dies()
        return await super().load(message, on_progress)


class TwoEngines(Bench):
    """A catalog over two engines. ``deadly``: (engine, model) whose load ends the engine; ``deaths``: by that."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.engines = FakeEngines()
        super().__init__(folder, engines=self.engines, **settings)
        self.clients: dict[str, FakeClient] = {}
        self.deadly: set[tuple[str, str]] = set()
        self.deaths: Counter[str] = Counter()

    def up(self, engine: str = "") -> None:
        def dies() -> None:
            self.deaths[engine] += 1
            self.down(engine)

        self.engines.failing_now.discard(engine)
        client: Any = _Client(lambda model: (engine, model) in self.deadly, dies)
        self.clients[engine] = client
        self.catalog.engine_up(client, engine)

    def down(self, engine: str = "") -> None:
        """In the order of the real thing."""
        self.catalog.engine_down("killed", engine)
        self.clients[engine].die()

    def fails(self, engine: str) -> None:
        """It does not come back for now."""
        self.engines.failing_now.add(engine)
        self.catalog.engine_failing(engine)

    async def quiet(self) -> None:
        """What can be done without anything happening is done."""
        await asyncio.sleep(0.05)
        await self.until(lambda: not self.catalog._todo and self.catalog._at is None)
