"""Who leaves for a model that is to be loaded, what is booked meanwhile, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.engine.messages import DeviceMemory
from appliance.errors import InsufficientMemory, ModelLoadError, ModelNotFound, Overloaded, WarmingUp
from appliance.gate.gate import Gate
from appliance.models.repository import ModelFile, Root, scan
from appliance.models.spec import ModelConfig
from appliance.serving import room
from tests.support.fake_client import FakeClient
from tests.support.fake_runner import rows
from tests.unit.gate.gate_helpers import Bounds, Ends
from tests.unit.serving.serving_helpers import Bench

MIB = 1 << 20
HAS = "[backend_options]\nweight_bytes = "


class Loaded(Bench):
    """A catalog whose fake models have the weights they say, on a device of 1000 MiB. ``full_from``: MiB of weights
    from which loading really runs out."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.full_from = 10**6
        self.up()
        self.reads()

    def up(self) -> None:
        bench = self

        class Client(FakeClient):
            async def load(self, message: Any, on_progress: Any = None) -> Any:
                found = await super().load(message)
                size = message.config.backend_options["weight_bytes"]
                real = message.config.backend_options.get("real_bytes", size)
                if bench.ledger.weights + real > bench.full_from * MIB:
                    raise InsufficientMemory("not enough memory to load the model")
                spec = msgspec.structs.replace(found.spec, device="fake:0")
                return msgspec.structs.replace(found, spec=spec, memory_bytes=real)

        self.client = Client()
        self.engine_up()

    def reads(self, others: int = 0) -> None:
        self.gate.memory_read({"fake:0": DeviceMemory(1000 * MIB, (1000 - others) * MIB, 0)})

    @property
    def ledger(self) -> Any:
        return self.gate.memory.ledger("fake:0")

    async def add(self, name: str, mib: int, config: str = "", more: str = "") -> None:
        self.model(name, f"{config}\n{HAS}{mib * MIB}\n{more}")
        await self.rescan()

    def served(self) -> set[str]:
        return {name for name, model in self.catalog.models.items() if model.newest_ready()}

    async def use(self, name: str) -> None:
        """A request comes and is answered."""
        queue, ticket = self.ask(name)
        self.client.finish()
        await queue.result(ticket)
        queue.last_used = max(q.last_used for q in self.gate.queues.values()) + 1e-6


@pytest.fixture
def worked(tmp_path: Path) -> Any:
    """Runs a test's coroutine with a catalog at work."""

    def run(test: Any) -> None:
        async def main() -> None:
            bench = Loaded(tmp_path)
            worker = asyncio.ensure_future(bench.catalog.run())
            try:
                async with asyncio.timeout(60):
                    await test(bench)
            finally:
                worker.cancel()

        asyncio.run(main())

    return run


