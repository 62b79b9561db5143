"""A catalog with everything around it in the test's hands."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from appliance.engine.client import EngineClient
from appliance.gate.gate import Gate
from appliance.models.repository import Root
from appliance.serving.catalog import Catalog
from appliance.serving.events import Events
from appliance.settings import Settings
from tests.support.fake_client import FakeClient
from tests.support.fake_runner import rows
from tests.unit.gate.gate_helpers import Bounds, Ends


class Bench:
    """A catalog of a folder of fake models, its worker running."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.hangs: list[str] = []
        self.gate = Gate(Bounds(), Ends(), self.hangs.append)
        self.events = Events()
        self.catalog = Catalog(Settings(**settings), [Root(folder)], self.gate, self.events)
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
