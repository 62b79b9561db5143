"""Several loaded copies of one model: each request goes to the one that will start it first."""

import msgspec
import pytest

from appliance.engine.messages import DeviceMemory
from appliance.errors import EngineRestarting, InsufficientMemory, ModelError
from appliance.gate.ticket import Ticket
from appliance.models.spec import MemoryConfig, ModelConfig, ModelSpec
from tests.support.fake_runner import FakeRunner, model_spec, numbers
from tests.unit.gate.gate_helpers import Bench, passed, timed

MIB = 1 << 20


def on(device: str, run_mib: int = 0) -> ModelSpec:
    memory = MemoryConfig(run_bytes=run_mib * MIB) if run_mib else MemoryConfig()
    config = ModelConfig(memory=memory)
    return msgspec.structs.replace(model_spec(max_batch=0), device=device, engine=device, config=config)


class Two(Bench):
    """A model with a copy in each of two engines."""

    def __init__(self, run_mib: int = 0, devices: tuple[str, str] = ("cuda:0", "cuda:1")) -> None:
        super().__init__(attach=False)
        self.runners = {device: FakeRunner() for device in devices}
        for device in devices:
            self.up(device, run_mib)

    def up(self, device: str, run_mib: int = 0) -> None:
        spec = on(device, run_mib)
        self.gate.memory.loaded(spec.key, spec, 0, ())
        self.queue.attach(self.runners[device], 7, spec)

    def dies(self, device: str) -> None:
        self.gate.memory.cleared(device)
        self.queue.detach(device, lost=True)
        self.runners[device].die()
        self.runners[device] = FakeRunner()


@timed
async def test_requests_go_to_the_copy_with_a_free_lane_and_then_to_the_first_that_frees_one() -> None:
    two = Two()
    tickets = [two.submit(n) for n in range(3)]
    assert [ticket.device for ticket in tickets] == ["cuda:0", "cuda:1", ""]
    two.runners["cuda:1"].finish()
    assert tickets[2].device == "cuda:1"
    two.runners["cuda:0"].finish()
    two.runners["cuda:1"].finish()
    assert [numbers(await ticket.take()) for ticket in tickets] == [[0], [1], [2]]


@timed
async def test_one_engine_s_death_puts_its_run_to_the_other_copy() -> None:
    two = Two()
    first, second = two.submit(1), two.submit(2)
    waiting = two.submit(3)
    two.dies("cuda:0")
    assert (first.state, first.deaths) == ("queued", 1)
    assert second.state == "running", "the other engine's run has nothing to do with it"
    two.runners["cuda:1"].finish()
    assert first.device == "cuda:1" and waiting.state == "queued", "what was in a crash runs first, and alone"
    two.runners["cuda:1"].finish()
    two.runners["cuda:1"].finish()
    assert [numbers(await t.take()) for t in (first, second, waiting)] == [[1], [2], [3]]


@timed
async def test_a_request_that_was_in_a_crash_is_alone_in_its_engine_only() -> None:
    two = Two()
    first = two.submit(1)
    two.dies("cuda:0")
    two.up("cuda:0")
    await passed(0)
    assert first.state == "running", "one of the two is idle"
    other = two.submit(2)
    assert {first.device, other.device} == {"cuda:0", "cuda:1"}
    third = two.submit(3)
    assert third.state == "queued"


@timed
async def test_without_a_copy_a_request_waits_and_is_told_that_the_engine_is_restarted() -> None:
    two = Two()
    two.gate.queue("n", "1").attach(two.runners["cuda:1"], 9, model_spec())
    two.dies("cuda:0")
    two.dies("cuda:1")
    ticket = two.submit(1, queue_s=2)
    await passed(2.1)
    assert isinstance(ticket.error, EngineRestarting)


@timed
async def test_each_copy_has_the_memory_of_its_own_device() -> None:
    two = Two(run_mib=400)
    two.gate.memory_read({"cuda:0": DeviceMemory(1000 * MIB, 1000 * MIB, 0)}, 0, "cuda:0")
    two.gate.memory_read({"cuda:1": DeviceMemory(300 * MIB, 300 * MIB, 0)}, 0, "cuda:1")
    first, second = two.submit(1), two.submit(2)
    assert (first.device, second.device) == ("cuda:0", ""), "it could never run on cuda:1"
    two.runners["cuda:0"].finish()
    assert second.device == "cuda:0"
    two.queue.detach("cuda:0")
    with pytest.raises(InsufficientMemory, match="cuda:1 can give 300 MiB"):
        two.submit(3)


