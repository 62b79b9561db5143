"""Probes that fail, that hang, and that tell: the facts are there in bounded time."""

import threading
import time
from pathlib import Path

from appliance.doctor.facts import Chosen, Facts
from appliance.doctor.gather import LIMITS_S, FakeProbes, gather
from tests.unit.doctor import faults


def test_what_all_probes_tell(tmp_path: Path) -> None:
    facts = faults.well(tmp_path)
    assert gather(Chosen(), FakeProbes(facts)) == facts


def test_a_probe_that_throws_and_one_that_hangs(tmp_path: Path) -> None:
    never = threading.Event()

    def throws() -> None:
        raise OSError("the disk is on fire")

    facts = faults.well(tmp_path)
    probes = FakeProbes(facts, folders=throws, engine=never.wait)
    limits = {**LIMITS_S, "engine": 0.2}
    found = gather(Chosen(), probes, limits)
    never.set()
    assert found.unknown == {"engine": "no answer within 0 s", "folders": "the disk is on fire"}
    assert found.engine is None and found.folders is None
    assert found.native == facts.native


def test_the_probes_run_side_by_side(tmp_path: Path) -> None:
    """Each waits until all the others are there too."""
    together = threading.Barrier(len(LIMITS_S), timeout=20)
    facts = faults.well(tmp_path)

    def tells(name: str) -> object:
        together.wait()
        return getattr(facts, name)

    probes = FakeProbes(facts, **{name: (lambda name=name: tells(name)) for name in LIMITS_S})
    assert gather(Chosen(), probes) == facts


def test_a_hung_probe_holds_up_nobody(tmp_path: Path) -> None:
    """The thread is left alone: the others' limits are not added to it."""
    release = threading.Event()
    probes = FakeProbes(Facts(), engine=release.wait, native=release.wait)
    started = time.monotonic()
    found = gather(Chosen(), probes, {"engine": 0.2, "native": 0.2})
    assert time.monotonic() - started < 60  # for ever otherwise
    release.set()
    assert set(found.unknown) == {"engine", "native"}