def test_the_longest_unused_leaves_and_only_as_many_as_needed(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        for name in ("a", "b", "c"):
            await bench.add(name, 300)
        for name in ("b", "a", "c"):
            await bench.use(name)
        await bench.add("d", 350)
        assert bench.served() == {"a", "c", "d"} and bench.ledger.weights == 950 * MIB
        assert bench.client.unloads == [2]
        await bench.add("e", 600)
        assert bench.served() == {"d", "e"}

    worked(test)


def test_required_and_kept_and_busy_ones_stay(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        await bench.add("required", 300, "required = true")
        await bench.add("kept", 300, "keep_alive_s = 1000.0")
        await bench.add("free", 300)
        await bench.add("new", 350)
        assert bench.served() == {"required", "kept", "new"}
        queue, ticket = bench.ask("new")
        with pytest.raises(Overloaded, match=r"needs about 300 MiB.*hold 950 MiB \(0 MiB of it idle\)"):
            await bench.catalog.load("free")
        assert bench.served() == {"required", "kept", "new"}
        bench.client.finish()
        await queue.result(ticket)
        await bench.catalog.load("free")
        assert bench.served() == {"required", "kept", "free"}
        await bench.add("huge", 701)
        with pytest.raises(InsufficientMemory):
            await bench.catalog.load("huge")
        assert bench.served() == {"required", "kept", "free"}, "nobody leaves in vain"

    worked(test)


def test_other_programs_are_waited_for(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        bench.reads(others=600)
        await bench.add("a", 500, 'load = "lazy"')
        with pytest.raises(Overloaded, match="other programs hold 600 MiB"):
            await bench.catalog.wake("a", 0.3)
        waiting = asyncio.ensure_future(bench.catalog.wake("a", 30))
        await asyncio.sleep(0.1)
        bench.reads()
        await waiting
        assert bench.served() == {"a"}

    worked(test)


def test_a_sleeper_is_woken_by_what_asks_for_it(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        await bench.add("a", 500, 'load = "lazy"')
        model = bench.catalog.model("a")
        assert model.asleep and model.settled and bench.catalog.ready()
        with pytest.raises(ModelNotFound, match="a request loads it"):
            bench.catalog.version("a")
        bench.client.hold["a"] = asyncio.Event()
        first, second = (asyncio.ensure_future(bench.catalog.wake("a", 30)) for _ in range(2))
        await bench.until(lambda: bench.client.loads)
        assert model.asleep, "others that come now wait too"
        assert bench.catalog.ready(), "a model on demand does not take the appliance away"
        with pytest.raises(WarmingUp):
            bench.catalog.version("a")
        with pytest.raises(WarmingUp):
            await bench.catalog.wake("a", 0.05)
        bench.client.hold["a"].set()
        await asyncio.gather(first, second)
        assert bench.served() == {"a"} and len(bench.client.loads) == 1 and not model.asleep
        await bench.catalog.unload("a")
        assert not model.asleep, "what was unloaded by hand is not woken"

    worked(test)


def test_the_room_of_a_load_is_booked_while_it_lasts(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        bench.client.hold["a"] = asyncio.Event()
        bench.model("a", f"{HAS}{400 * MIB}")
        await bench.catalog.rescan()
        await bench.until(lambda: bench.client.loads)
        assert (bench.ledger.in_flight, bench.ledger.weights) == (400 * MIB, 0)
        bench.client.hold["a"].set()
        await bench.settled()
        assert (bench.ledger.in_flight, bench.ledger.weights) == (0, 400 * MIB)
        assert bench.client.pings == 1

    worked(test)


def test_the_warm_up_s_largest_run_is_booked_with_it_as_far_as_there_is_room(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        await bench.add("idle", 300)
        memory = f"[memory]\nrun_bytes = {50 * MIB}\nitem_bytes = {25 * MIB}\n[batching]\nmax = 4\n"
        for name, weights, booked in (("a", 200, 200 + 50 + 4 * 25), ("b", 480, 500)):
            bench.client.hold[name] = asyncio.Event()
            bench.model(name, f"{memory}{HAS}{weights * MIB}")
            await bench.catalog.rescan()
            await bench.until(lambda name=name: bench.client.loads[-1].model == name)
            assert bench.ledger.in_flight == booked * MIB
            bench.client.hold[name].set()
            await bench.settled()
        assert bench.served() == {"idle", "a", "b"}, "nobody leaves for a warm-up alone"

    worked(test)


def test_idle_models_leave_for_a_run_that_would_never_fit_beside_them(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        each = f"[memory]\nrun_bytes = 0\nitem_bytes = {100 * MIB}\n[batching]\nmax = 1\n"
        await bench.add("required", 100, "required = true")
        await bench.add("kept", 100, "keep_alive_s = 1000.0")
        for name in ("older", "newer"):
            await bench.add(name, 200)
            await bench.use(name)
        await bench.add("m", 100, each)
        queue = bench.gate.queue("m", "1")

        def ask(items: int) -> Any:
            return queue.submit("r", rows(*[1.0] * items), ("y",), queue_s=20, run_s=20)

        assert ask(3).state == "running", "300 are left"
        bench.client.finish()
        waits = ask(4)
        assert waits.state == "queued"
        await bench.until(lambda: waits.state == "running")
        assert bench.served() == {"required", "kept", "newer", "m"}, "the longest unused, and no more than needed"
        bench.client.finish()
        waits = ask(8)
        await asyncio.sleep(0.05)
        assert waits.state == "queued" and "newer" in bench.served(), "in vain: what is kept has to go too"
        bench.catalog.model("kept").folder = msgspec.structs.replace(
            bench.catalog.model("kept").folder, config=ModelConfig(backend="fake")
        )
        bench.reads()  # the next heartbeat
        await bench.until(lambda: waits.state == "running")
        assert bench.served() == {"required", "m"}
        with pytest.raises(InsufficientMemory):
            ask(9)

    worked(test)


def test_a_load_waits_for_runs_but_not_for_what_waits(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        bench.ledger.start("run", 700 * MIB)
        bench.ledger.reserve("waits for this very model", 1000 * MIB)
        bench.model("a", f"{HAS}{400 * MIB}")
        await bench.catalog.rescan()
        await asyncio.sleep(0.1)
        assert not bench.client.loads
        bench.ledger.end("run")
        await bench.settled()
        assert bench.served() == {"a"}

    worked(test)


def test_a_load_that_takes_more_than_its_files_suggest_is_tried_again(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        bench.full_from = 1000
        for name in ("a", "b"):
            await bench.add(name, 300)
        await bench.use("a")
        await bench.add("c", 100, more=f"real_bytes = {500 * MIB}")
        assert bench.served() == {"a", "c"} and bench.ledger.weights == 800 * MIB
        await bench.add("d", 100, more=f"real_bytes = {5000 * MIB}")
        assert bench.served() == set(), "all were asked to leave, once"
        with pytest.raises(InsufficientMemory):
            await bench.catalog.wake("d", 30)
        await bench.catalog.wake("a", 30)
        with pytest.raises(InsufficientMemory):
            await bench.catalog.wake("d", 30)
        assert bench.served() == {"a"}, "it is known by now"
        assert bench.ledger.in_flight == 0

    worked(test)


def test_no_room_and_then_another_file(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        await bench.add("a", 1001)
        model = bench.catalog.model("a")
        assert model.asleep and "it needs about 1001 MiB" in str(model.error)
        await bench.add("a", 900)
        assert bench.served() == {"a"} and model.error is None
        await bench.add("a", 1002)
        assert bench.served() == {"a"} and "1002" in str(model.error), "the old copy goes on"
        with pytest.raises(InsufficientMemory):
            await bench.catalog.load("a")

    worked(test)


def test_after_an_engine_s_death_sleepers_sleep_on(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        await bench.add("a", 600)
        await bench.add("b", 600)
        assert bench.served() == {"b"}
        bench.down()
        assert (bench.ledger.weights, bench.ledger.in_flight) == (0, 0)
        bench.up()
        await bench.settled()
        assert bench.served() == {"b"} and bench.ledger.weights == 600 * MIB

    worked(test)


# --- sizes and homes -----------------------------------------------------------------------------------------------


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def file_of(folder: Path, name: str) -> tuple[Any, ModelFile]:
    found = scan([Root(folder)])[name]
    return found, found.files[0]


def test_what_loading_takes(tmp_path: Path) -> None:
    write(tmp_path / "bare.onnx", 1000)
    write(tmp_path / "deep" / "1" / "model.onnx", 100)
    write(tmp_path / "deep" / "1" / "weights" / "data.bin", 900)
    write(tmp_path / "deep" / "0" / "model.onnx", 5000)
    write(tmp_path / "named" / "1" / "net.onnx", 100)
    write(tmp_path / "named" / "1" / "net.onnx.data", 300)
    assert room.needed(*file_of(tmp_path, "bare")) == 1100
    assert room.needed(*file_of(tmp_path, "deep")) == 1100
    assert room.needed(*file_of(tmp_path, "named")) == 440
    folder, file = file_of(tmp_path, "bare")
    (tmp_path / "bare.onnx").unlink()
    assert room.needed(folder, file) == 0


def test_where_a_model_will_live(tmp_path: Path) -> None:
    write(tmp_path / "m.onnx", 10)
    write(tmp_path / "n" / "model.onnx", 10)
    (tmp_path / "n" / "model.toml").write_text('device = "cpu"')

    async def main() -> None:
        gate = Gate(Bounds(), Ends(), lambda _: None)
        client = FakeClient()
        m, n = file_of(tmp_path, "m"), file_of(tmp_path, "n")

        def home(policy: str, what: tuple[Any, ModelFile] = m) -> str:
            return room.Room(gate, list, lambda engine: client).home(*what, room.Target(policy, "", client))

        reading = DeviceMemory(100, 100, 0)
        gate.memory_read({"cpu": reading, "cuda:0": reading, "cuda:1": reading})
        assert home("auto") == "cpu", "a card alone is not enough: the runtime has to be able to use it"
        client.runtimes = {"onnxruntime-gpu": "1"}
        assert [home(p) for p in ("auto", "cuda", "cuda:1", "cpu")] == ["cuda:0", "cuda:0", "cuda:1", "cpu"]
        assert home("auto", n) == "cpu"

    asyncio.run(main())


def test_what_a_failed_load_left_taken_is_not_put_down_to_the_run_beside_it(worked: Any) -> None:
    async def test(bench: Loaded) -> None:
        def holds(mib: int, busy: int) -> None:
            bench.gate.memory_read({"fake:0": DeviceMemory(1000 * MIB, (1000 - mib) * MIB, mib * MIB)}, busy)

        await bench.add("a", 100)
        holds(100, 0)
        _, ticket = bench.ask("a")
        bench.client.faults["b"] = ModelLoadError("not a model")
        await bench.add("b", 200)
        holds(300, 1)
        assert bench.gate.memory.untold == set()
        bench.client.finish()
        assert ticket.state == "done"
        holds(300, 0)
        bench.ask("a")
        holds(350, 1)
        assert bench.gate.memory.untold == {("a", "1")}, "from a new level on it is seen again"

    worked(test)