@timed
async def test_engines_of_one_pool_share_its_ledger_and_one_s_death_gives_back_its_own_part_alone() -> None:
    two = Two(run_mib=100, devices=("cpu:0", "cpu:1"))
    memory = two.gate.memory
    for engine, ours in (("cpu:0", 50), ("cpu:1", 30)):
        memory.read({"cpu": DeviceMemory(1000 * MIB, 900 * MIB, ours * MIB)}, 0, engine)
    ledger = memory.ledger("cpu:0")
    assert ledger is memory.ledger("cpu:1") is memory.ledger("cpu")
    assert (ledger.ours, ledger.capacity) == (80 * MIB, 980 * MIB)
    tickets: list[Ticket] = [two.submit(n) for n in range(2)]
    assert [t.device for t in tickets] == ["cpu:0", "cpu:1"] and ledger.in_flight == 200 * MIB
    two.dies("cpu:1")
    assert (ledger.ours, ledger.in_flight) == (50 * MIB, 100 * MIB)
    assert list(ledger.flights_of("cpu:0")) and not ledger.flights_of("cpu:1")


@timed
async def test_a_gpu_that_shares_the_system_s_memory_shares_its_ledger() -> None:
    bench = Bench(attach=False)
    memory = bench.gate.memory
    memory.pools = {"cuda:0": "cpu"}
    reading = DeviceMemory(8000 * MIB, 6000 * MIB, 500 * MIB)
    memory.read({"cuda:0": reading, "cpu": reading}, 0, "auto")
    assert memory.ledger("cuda:0") is memory.ledger("cpu")
    assert list(memory.ledgers) == ["cpu"] and memory.ledger("cuda:0").ours == 500 * MIB


@timed
async def test_an_engine_is_asked_for_memory_that_it_only_keeps_when_another_one_on_its_device_needs_it() -> None:
    two = Two(run_mib=400, devices=("cuda:0", "cuda:0/torch"))
    memory = two.gate.memory
    pressed: list[str] = []
    memory.on_press = pressed.append
    for engine, ours in (("cuda:0", 100), ("cuda:0/torch", 600)):
        memory.read({"cuda:0": DeviceMemory(1000 * MIB, 300 * MIB, ours * MIB)}, 0, engine)
    memory.press("cuda:0", "cuda:0", 300 * MIB)
    assert pressed == [], "it is free"
    memory.press("cuda:0", "cuda:0", 301 * MIB)
    assert pressed == ["cuda:0/torch"]


def full(two: Two, device: str, total: int, weights: int = 0) -> None:
    """That card has so many MiB, of which models hold some."""
    two.gate.memory_read({device: DeviceMemory(total * MIB, (total - weights) * MIB, weights * MIB)}, 0, device)
    if weights:
        two.gate.memory.ledger(device).loaded(("other", "1", device), weights * MIB, device)


@timed
async def test_no_model_leaves_for_a_run_that_can_start_on_another_device() -> None:
    two = Two(run_mib=400)
    asked: list[str] = []
    two.gate.on_short = lambda model, device, size: asked.append(device)
    two.gate.memory.movable = lambda model, device: 900 * MIB if device == "cuda:0" else 0
    full(two, "cuda:0", 1000, 900)
    full(two, "cuda:1", 1000)
    first, second = two.submit(1), two.submit(2)
    assert (first.device, second.state) == ("cuda:1", "queued")
    two.runners["cuda:1"].finish()
    assert second.device == "cuda:1"
    asked.clear()
    two.gate.pause()
    third = two.submit(3)
    two.runners["cuda:1"].finish()
    assert asked == []
    two.gate.resume()
    assert third.device == "cuda:1" and asked == [], "it starts, so nothing is short"


