"""The frozen Windows program under Wine: what only Windows' own ways of doing things can break."""

import json
import os
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.packaging import wine as w
from tests.support.server import PHOTOS

FROZEN = w.BASE / f"dist-{os.environ.get('VARIANT', 'cpu')}" / "appliance"
USER = "Jörg Müller 测试"
# Each folder's name is short enough; the whole is 380 characters.
DEEP = [f"deep folder äöü 测试 {n:02} {'x' * 30}" for n in range(7)]

w.require()
if not (FROZEN / "appliance.exe").exists():
    pytest.skip("there is no frozen folder (build/windows/build.sh makes it)", allow_module_level=True)


class Program:
    """The windowed program, running; without streams, as after a double click."""

    def __init__(self, wine: w.Wine, models: Path, port: int) -> None:
        self.wine, self.models, self.port = wine, models, port
        self.folder = wine.program
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)

    def start(self) -> None:
        self.starter = self.wine.start(
            "start", self.wine.path(self.folder / "appliance.exe"), "--port", str(self.port), "--models", self.where()
        )
        self.until(lambda: self.client.get("/ready").status_code == 200, "ready")

    def where(self) -> str:
        return self.wine.path(self.models)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/api/status").json()
        return found

    def cat(self, model: str = "classify") -> httpx.Response:
        return self.client.post(f"/predict/{model}", content=(PHOTOS / "chelsea.png").read_bytes())

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + 90
        while True:
            try:
                if found := condition():
                    return found
            except (httpx.TransportError, OSError, KeyError):
                pass
            assert time.monotonic() < deadline, what
            time.sleep(0.1)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """In a profile with all kinds of letters, from a folder that cannot be written, with models on a long path."""
    with w.Wine(tmp_path_factory.mktemp("frozen"), USER) as wine:
        wine.run("wineboot", "-u")
        shutil.copytree(FROZEN, wine.program)
        for path in (wine.program, *wine.program.rglob("*")):
            path.chmod(0o555 if path.is_dir() or path.suffix == ".exe" else 0o444)
        models = wine.drive.joinpath(*DEEP, "models")
        assert len(wine.path(models)) > 260
        models.mkdir(parents=True)
        running = Program(wine, models, free_port())
        running.start()
        yield running
        running.client.close()
        wine.end_all()
        running.starter.wait(30)


def test_the_answer_is_right(program: Program) -> None:
    answer = program.cat()
    assert answer.status_code == 200
    first = answer.json()["labels"][0]
    assert (first["label"], round(first["score"], 2)) == ("Egyptian cat", 0.77)


def test_nothing_lies_beside_the_program_and_all_in_the_profile(program: Program) -> None:
    names = {path.relative_to(program.folder).as_posix() for path in program.folder.rglob("*")}
    assert names == {path.relative_to(FROZEN).as_posix() for path in FROZEN.rglob("*")}
    assert (program.wine.state / f"instance-{program.port}.json").exists()
    assert (program.wine.state / "logs" / "appliance.log").stat().st_size > 0


def test_a_model_on_a_long_path_is_seen_and_served(program: Program) -> None:
    shutil.copytree(FROZEN / "_internal" / "assets" / "models" / "classify", program.models / "mine")
    program.until(lambda: program.cat("mine").status_code == 200, "the model that was put there")
    assert program.cat("mine").json()["labels"][0]["label"] == "Egyptian cat"


def test_callers_that_hang_up_at_once_do_not_end_the_listening(program: Program) -> None:
    refused: list[OSError] = []

    def hang_up() -> None:
        for n in range(100):
            try:
                with socket.create_connection(("127.0.0.1", program.port), timeout=10) as caller:
                    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                    caller.sendall(b"GET /heal"[: n % 9])
            except ConnectionResetError:
                continue
            except OSError as error:
                refused.append(error)

    callers = [threading.Thread(target=hang_up) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not refused
    assert program.client.get("/health").status_code == 200
    log = (program.wine.state / "logs" / "appliance.log").read_text(encoding="utf-8")
    assert '"level": "error"' not in log


def test_a_second_start_finds_the_first(program: Program) -> None:
    before = program.status()["engine"]["pid"]
    for name in ("appliance.exe", "appliance-cli.exe"):
        done = program.wine.run(program.folder / name, "--port", str(program.port), timeout=60)
        assert done.returncode == 0
        assert f"running already: http://127.0.0.1:{program.port}" in done.stdout
    assert program.status()["engine"]["pid"] == before


def test_the_console_program_tells_of_the_windowed_one(program: Program) -> None:
    done = program.wine.run(program.folder / "appliance-cli.exe", "--port", str(program.port), "status", timeout=60)
    assert done.returncode == 0
    assert "ready" in done.stdout and "classify" in done.stdout


def test_a_killed_engine_comes_back(program: Program) -> None:
    engine = program.status()["engine"]
    killed = program.wine.run("taskkill", "/F", "/PID", str(engine["pid"]), timeout=60)
    assert killed.returncode == 0
    assert program.cat().json()["labels"][0]["label"] == "Egyptian cat"
    after = program.status()["engine"]
    assert after["restarts"] == engine["restarts"] + 1 and after["pid"] != engine["pid"]


def test_the_engine_ends_with_a_killed_host(program: Program) -> None:
    """The last one: nothing runs afterwards."""
    said = json.loads((program.wine.state / f"instance-{program.port}.json").read_text(encoding="utf-8"))
    program.wine.run("taskkill", "/F", "/PID", str(said["pid"]), timeout=60)
    program.until(lambda: "appliance" not in program.wine.run("tasklist", timeout=60).stdout, "the engine's end")
