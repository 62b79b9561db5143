"""Servers that the HTTP tests share, and a check that every answer goes through."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from tests.http.helpers import KINDS, assert_clean
from tests.support import nets
from tests.support.server import Server

# The body limits are small, so that tests can go over them quickly.
MAX_BODY = 8 << 20
BODY_TIMEOUT_MS = 4000


def watched(server: Server) -> Server:
    """Every error that this server's client gets is checked for what must not leave."""

    def check(response: httpx.Response) -> None:
        if response.status_code >= 400:
            response.read()
            assert_clean(response.text, server)

    server.client.event_hooks = {"response": [check]}
    return server


def fake(server: Server, name: str, options: str = "", config: str = "") -> Path:
    """A model of the fake backend: y = 2 * x, x FP32 [-1,-1]."""
    path = server.models / name
    path.mkdir()
    (path / "model.toml").write_text(f'backend = "fake"\n{config}\n[backend_options]\n{options}\n')
    return path


def _models(server: Server) -> None:
    folder = server.models
    for kind, element in KINDS.items():
        net = folder / f"same-{kind.lower()}" / "1" / "model.onnx"
        nets.save(
            net, [h.make_node("Identity", ["x"], ["y"])], [("x", element, ["N", 3])], [("y", element, ["N", 3])]
        )
    nets.scale(folder / "scale.onnx")
    nets.save(
        folder / "pair.onnx",
        [h.make_node("Cast", ["b"], ["c"], to=T.FLOAT), h.make_node("Add", ["a", "c"], ["sum"]),
         h.make_node("Neg", ["b"], ["minus"])],
        [("a", T.FLOAT, ["N", 2]), ("b", T.INT32, ["N", 2])],
        [("sum", T.FLOAT, ["N", 2]), ("minus", T.INT32, ["N", 2])],
    )  # fmt: skip
    nets.save(
        folder / "fixed.onnx",
        [h.make_node("Mul", ["x", "f"], ["y"])],
        [("x", T.FLOAT, [2, 3])],
        [("y", T.FLOAT, [2, 3])],
        {"f": np.float32(10)},
    )
    nets.save(folder / "scalar.onnx", [h.make_node("Neg", ["x"], ["y"])], [("x", T.FLOAT, [])], [("y", T.FLOAT, [])])
    nets.save(
        folder / "log.onnx",
        [h.make_node("Log", ["x"], ["y"])],
        [("x", T.FLOAT, ["N", 2])],
        [("y", T.FLOAT, ["N", 2])],
    )
    for kind in ("fp32", "uint8"):
        net = folder / f"insect-{kind}" / "1" / "model.onnx"
        element = KINDS[kind.upper()]
        nets.save(
            net, [h.make_node("Identity", ["x"], ["y"])], [("x", element, ["N", 4])], [("y", element, ["N", 4])]
        )
        (net.parents[1] / "labels.txt").write_text("ant\nbee\ncricket\n")  # the fourth class has no label
    for number, factor in ((1, 3.0), (2, 5.0)):
        nets.scale(folder / "versions" / str(number) / "model.onnx", factor)
    (folder / "versions" / "model.toml").write_text('versions = "all"\n')
    nets.scale(folder / "manual" / "1" / "model.onnx", 7.0)
    (folder / "manual" / "model.toml").write_text('load = "manual"\n')
    (folder / "log.toml").write_text("finite = false\n")
    good = nets.scale(folder / "broken" / "1" / "model.onnx").read_bytes()
    (folder / "broken" / "1" / "model.onnx").write_bytes(good[: len(good) // 2])
    fake(server, "faulty", "fail_on = 13.0\noom_on = 14.0")
    one = "[warmup]\nenabled = false\n[batching]\nmax = 1"
    fake(server, "slow", "run_ms = 2500", f"{one}\n[limits]\nqueue = 2")
    fake(server, "endless", "run_ms = 600000", f"{one}\n[timeouts]\nrun_ms = 1000")


@pytest.fixture(scope="session")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An appliance with small models for every datatype and every kind of fault."""
    with_limits: dict[str, Any] = {"max_body_bytes": MAX_BODY, "body_timeout_ms": BODY_TIMEOUT_MS}
    server = Server(tmp_path_factory.mktemp("tensors"), **with_limits)
    _models(server)
    with watched(server):
        yield server


@pytest.fixture(scope="session")
def pictures(embedded: Server) -> Server:
    """The appliance with the embedded models."""
    return watched(embedded)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes appliances of the test's own: ``prepare(server)`` adds models, ``ready`` waits for them."""
    servers: list[Server] = []

    def make(prepare: Callable[[Server], Any] | None = None, ready: bool = True, **settings: Any) -> Server:
        server = Server(tmp_path / str(len(servers)), **settings)
        if prepare is not None:
            prepare(server)
        servers.append(watched(server))
        server.start(ready)
        return server

    yield make
    for server in servers:
        server.__exit__()
