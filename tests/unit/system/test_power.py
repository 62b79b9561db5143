"""Sleeps of the machine, with clocks that the test moves."""

import asyncio

import pytest

from appliance.system import power
from tests.support import virtual_time


class Machine:
    """Its two clocks."""

    def __init__(self) -> None:
        self.all_s, self.awake_s = 5000.0, 4000.0

    def __call__(self) -> tuple[float, float]:
        return self.all_s, self.awake_s

    def runs(self, seconds: float, drift: float = 0.0) -> None:
        self.all_s += seconds + drift
        self.awake_s += seconds

    def sleeps(self, seconds: float) -> None:
        self.all_s += seconds


def test_a_sleep_is_told_once() -> None:
    machine = Machine()
    sleeps = power.Sleeps(machine)
    assert sleeps.slept() == 0, "what it slept before is of no interest"
    machine.runs(3600)
    assert sleeps.slept() == 0
    machine.sleeps(3600)
    machine.runs(2)
    assert sleeps.slept() == 3600
    machine.runs(2)
    assert sleeps.slept() == 0


@pytest.mark.parametrize("drift", [0.5, -0.5, 1.9, -3600.0])
def test_drift_and_a_clock_that_is_set_back_are_no_sleep(drift: float) -> None:
    machine = Machine()
    sleeps = power.Sleeps(machine)
    for _ in range(100):
        machine.runs(2, drift)
        assert sleeps.slept() == 0


def test_two_sleeps_between_two_looks_are_one() -> None:
    machine = Machine()
    sleeps = power.Sleeps(machine)
    machine.sleeps(60)
    machine.runs(1)
    machine.sleeps(40)
    assert sleeps.slept() == 100


def test_the_watcher_calls_after_each_sleep_and_not_while_it_is_awake() -> None:
    machine, told = Machine(), []

    async def resumed(seconds: float) -> None:
        told.append(seconds)

    async def main() -> None:
        watching = asyncio.create_task(power.watch(resumed, machine))
        await asyncio.sleep(60)
        assert told == []
        machine.sleeps(1000)
        await asyncio.sleep(2.1)
        assert told == [1000]
        machine.sleeps(10)
        await asyncio.sleep(60)
        assert told == [1000, 10]
        watching.cancel()

    virtual_time.run(main())


def test_this_machine_has_such_clocks() -> None:
    before = power.clocks()
    sleeps = power.Sleeps()
    after = power.clocks()
    assert all(a <= b for a, b in zip(before, after, strict=True))
    assert sleeps.slept() == 0
