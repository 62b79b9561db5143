"""An engine client in a test's hands: loads succeed, fail or wait as the test says. Runs are as in ``FakeRunner``."""

import asyncio

from appliance.engine.client import EngineDied, OnProgress
from appliance.engine.messages import Load, Loaded
from appliance.errors import ApplianceError
from appliance.models.spec import ModelSpec, TensorSpec
from tests.support.fake_runner import FakeRunner


class FakeClient(FakeRunner):
    """``faults``: what loading a model of this name raises; ``hold``: names whose loads wait until let go."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[Load] = []
        self.unloads: list[int] = []
        self.pings = 0
        self.runtimes: dict[str, str] = {}
        self.faults: dict[str, ApplianceError] = {}
        self.hold: dict[str, asyncio.Event] = {}
        self._death: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def load(self, message: Load, on_progress: OnProgress | None = None) -> Loaded:
        self._check()
        self.loads.append(message)
        if message.model in self.hold:
            waiter = asyncio.ensure_future(self.hold[message.model].wait())
            await asyncio.wait({waiter, self._death}, return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()
        await asyncio.sleep(0)
        self._check()
        if message.model in self.faults:
            raise self.faults[message.model]
        x = TensorSpec("x", "FP32", (-1, -1), ("N", None))
        y = TensorSpec("y", "FP32", (-1, -1), ("N", None))
        spec = ModelSpec(message.model, message.version, "fake", "fake", (x,), (y,), config=message.config)
        return Loaded(message.handle, spec, 1.0, 2.0, 3)

    def ping(self) -> None:
        self.pings += 1

    async def unload(self, handle: int) -> None:
        self.unloads.append(handle)

    def die(self, reason: str = "killed") -> None:
        if not self._death.done():
            self._death.set_result(None)
        super().die(reason)

    def _check(self) -> None:
        if self.dead is not None:
            raise EngineDied(self.dead)
