"""What the checks share: the device, the sizes, and a real appliance with models of their own."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.gpu.needs import Machine
from tests.gpu.report import Row
from tests.support.server import Server

MIB = 1 << 20
START_S = 150.0

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class Sizes(NamedTuple):
    """``row``: bytes an item of ``broad`` takes; ``requests``: of the admission check; ``leave``: bytes left of the
    card then; ``item``, ``length``: of the out-of-memory check, what one takes and how long it is; ``asked``:
    requests for a figure of speed; ``side``: of pictures; ``deep``: width, layers, tokens; ``links``: of the chain.
    """

    row: int
    requests: int
    leave: int
    item: int
    length: int
    asked: int
    side: int
    deep: tuple[int, int, int]
    links: int


GPU = Sizes(64 * MIB, 500, 1280 * MIB, 128 * MIB, 1 << 16, 200, 256, (4096, 6, 256), 60)
CPU = Sizes(16 * MIB, 60, 0, 8 * MIB, 1 << 12, 30, 32, (256, 3, 16), 20)


class Lab(NamedTuple):
    """``device``: ``cuda:0`` or ``cpu``. ``folder``: for models, logs and state of each group."""

    device: str
    folder: Path
    machine: Machine

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def sizes(self) -> Sizes:
        return GPU if self.gpu else CPU


class Group(NamedTuple):
    """Checks that share one appliance. ``models`` makes its models; ``settings``: of the appliance. Where ``why_not``
    tells a reason, all of it is left out."""

    name: str
    models: Callable[[Lab, Path], None]
    checks: tuple[Callable[[Lab, Server], Iterator[Row]], ...]
    settings: Callable[[Lab], dict[str, Any]] = lambda lab: {}
    why_not: Callable[[Lab], str | None] = lambda lab: None


@contextmanager
def appliance(lab: Lab, group: Group) -> Iterator[Server]:
    """With all models warm. Raises RuntimeError with the words of one that does not load."""
    folder = lab.folder / group.name
    server = Server(folder, device=lab.device, **group.settings(lab))
    group.models(lab, server.models)
    try:
        server.start(ready=False)
        server.wait_for(lambda: _warm(server), START_S, "all models")
        yield server
    finally:
        if server.process is not None:
            server.stop()
        server.client.close()


def _warm(server: Server) -> bool:
    told = server.status()["models"]
    faults = [f"{m['name']}: {v['error']}" for m in told for v in m["versions"] if v["error"]]
    faults += [f"{m['name']}: {m['error']}" for m in told if m["error"]]
    if faults:
        raise RuntimeError(faults[0])
    return bool(told) and all(m["ready"] for m in told)


def version(server: Server, model: str) -> dict[str, Any]:
    """What ``/api/status`` says of a model's only version."""
    found = next(m for m in server.status()["models"] if m["name"] == model)
    assert found["versions"], found["error"]
    only: dict[str, Any] = found["versions"][0]
    return only


def ledger(server: Server, pool: str) -> dict[str, Any]:
    """Of a pool of memory, once it is known."""
    found: dict[str, Any] = server.wait_for(lambda: server.status()["memory"].get(pool), 30, f"the ledger of {pool}")
    return found


def engine(server: Server, family: str = "") -> dict[str, Any]:
    """The engine of a backend family: ``torch``, or the main one."""
    found: dict[str, Any] = next(
        e for e in server.status()["engines"] if ("/" in e["id"]) == bool(family) and e["id"].endswith(family)
    )
    return found


def unified(server: Server) -> bool:
    """Whether the GPU has no memory of its own: then filling it would fill the system's."""
    return any(d["kind"] == "unified" for d in server.status()["devices"])
