"""What runs teach is written soon after, in one file for many events, and at the end."""

import asyncio
import json
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from appliance.engine.messages import CostPoint, DeviceMemory
from appliance.gate.budget import Share
from appliance.gate.costs import Learned
from appliance.gate.memory import MemoryPlan
from appliance.serving import lessons, profiles
from appliance.serving.lessons import Lessons
from appliance.serving.profiles import Of, Profiles
from tests.support.fake_runner import model_spec, rows, ticket

OF = Of("m", "f1", "auto 16", {})
BUCKET = ((1,),)


class Kept(Profiles):
    """Counts what is written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.written: list[Of] = []

    def keep_learned(self, of: Of, learned: Learned) -> None:
        super().keep_learned(of, learned)
        self.written.append(of)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "_SOON_S", 0.05)


def memory() -> MemoryPlan:
    plan = MemoryPlan(lambda device: Share(1.0, 0), lambda: 0.0)
    plan.loaded(("m", "1"), model_spec(), 0, (CostPoint(BUCKET, 1, 100),))
    return plan


def teach(plan: MemoryPlan, size: int) -> None:
    profile = plan._profiles["m", "1"]
    profile.ran_out(BUCKET, 1, size, 1 << 40)
    plan._taught(("m", "1"))


def test_many_events_are_one_file(tmp_path: Path) -> None:
    async def main() -> None:
        plan, kept = memory(), Kept(tmp_path)
        keeper = Lessons(plan, kept)
        keeper.serves(("m", "1"), OF)
        for n in range(1, 6):
            teach(plan, n << 20)
        assert kept.written == []
        async with asyncio.timeout(10):
            while not kept.written:
                await asyncio.sleep(0.01)
        found = kept.learned(OF)
        assert found is not None and found.floors == (CostPoint(BUCKET, 1, (5 << 20) * 3 // 2),)
        teach(plan, 100 << 20)
        async with asyncio.timeout(10):
            while len(kept.written) < 2:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(kept.written) == 2

    asyncio.run(main())


def test_the_end_writes_at_once_and_only_what_is_new(tmp_path: Path) -> None:
    async def main() -> None:
        plan, kept = memory(), Kept(tmp_path)
        keeper = Lessons(plan, kept)
        keeper.flush()
        teach(plan, 1 << 20)
        keeper.flush()
        assert kept.written == [], "a version that it was not told of"
        keeper.serves(("m", "1"), OF)
        teach(plan, 2 << 20)
        keeper.flush()
        keeper.flush()
        await asyncio.sleep(0.1)
        assert kept.written == [OF]

    asyncio.run(main())


def test_the_end_waits_for_a_write_that_is_under_way(tmp_path: Path) -> None:
    """Two writers of one file would spoil it."""
    begun, go = threading.Event(), threading.Event()
    order: list[str] = []

    class Slow(Profiles):
        def keep_learned(self, of: Of, learned: Learned) -> None:
            name = f"{len(learned.floors)}"
            order.append(f"begins {name}")
            if not begun.is_set():
                begun.set()
                assert go.wait(10)
            super().keep_learned(of, learned)
            order.append(f"ends {name}")

    async def main() -> None:
        plan, kept = memory(), Slow(tmp_path)
        keeper = Lessons(plan, kept)
        keeper.serves(("m", "1"), OF)
        teach(plan, 1 << 20)
        assert await asyncio.to_thread(begun.wait, 10)
        plan._profiles["m", "1"].ran_out(BUCKET, 2, 9 << 20, 1 << 40)
        plan._profiles["m", "1"].ran_out(((2,),), 2, 9 << 20, 1 << 40)
        plan._taught(("m", "1"))
        threading.Timer(0.1, go.set).start()
        keeper.flush()
        found = kept.learned(OF)
        assert found is not None and len(found.floors) == 3

    asyncio.run(main())
    assert order == ["begins 1", "ends 1", "begins 3", "ends 3"]


INTS = st.integers(-(1 << 70), 1 << 70)
SHAPES = st.one_of(st.just([[1]]), st.lists(st.lists(INTS, max_size=2), max_size=2))
SAMPLES = st.lists(st.tuples(SHAPES, st.integers(0, 2), st.lists(INTS, max_size=3), INTS), max_size=3)
FLOORS = st.lists(st.tuples(SHAPES, st.integers(0, 2), INTS), max_size=3)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.tuples(FLOORS, SAMPLES)))
def test_a_file_that_says_anything_refuses_no_request(content: object) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "learned").mkdir()
        if not isinstance(content, bytes):
            floors, samples = content  # type: ignore[misc]
            learned = {"device": "cpu", "floors": floors, "samples": samples}
            content = json.dumps({"version": profiles._VERSION, "model": "m", "learned": learned}).encode()
        (folder / "learned" / OF.name()).write_bytes(content)
        found = Profiles(folder).learned(OF)
        event("counts" if found is not None else "does not count")
        plan = MemoryPlan(lambda device: Share(1.0, 0), lambda: 0.0)
        plan.read({"cpu": DeviceMemory(1 << 30, 1 << 30, 0)})
        plan.loaded(("m", "1"), model_spec(), 0, (CostPoint(BUCKET, 1, 100),), learned=found)
        bench = ticket(rows(1))
        assert plan.never(model_spec(), bench) is None
        assert plan.fits(model_spec(), [bench]), "alone on the device"