@timed
async def test_room_is_kept_for_a_large_request_where_it_can_ever_run() -> None:
    two = Two(run_mib=1)
    small = two.gate.queue("n", "1")
    spec = msgspec.structs.replace(on("cuda:0", 300), name="n")
    two.gate.memory.loaded(spec.key, spec, 0, ())
    runner = FakeRunner()
    small.attach(runner, 9, msgspec.structs.replace(spec, config=msgspec.structs.replace(spec.config, instances=3)))
    for device in ("cuda:0", "cuda:1"):
        two.up(device, 900)
    full(two, "cuda:0", 1000)
    full(two, "cuda:1", 500)
    for n in range(3):
        two.submit(n, queue=small, queue_s=60)
    large = two.submit(9, queue_s=20)
    assert large.state == "queued"
    for n in range(8):
        await passed(1)
        two.submit(10 + n, queue=small, queue_s=60)
        runner.finish()
        await passed(0)
        if large.state == "running":
            break
    assert large.state == "running", "small ones overtake it for two seconds, then its room is kept"


@timed
async def test_a_request_that_kept_room_on_one_device_and_starts_on_another_gives_it_back() -> None:
    two = Two(run_mib=400)
    full(two, "cuda:0", 1000, 500)
    full(two, "cuda:1", 1000)
    spec = msgspec.structs.replace(on("cuda:0", 300), name="n")
    other = two.gate.queue("n", "1")
    two.gate.memory.loaded(spec.key, spec, 0, ())
    runner = FakeRunner()
    other.attach(runner, 9, spec)
    two.submit(0, queue=other)
    two.submit(1)
    waits = two.submit(2)
    await passed(2.5)
    assert two.gate.memory.ledger("cuda:1").reserved == 0
    kept = [d for d in ("cuda:0", "cuda:1") if two.gate.memory.ledger(d).reserved]
    late = two.submit(3, queue=other)
    assert kept == ["cuda:0"] and late.state == "queued"
    two.runners["cuda:1"].finish()
    assert waits.device == "cuda:1" and two.gate.memory.ledger("cuda:0").reserved == 0
    runner.finish()
    await passed(0)
    assert late.state == "running"


@timed
async def test_copies_with_different_batches_book_a_request_by_what_it_is() -> None:
    """One copy merges, the other (on the processor) does not: rows count in the one that counts them."""
    two = Bench(attach=False)
    runner = FakeRunner()
    for device, most in (("cuda:0", 4), ("cpu:0", 0)):
        config = ModelConfig(memory=MemoryConfig(item_bytes=100 * MIB))
        spec = msgspec.structs.replace(model_spec(max_batch=most), device=device, engine=device, config=config)
        two.gate.memory.loaded(spec.key, spec, 0, ())
        two.queue.attach(runner, 7, spec)
    two.queue.detach("cpu:0")
    assert two.queue.spec is not None and two.queue.spec.max_batch == 0
    two.gate.memory_read({"cuda:0": DeviceMemory(1000 * MIB, 1000 * MIB, 0)}, 0, "cuda:0")
    two.submit(1, 2, 3, 4)
    assert two.gate.memory.ledger("cuda:0").in_flight == 400 * MIB


@timed
async def test_others_go_on_when_a_suspect_has_no_copy_any_more_in_their_engine() -> None:
    two = Two()
    other = two.gate.queue("n", "1")
    other.attach(two.runners["cuda:1"], 9, on("cuda:1"))
    tickets = [two.submit(n) for n in range(2)]
    two.dies("cuda:0")
    late = two.submit(3, queue=other)
    assert [t.state for t in (*tickets, late)] == ["queued", "running", "queued"], "the suspect is next"
    two.queue.detach("cuda:1")
    await passed(0)
    assert late.state == "running"


@timed
async def test_a_suspect_waits_for_one_engine_to_be_idle_and_others_do_not_starve() -> None:
    two = Two()
    first = two.submit(1)
    two.dies("cuda:0")
    two.up("cuda:0")
    await passed(0)
    assert first.state == "running" and first.deaths == 1
    where = first.device
    two.dies(where)
    assert isinstance(first.error, ModelError), "its second death"
    two.up(where)
    await passed(0)
    later = [two.submit(n) for n in range(2)]
    assert sorted(t.device for t in later) == ["cuda:0", "cuda:1"], "nothing is held back any more"
