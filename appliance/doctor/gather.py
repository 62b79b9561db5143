"""All facts, in bounded time: every probe in a thread of its own that is not waited for beyond its limit."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from appliance.doctor.facts import (
    Build,
    Chosen,
    Devices,
    Engine,
    Facts,
    Folder,
    Native,
    Port,
    Power,
    System,
    Windows,
)
from appliance.system.jetson import Board

LIMITS_S: Mapping[str, float] = {
    "system": 5,
    "build": 5,
    "native": 100,
    "engine": 70,
    "devices": 15,
    "port": 15,
    "folders": 20,
    "windows": 10,
    "power": 5,
    "board": 5,
}
"""Probe → seconds. They run side by side, so the largest is the longest that all of it takes."""


class Probes(Protocol):
    """Looking around. Each may raise anything, and may never return."""

    def system(self) -> System: ...

    def build(self) -> Build: ...

    def native(self) -> Native: ...

    def engine(self) -> Engine: ...

    def devices(self) -> Devices: ...

    def port(self) -> Port: ...

    def folders(self) -> tuple[Folder, ...]: ...

    def windows(self) -> Windows | None:
        """None on other systems."""
        ...

    def power(self) -> Power: ...

    def board(self) -> Board | None:
        """None on anything but a Jetson."""
        ...


class FakeProbes:
    """For tests: gives the parts of ``facts``; a part that is a function is called for it instead."""

    def __init__(self, facts: Facts, **parts: Callable[[], Any]) -> None:
        for name in LIMITS_S:
            value = getattr(facts, name)
            setattr(self, name, parts.get(name, lambda value=value: value))

    system: Callable[[], System]
    build: Callable[[], Build]
    native: Callable[[], Native]
    engine: Callable[[], Engine]
    devices: Callable[[], Devices]
    port: Callable[[], Port]
    folders: Callable[[], tuple[Folder, ...]]
    windows: Callable[[], Windows | None]
    power: Callable[[], Power]
    board: Callable[[], Board | None]


def gather(chosen: Chosen, probes: Probes, limits_s: Mapping[str, float] = LIMITS_S) -> Facts:
    """What the probes tell within their limits; of the others, why not. Nothing is raised."""
    found: dict[str, Any] = {}
    unknown: dict[str, str] = {}

    def work(name: str) -> None:
        try:
            found[name] = getattr(probes, name)()
        except Exception as error:  # noqa: BLE001 - whatever a probe meets is told in its line
            unknown[name] = str(error) or type(error).__name__

    # Daemons: one that hangs must not hold up the end of the program.
    started = time.monotonic()
    threads = {
        name: threading.Thread(target=work, args=(name,), name=f"doctor-{name}", daemon=True) for name in limits_s
    }
    for thread in threads.values():
        thread.start()
    for name, thread in threads.items():
        thread.join(max(0.0, started + limits_s[name] - time.monotonic()))
    known = {name: found[name] for name in threads if name in found}
    late = {name: f"no answer within {limit:.0f} s" for name, limit in limits_s.items() if name not in known}
    return Facts(chosen=chosen, unknown={**late, **{n: w for n, w in unknown.items() if n in late}}, **known)
